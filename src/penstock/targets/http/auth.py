"""Who a call is made as: fixed headers, or a token that is fetched once for all who wait and renewed early."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol
from urllib.parse import urlsplit

import msgspec

from penstock.clock import Clock, from_micros
from penstock.errors import SettingsInvalid
from penstock.targets.http.answers import decoded
from penstock.targets.http.rate_limits import retry_after_s
from penstock.targets.model import ErrorKind, TargetError
from penstock.targets.per_loop import PerLoop
from penstock.targets.request_count import count_request

if TYPE_CHECKING:
    import httpx

__all__ = ["Auth", "ClientCredentials", "NoAuth", "StaticHeaders", "bearer"]

EARLY_S = 60.0
EARLY_SHARE = 0.1  # of a short life
LOCAL = frozenset({"localhost", "127.0.0.1", "::1"})
LIFE_S = 3600.0
"""How long a token is taken to live when its issuer does not say."""


class Auth(Protocol):
    """What gives a source its credentials."""

    async def headers(self, client: httpx.AsyncClient, clock: Clock) -> Mapping[str, str]:
        """The headers that prove who we are; may ask somebody for a token first."""

    def refuse(self) -> None:
        """The remote refused the last headers."""


class NoAuth:
    """No credentials at all."""

    async def headers(self, client: httpx.AsyncClient, clock: Clock) -> Mapping[str, str]:
        return {}

    def refuse(self) -> None: ...


@dataclass(frozen=True)
class StaticHeaders:
    """The same headers for every call: an API key, a basic authorization."""

    values: Mapping[str, str] = field(repr=False)

    async def headers(self, client: httpx.AsyncClient, clock: Clock) -> Mapping[str, str]:
        return self.values

    def refuse(self) -> None: ...


def bearer(token: str) -> StaticHeaders:
    """A token that never changes."""
    return StaticHeaders({"Authorization": f"Bearer {token}"})


class ClientCredentials:
    """OAuth 2.0 client credentials; whoever needs a token while one is fetched waits for the same one."""

    def __init__(
        self, token_url: str, client_id: str, client_secret: str, *, scope: str | None = None, **parameters: str
    ) -> None:
        parts = urlsplit(token_url)
        if parts.scheme != "https" and parts.hostname not in LOCAL:
            raise SettingsInvalid(f"{token_url!r} would get the client's secret in the clear; use https")
        self._token_url = token_url
        self._form = {"grant_type": "client_credentials", "client_id": client_id, "client_secret": client_secret}
        self._form |= parameters | ({"scope": scope} if scope else {})
        self._turn: PerLoop[asyncio.Lock] = PerLoop(asyncio.Lock)
        self._token: str | None = None
        self._renew_at_s = 0.0

    def __repr__(self) -> str:
        return f"ClientCredentials({self._token_url!r}, {self._form['client_id']!r}, …)"

    async def headers(self, client: httpx.AsyncClient, clock: Clock) -> Mapping[str, str]:
        async with self._turn.get():
            if self._token is None or clock.monotonic() >= self._renew_at_s:
                self._token, life_s = await self._fetch(client, clock)
                self._renew_at_s = clock.monotonic() + life_s - min(EARLY_S, life_s * EARLY_SHARE)
            return {"Authorization": f"Bearer {self._token}"}

    def refuse(self) -> None:
        self._token = None

    async def _fetch(self, client: httpx.AsyncClient, clock: Clock) -> tuple[str, float]:
        import httpx

        count_request()
        try:
            response = await client.post(self._token_url, data=self._form, follow_redirects=False)
        except httpx.HTTPError as error:
            # Nothing was sent to the remote itself, so nothing can have been applied.
            raise self._failed(f"did not answer: {type(error).__name__}", ErrorKind.CONNECTION) from error
        body = decoded(response.content)
        try:
            granted = msgspec.convert(body, _Granted, strict=False)
        except msgspec.ValidationError:
            granted = None
        if response.status_code == 200 and granted is not None:
            return granted.access_token, granted.expires_in
        raise self._refused(response, body, clock)

    def _refused(self, response: httpx.Response, body: object, clock: Clock) -> TargetError:
        # An issuer's description may repeat what it was sent, so only its short code is kept.
        code = body.get("error") if isinstance(body, Mapping) else None
        status = response.status_code
        wait = retry_after_s({k.lower(): v for k, v in response.headers.items()}, from_micros(clock.now_us()))
        is_throttle = status == 429 or (status == 503 and wait is not None)
        kind = ErrorKind.THROTTLED if is_throttle else ErrorKind.CONNECTION if status >= 500 else ErrorKind.PERMISSION
        what = f"gave no token: {status}" + (f" {code}" if isinstance(code, str) else "")
        return self._failed(what, kind, code if isinstance(code, str) else str(status), wait)

    def _failed(self, what: str, kind: ErrorKind, code: str | None = None, wait: float | None = None) -> TargetError:
        return TargetError(
            f"{self._token_url} {what}",
            kind=kind,
            code=code,
            retry_after_s=wait if kind is ErrorKind.THROTTLED else None,
        )


class _Granted(msgspec.Struct):
    access_token: str
    expires_in: float = LIFE_S
