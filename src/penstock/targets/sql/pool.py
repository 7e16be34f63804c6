"""A few connections, opened when first needed and thrown away when they broke."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from penstock.targets.loops import PerLoop
from penstock.targets.model import TargetError

__all__ = ["Pool"]

C = TypeVar("C")


@dataclass(slots=True)
class _Held(Generic[C]):
    """The connections of one event loop."""

    free: asyncio.Semaphore
    idle: list[C] = field(default_factory=list)
    discarded: list[C] = field(default_factory=list)
    generation: int = 0

    def was_discarded(self, connection: C) -> bool:
        """Whether the connection was thrown away while it was in use."""
        remaining = [other for other in self.discarded if other is not connection]
        was, self.discarded = len(remaining) < len(self.discarded), remaining
        return was


class Pool(Generic[C]):
    """At most `connections` at once. A connection is kept for reuse only when its use ended well or was refused."""

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
            connection = await self._open(held.idle)
            is_usable = False
            try:
                yield connection
                is_usable = True
            except TargetError:
                is_usable = True
                raise
            finally:
                if held.was_discarded(connection):
                    pass
                elif is_usable and generation == held.generation and self._is_alive(connection):
                    held.idle.append(connection)
                else:
                    self._drop(connection)

    def discard(self, connection: C) -> None:
        """Throw away a connection that is in use: nobody knows what it would say next."""
        self._drop(connection)
        self._held.get().discarded.append(connection)

    def drop_all(self) -> None:
        """Throw away every connection; those in use when they are given back."""
        held = self._held.get()
        held.generation += 1
        while held.idle:
            self._drop(held.idle.pop())

    async def aclose(self) -> None:
        """Take leave of idle connections; those in use are dropped when they are given back."""
        held = self._held.get()
        held.generation += 1
        while held.idle:
            await self._close(held.idle.pop())

    async def _open(self, idle: list[C]) -> C:
        while idle:
            connection = idle.pop()
            if self._is_alive(connection):
                return connection
            self._drop(connection)
        return await self._connect()
