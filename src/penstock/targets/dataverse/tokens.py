"""Access tokens of the sources: fetched once for all who wait, renewed early, dropped when refused."""

from __future__ import annotations

import asyncio
import inspect
import re
from collections import defaultdict
from collections.abc import Awaitable, Mapping
from typing import Any, Protocol

from penstock.clock import Clock
from penstock.targets.model import ErrorKind, TargetError
from penstock.targets.per_loop import PerLoop

__all__ = ["AccessToken", "Credential", "Tokens"]

EARLY_S = 300
EARLY_SHARE = 0.1  # of a short life
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
        self._held: dict[str, tuple[str, float]] = {}  # the token and when to renew it
        self._turns: PerLoop[defaultdict[str, asyncio.Lock]] = PerLoop(lambda: defaultdict(asyncio.Lock))

    async def get(self, source: str) -> str:
        """A token that is good for some minutes; whoever asks while it is fetched waits for the same one."""
        async with self._turns.get()[source]:
            held = self._held.get(source)
            if held is None or self._now_s() >= held[1]:
                held = self._held[source] = await self._fetch(source)
            return held[0]

    def refuse(self, source: str, token: str) -> None:
        """The platform refused this token: drop it, unless another has replaced it since."""
        held = self._held.get(source)
        if held is not None and held[0] == token:
            del self._held[source]

    def _now_s(self) -> float:
        return self._clock.now_us() / 1e6

    async def _fetch(self, source: str) -> tuple[str, float]:
        asked_at = self._now_s()
        try:
            given = await _ask(self._credentials[source], self._scope)
            life_s = given.expires_on - asked_at
            return given.token, given.expires_on - min(EARLY_S, life_s * EARLY_SHARE)
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
