"""A few connections, opened when first needed and thrown away when they broke."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from penstock.targets.model import Limit, TargetError
from penstock.targets.per_loop import PerLoop

__all__ = ["FULL_WAIT_S", "ConnectionPool"]

C = TypeVar("C")


FULL_WAIT_S = 1.0
"""How long to leave a server alone that has no room for a single connection."""
RETRY_S = 60.0
"""After so long a connection that the server refused for want of room is tried again."""


@dataclass(slots=True)
class _Held(Generic[C]):
    """The connections of one event loop."""

    free: asyncio.Semaphore
    idle: list[C] = field(default_factory=list)
    discarded: set[C] = field(default_factory=set)
    """Those in use that were thrown away."""
    generation: int = 0
    opened: int = 0
    refused: int = 0
    """Connections that the server has no room for; they are not counted as free."""
    refused_at_s: float = 0.0

    def try_again(self) -> None:
        """Count refused connections as free again, once none is left or some time has passed."""
        if self.refused and (not self.opened or asyncio.get_running_loop().time() - self.refused_at_s > RETRY_S):
            self.refused -= 1
            self.free.release()


class ConnectionPool(Generic[C]):
    """At most `connections` at once, and fewer where the server has no room for so many.

    A connection is kept for reuse only when its use ended well or was refused.
    """

    def __init__(
        self,
        connections: int,
        *,
        connect: Callable[[], Awaitable[C]],
        close: Callable[[C], Awaitable[None]],
        drop: Callable[[C], None],
        is_alive: Callable[[C], bool],
    ) -> None:
        self._connect, self._close, self._drop, self._is_alive = connect, close, drop, is_alive
        self._held: PerLoop[_Held[C]] = PerLoop(lambda: _Held(asyncio.Semaphore(connections)))

    @asynccontextmanager
    async def take(self) -> AsyncIterator[C]:
        """A connection for the length of the block."""
        held = self._held.get()
        async with held.free:
            generation = held.generation
            connection = await self._open(held)
            is_usable = False
            try:
                yield connection
                is_usable = True
            except TargetError:
                is_usable = True
                raise
            finally:
                is_current = generation == held.generation and connection not in held.discarded
                if is_usable and is_current and self._is_alive(connection):
                    held.idle.append(connection)
                else:
                    held.discarded.discard(connection)
                    self._let_go(held, connection)
                held.try_again()

    def discard(self, connection: C) -> None:
        """Throw away a connection that is in use: nobody knows what it would say next."""
        self._drop(connection)
        self._held.get().discarded.add(connection)

    def drop_all(self) -> None:
        """Throw away every connection; those in use when they are given back."""
        held = self._held.get()
        held.generation += 1
        while held.idle:
            self._let_go(held, held.idle.pop())

    async def aclose(self) -> None:
        """Take leave of idle connections; those in use are dropped when they are given back."""
        held = self._held.get()
        held.generation += 1
        while held.idle:
            held.opened -= 1
            await self._close(held.idle.pop())

    def _let_go(self, held: _Held[C], connection: C) -> None:
        self._drop(connection)
        held.opened -= 1

    async def _open(self, held: _Held[C]) -> C:
        while True:
            while held.idle:
                connection = held.idle.pop()
                if self._is_alive(connection):
                    return connection
                self._let_go(held, connection)
            try:
                connection = await self._connect()
            except TargetError as error:
                if error.limit is not Limit.CONCURRENCY or not held.opened:
                    raise
                held.refused_at_s = asyncio.get_running_loop().time()
                await held.free.acquire()
                held.refused += 1
            else:
                held.opened += 1
                return connection
