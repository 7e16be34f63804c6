"""Access tokens of the sources: fetched once for all who wait, renewed early, dropped when refused."""

from __future__ import annotations

import asyncio
import inspect
import re
from collections.abc import Awaitable, Mapping
from typing import Any, Protocol

from penstock.clock import Clock
from penstock.targets.http.auth import RenewedToken
from penstock.targets.model import ErrorKind, TargetError

__all__ = ["AccessToken", "Credential", "Tokens"]

EARLY_S = 300.0
UNREACHED = frozenset({"ServiceRequestError", "ServiceResponseError"})
"""What azure-core, which is not needed here, raises when nobody answers."""
ENTRA_CODE = re.compile(r"\bAADSTS\d+\b")


class AccessToken(Protocol):
    """What a credential gives: the token and when it expires, in seconds since 1970."""

    @property
    def token(self) -> str: ...
    @property
    def expires_on(self) -> int: ...


class Credential(Protocol):
    """Anything like the credentials of azure-identity, of either kind: `get_token` may block or be awaited."""

    def get_token(self, *scopes: str, **kwargs: Any) -> AccessToken | Awaitable[AccessToken]: ...


class Tokens:
    """The current token of every source."""

    def __init__(self, credentials: Mapping[str, Credential], scope: str, clock: Clock) -> None:
        self._credentials = credentials
        self._scope = scope
        self._clock = clock
        self._held = {source: RenewedToken(early_s=EARLY_S) for source in credentials}

    async def get(self, source: str) -> str:
        """A token that is good for some minutes; whoever asks while it is fetched waits for the same one."""
        return await self._held[source].get(self._clock, lambda: self._fetch(source))

    def refuse(self, source: str, token: str) -> None:
        """The platform refused this token: drop it, unless another has replaced it since."""
        self._held[source].refuse(token)

    async def _fetch(self, source: str) -> tuple[str, float]:
        asked_at_s = self._clock.now_us() / 1e6
        try:
            given = await _ask(self._credentials[source], self._scope)
            return given.token, given.expires_on - asked_at_s
        except Exception as error:
            # What a credential says may hold its secret, so only its kind and the identity platform's code are kept.
            code = ENTRA_CODE.search(str(error))
            reason = f"{type(error).__name__} {code[0]}" if code else type(error).__name__
            names = {base.__name__ for base in type(error).__mro__}
            kind = ErrorKind.CONNECTION if isinstance(error, OSError) or names & UNREACHED else ErrorKind.TOKEN
            failed = TargetError(f"the credential {source!r} gave no token: {reason}", kind=kind, code=code and code[0])
        raise failed


async def _ask(credential: Credential, scope: str) -> AccessToken:
    """Ask on a thread, since most credentials block; those that do not give something to await."""
    if inspect.iscoroutinefunction(credential.get_token):
        answer: AccessToken = await credential.get_token(scope)
        return answer
    given = await asyncio.to_thread(credential.get_token, scope)
    return await given if inspect.isawaitable(given) else given
