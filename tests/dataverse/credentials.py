"""Tokens of the remote, and the credentials that fetch them, shaped like those of azure-identity."""

from __future__ import annotations

import json
import secrets
import urllib.parse
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from azure.core.credentials import AccessToken

__all__ = ["AsyncCredential", "Credential", "EndpointCredential", "Tokens"]

SUFFIX = "/.default"


@dataclass(frozen=True)
class Token:
    """Whom a token stands for, at which remote, until when."""

    user: str
    audience: str
    expires_us: int


class Tokens:
    """The tokens given out; each lives for `life_s` or until it is expired by hand."""

    def __init__(self, now_us: Callable[[], int], life_s: float) -> None:
        self._now_us = now_us
        self._tokens: dict[str, Token] = {}
        self.life_s = life_s

    def issue(self, user: str, scope: str) -> AccessToken:
        """A new token; the scope is the remote's address and `/.default`."""
        if not scope.endswith(SUFFIX):
            raise ValueError(f"the scope {scope!r} should be the address of the remote followed by {SUFFIX}")
        text = secrets.token_urlsafe(24)
        expires_us = self._now_us() + round(self.life_s * 1e6)
        self._tokens[text] = Token(user, scope.removesuffix(SUFFIX).rstrip("/"), expires_us)
        return AccessToken(text, expires_us // 1_000_000)

    def holder(self, text: str, base: str) -> str | None:
        """The user of a token that is valid here and now."""
        token = self._tokens.get(text)
        if token is None or token.expires_us <= self._now_us() or token.audience != base:
            return None
        return token.user

    def expire(self, user: str | None = None) -> None:
        """Make all tokens of a user, or of everybody, invalid at once."""
        self._tokens = {text: token for text, token in self._tokens.items() if user not in {None, token.user}}


class Credential:
    """Gives tokens to whoever asks; `asked` counts how often."""

    def __init__(self, tokens: Tokens, user: str) -> None:
        self._tokens = tokens
        self.user = user
        self.asked = 0

    def get_token(self, *scopes: str, **_: Any) -> AccessToken:
        self.asked += 1
        return self._tokens.issue(self.user, scopes[0])


class AsyncCredential:
    """The same for asynchronous clients."""

    def __init__(self, tokens: Tokens, user: str) -> None:
        self._inner = Credential(tokens, user)

    @property
    def asked(self) -> int:
        return self._inner.asked

    async def get_token(self, *scopes: str, **_: Any) -> AccessToken:
        return self._inner.get_token(*scopes)

    async def close(self) -> None:
        """Nothing is held."""

    async def __aenter__(self) -> AsyncCredential:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


class EndpointCredential:
    """Fetches tokens from the token endpoint of a remote in another process."""

    def __init__(self, url: str, user: str) -> None:
        self._endpoint = f"{url}/organizations/oauth2/v2.0/token"
        self._user = user

    def get_token(self, *scopes: str, **_: Any) -> AccessToken:
        form = {
            "grant_type": "client_credentials",
            "client_id": self._user,
            "client_secret": "any",
            "scope": scopes[0],
        }
        with urllib.request.urlopen(self._endpoint, urllib.parse.urlencode(form).encode(), timeout=300) as answer:
            told = json.load(answer)
        return AccessToken(told["access_token"], told["expires_on"])
