"""The authenticator of `penstock serve`: an API key or a token in `Authorization`, or the cookie of a login.

Keys and tokens come in that header alone, never in a URL or a cookie. A cookie is sent by the browser whoever asks it
to, so with one a request that changes something has to come from our own pages.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from math import ceil
from typing import TYPE_CHECKING

from fastapi import Request

from penstock.access.issuer_keys import keys_of
from penstock.access.key_text import PREFIX
from penstock.access.model import Principal
from penstock.access.rates import TokenBuckets
from penstock.access.sessions import COOKIE, SECURE_COOKIE, Sessions, cookie_header
from penstock.access.tokens import TokenOutOfTime, Tokens, issuer_of
from penstock.api.browser import SAFE_METHODS, is_own_page
from penstock.errors import Forbidden, Throttled, Unauthenticated

if TYPE_CHECKING:
    from penstock.engine import Penstock

__all__ = ["Credentials"]

FAILURES_AT_ONCE = 20  # wrong credentials from one address
FAILURES_PER_S = 0.5
WRONG = "the credential is wrong, expired or revoked"


class Credentials:
    """Tells who sends a request, by what the database and the settings say."""

    def __init__(self, penstock: Penstock) -> None:
        settings, clock = penstock.settings, penstock.clock
        issuer = issuer_of(settings)
        self._keys, self._public_url, self._lasts_s = penstock.keys, settings.public_url, settings.session_s
        self._tokens = None if issuer is None else Tokens(issuer, keys_of(settings, clock=clock), clock=clock)
        self._failures = TokenBuckets(per_s=FAILURES_PER_S, burst=FAILURES_AT_ONCE, clock=clock)
        self._sessions = Sessions(penstock.keys, settings.secret_keys, clock=clock, lasts_s=settings.session_s)

    async def authenticate(self, request: Request) -> Principal | None:
        """The sender; None without a credential, `Unauthenticated` when it is wrong."""
        given = request.headers.getlist("authorization")
        if given:
            return await self._bearer(request, given)
        # By https only the name that browsers protect: a neighbouring host can set the other one.
        cookie = request.cookies.get(SECURE_COOKIE if self._is_secure(request) else COOKIE)
        principal = None if cookie is None else await self._sessions.principal(cookie)
        if principal is not None and request.method not in SAFE_METHODS:
            self._require_own_page(request)
        return principal

    async def _bearer(self, request: Request, given: list[str]) -> Principal:
        scheme, _, credential = given[0].partition(" ")
        credential = credential.strip()
        if len(given) > 1 or scheme.lower() != "bearer" or not credential:
            raise Unauthenticated("send one header Authorization: Bearer, followed by a key or token")
        with self._counted(request, credential):
            return await self._owner(credential)

    async def _owner(self, credential: str) -> Principal:
        if credential.startswith(f"{PREFIX}_"):
            principal = await self._keys.principal(credential)
        else:
            principal = None if self._tokens is None else await self._tokens.principal(credential)
        if principal is None:
            raise Unauthenticated(WRONG)
        return principal

    async def log_in(self, request: Request, key: str) -> tuple[Principal, str]:
        """Who logs in with an API key, and the header `Set-Cookie` of the session; `Unauthenticated` when refused."""
        self._require_own_page(request)
        with self._counted(request, key.strip()):
            opened = await self._sessions.open(key.strip())
            if opened is None:
                raise Unauthenticated(WRONG)
        value, principal = opened
        return principal, self._cookie(request, value, self._lasts_s)

    def log_out(self, request: Request) -> str:
        """The header `Set-Cookie` that ends the session in this browser."""
        self._require_own_page(request)
        return self._cookie(request, "", 0)

    @contextmanager
    def _counted(self, request: Request, credential: str) -> Iterator[None]:
        """Count wrong credentials by address. Who sent too many is heard only with one that was good a moment ago."""
        address = request.client.host if request.client else ""
        wait_s = self._failures.wait_s(address)
        if wait_s and not self._is_at_hand(credential):
            raise Throttled("too many wrong credentials came from this address", retry_after_s=ceil(wait_s))
        try:
            yield
        except TokenOutOfTime:
            raise
        except Unauthenticated:
            self._failures.take(address)
            raise

    def _is_at_hand(self, credential: str) -> bool:
        is_token = self._tokens is not None and self._tokens.is_at_hand(credential)
        return is_token or self._keys.is_at_hand(credential)

    def _cookie(self, request: Request, value: str, lasts_s: float) -> str:
        path = request.scope.get("root_path") or "/"
        return cookie_header(value, is_secure=self._is_secure(request), lasts_s=lasts_s, path=path)

    def _is_secure(self, request: Request) -> bool:
        return request.url.scheme == "https" or (self._public_url or "").startswith("https://")

    def _require_own_page(self, request: Request) -> None:
        if not is_own_page(request.headers, self._public_url):
            raise Forbidden("a request with a login's cookie has to come from a page of this server")
