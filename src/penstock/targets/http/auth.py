"""Who a call is made as: fixed headers, or a token that is fetched once for all who wait and renewed early."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
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
from penstock.targets.target import count_request

if TYPE_CHECKING:
    import httpx

__all__ = ["Auth", "ClientCredentials", "RenewedToken", "StaticHeaders", "bearer"]

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


class RenewedToken:
    """A token that is fetched once for all who wait for it, renewed before it expires, and dropped when refused."""

    def __init__(self, *, early_s: float) -> None:
        self._early_s = early_s
        self._turn: PerLoop[asyncio.Lock] = PerLoop(asyncio.Lock)
        self._token: str | None = None
        self._renew_at_s = 0.0

    async def get(self, clock: Clock, fetch: Callable[[], Awaitable[tuple[str, float]]]) -> str:
        """The token; `fetch` gives a new one and the seconds it lives."""
        async with self._turn.get():
            asked_at_s = clock.monotonic()
            if self._token is None or asked_at_s >= self._renew_at_s:
                self._token, life_s = await fetch()
                self._renew_at_s = asked_at_s + life_s - min(self._early_s, life_s * EARLY_SHARE)
            return self._token

    def refuse(self, token: str | None = None) -> None:
        """Drop the token, or this one unless another has replaced it since."""
        if token in (None, self._token):
            self._token = None


class ClientCredentials:
    """OAuth 2.0 client credentials; whoever needs a token while one is fetched waits for the same one."""

    def __init__(
        self, token_url: str, client_id: str, client_secret: str, *, scope: str | None = None, **parameters: str
    ) -> None:
        parts = urlsplit(token_url)
        self._shown = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
        if parts.scheme != "https" and parts.hostname not in LOCAL:
            raise SettingsInvalid(f"{self._shown!r} would get the client's secret in the clear; use https")
        self._token_url = token_url
        self._form = {"grant_type": "client_credentials", "client_id": client_id, "client_secret": client_secret}
        self._form |= parameters | ({"scope": scope} if scope else {})
        self._token = RenewedToken(early_s=60.0)

    def __repr__(self) -> str:
        return f"ClientCredentials({self._shown!r}, {self._form['client_id']!r}, …)"

    async def headers(self, client: httpx.AsyncClient, clock: Clock) -> Mapping[str, str]:
        token = await self._token.get(clock, lambda: self._fetch(client, clock))
        return {"Authorization": f"Bearer {token}"}

    def refuse(self) -> None:
        self._token.refuse()

    async def _fetch(self, client: httpx.AsyncClient, clock: Clock) -> tuple[str, float]:
        import httpx

        count_request()
        try:
            response = await client.post(self._token_url, data=self._form, follow_redirects=False)
        except httpx.HTTPError as error:
            # Nothing was sent to the remote itself, so nothing can have been applied.
            message = f"{self._shown} did not answer: {type(error).__name__}"
            raise TargetError(message, kind=ErrorKind.CONNECTION) from error
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
        wait_s = retry_after_s(response.headers, from_micros(clock.now_us()))
        is_throttle = status == 429 or (status == 503 and wait_s is not None)
        kind = ErrorKind.THROTTLED if is_throttle else ErrorKind.CONNECTION if status >= 500 else ErrorKind.PERMISSION
        return TargetError(
            f"{self._shown} gave no token: {status}" + (f" {code}" if isinstance(code, str) else ""),
            kind=kind,
            code=code if isinstance(code, str) else str(status),
            retry_after_s=wait_s if is_throttle else None,
        )


class _Granted(msgspec.Struct):
    access_token: str
    expires_in: float = LIFE_S
