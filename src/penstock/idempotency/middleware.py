"""An ASGI middleware: a request with an `Idempotency-Key` is carried out once, and repeats get the same answer."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

from penstock.errors import Unavailable
from penstock.idempotency.answering import Send
from penstock.idempotency.body import Receive
from penstock.idempotency.claim import Observe
from penstock.idempotency.exchange import SCOPE_KEY, Application, Exchange, Guarded, Limits
from penstock.idempotency.header import KeyMalformed, key_of
from penstock.idempotency.model import Address
from penstock.idempotency.routes import RuleFor, Scope, is_missed, marked_routes
from penstock.idempotency.service import Idempotency

__all__ = ["SCOPE_KEY", "IdempotencyMiddleware", "one_caller"]

log = logging.getLogger("penstock.idempotency")

Caller = Callable[[Scope], str | Sequence[str] | Awaitable[str | Sequence[str]]]

MIB = 1 << 20
SWEEP_EVERY_S = 60
SWEEPS_MAX = 100


def one_caller(scope: Scope) -> Sequence[str]:
    """For applications with one caller only: all requests share their keys, and see each other's answers."""
    return ()


class IdempotencyMiddleware:
    """Guards an application's requests by their keys.

    `keys` is the URL of a database or of Redis, an `Idempotency`, or a function that gives one. `caller` tells who
    sends a request, its tenant and principal for instance: callers never see, nor get in the way of, each other's keys.
    `rules` says which requests are guarded: by default the endpoints that are marked `@idempotent()`.
    """

    def __init__(
        self,
        app: Application,
        *,
        keys: str | Idempotency | Callable[[], Idempotency],
        caller: Caller,
        rules: RuleFor = marked_routes,
        memory_bytes: int = MIB,
        body_bytes_max: int = 1024 * MIB,
        answer_bytes_max: int = MIB,
        observe: Callable[[str], None] | None = None,
        help_url: str | None = None,
    ) -> None:
        self.app = app
        self._keys, self._caller, self._rules = keys, caller, rules
        self._limits = Limits(memory_bytes, body_bytes_max, answer_bytes_max)
        self._listener, self._observe = observe, Observe(observe)
        self._help_url = help_url
        self._opened: Idempotency | None = keys if isinstance(keys, Idempotency) else None
        self._opening = asyncio.Lock()
        self._open_things = AsyncExitStack()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._lifespan(scope, receive, send)
            return
        rule = self._rules(scope) if scope["type"] == "http" else None
        if rule is None:
            await self.app(scope, receive, send)
            if self._rules is marked_routes and is_missed(scope):
                log.error("%s is marked and was not guarded: give rules=for_paths(…)", scope["path"])
            return
        exchange = Exchange(scope, receive, send, self._limits, self._observe, self._help_url)
        try:
            key = key_of(scope["headers"])
        except KeyMalformed as error:
            await exchange.refuse("malformed", str(error))
            return
        if key is not None:
            address = Address.of(key, await self._scope_of(scope))
            try:
                keys = await self.opened()
            except Unavailable as error:
                await exchange.unavailable(error)
            else:
                await exchange.guard(Guarded(self.app, keys, address, rule))
        elif rule.required:
            await exchange.refuse("missing", "send a new Idempotency-Key with each request, the same to repeat one")
        else:
            await self.app(scope, receive, send)

    async def _scope_of(self, scope: Scope) -> Sequence[str]:
        found = self._caller(scope)
        if inspect.isawaitable(found):
            found = await found
        parts = (found,) if isinstance(found, str) else tuple(found)
        if not all(isinstance(part, str) for part in parts):
            raise TypeError(f"a caller is told by text; found {[type(part).__name__ for part in parts]}")
        return parts

    # --- the keys

    async def opened(self) -> Idempotency:
        """The keys, opened when first asked for."""
        if self._opened is None:
            async with self._opening:
                if self._opened is None:
                    self._opened = await self._open()
        return self._opened

    async def _open(self) -> Idempotency:
        if isinstance(self._keys, str):
            return await self._open_things.enter_async_context(Idempotency.open(self._keys, observe=self._listener))
        return self._keys if isinstance(self._keys, Idempotency) else self._keys()

    async def _lifespan(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Open the keys before the application starts, and close them when it has ended."""
        first = [await receive()]
        if isinstance(self._keys, str):
            try:
                await self.opened()
            except Exception as error:
                await send({"type": "lifespan.startup.failed", "message": str(error)})
                raise

        async def receive_rest() -> Any:
            return first.pop() if first else await receive()

        async with self._swept() as sweeper:

            async def send_last(message: Any) -> None:
                if message["type"] in ("lifespan.shutdown.complete", "lifespan.shutdown.failed"):
                    await _end(sweeper)
                    await self._open_things.aclose()
                await send(message)

            await self.app(scope, receive_rest, send_last)

    @asynccontextmanager
    async def _swept(self) -> AsyncIterator[asyncio.Task[None]]:
        sweeper = asyncio.create_task(self._sweep(), name="sweep of idempotency keys")
        try:
            yield sweeper
        finally:
            await _end(sweeper)
            await self._open_things.aclose()

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(SWEEP_EVERY_S)
            try:
                keys = await self.opened()
                for _ in range(SWEEPS_MAX):
                    if not await keys.sweep():
                        break
            except Exception as error:  # the next sweep may do better
                log.warning("keys were not swept: %s", error)


async def _end(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.wait({task})
