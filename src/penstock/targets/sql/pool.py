"""A few connections, opened when first needed and thrown away when they broke."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Generic, TypeVar

from penstock.targets.model import TargetError

__all__ = ["Pool"]

C = TypeVar("C")


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
        self._free = asyncio.Semaphore(connections)
        self._idle: list[C] = []
        self._discarded: list[C] = []
        self._generation = 0

    @asynccontextmanager
    async def take(self) -> AsyncIterator[C]:
        """A connection for the length of the block."""
        async with self._free:
            generation = self._generation
            connection = await self._open()
            is_usable = False
            try:
                yield connection
                is_usable = True
            except TargetError:
                is_usable = True
                raise
            finally:
                if self._was_discarded(connection):
                    pass
                elif is_usable and generation == self._generation and self._is_alive(connection):
                    self._idle.append(connection)
                else:
                    self._drop(connection)

    def discard(self, connection: C) -> None:
        """Throw away a connection that is in use: nobody knows what it would say next."""
        self._drop(connection)
        self._discarded.append(connection)

    def drop_all(self) -> None:
        """Throw away every connection; those in use when they are given back."""
        self._generation += 1
        while self._idle:
            self._drop(self._idle.pop())

    async def aclose(self) -> None:
        """Take leave of idle connections; those in use are dropped when they are given back."""
        self._generation += 1
        while self._idle:
            await self._close(self._idle.pop())

    def _was_discarded(self, connection: C) -> bool:
        remaining = [other for other in self._discarded if other is not connection]
        was, self._discarded = len(remaining) < len(self._discarded), remaining
        return was

    async def _open(self) -> C:
        while self._idle:
            connection = self._idle.pop()
            if self._is_alive(connection):
                return connection
            self._drop(connection)
        return await self._connect()
