"""Per-step limits: how many at once, and how many a second. They hold over all workers: each takes its share."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass

__all__ = ["Gate", "Pace", "Share"]


@dataclass(frozen=True, slots=True)
class Share:
    """This worker's place among the live ones, counted from 0."""

    rank: int = 0
    workers: int = 1

    def of(self, limit: int) -> int:
        """Our part of a limit: the parts of all workers add up to it, so some may have none."""
        return limit // self.workers + int(self.rank < limit % self.workers)


class Gate:
    """Lets so many through at once; the number may change while some are inside."""

    def __init__(self, limit: int) -> None:
        self.limit = self.capacity = limit
        self._inside = 0
        self._queue: deque[asyncio.Future[None]] = deque()

    def take_share(self, share: Share) -> None:
        """Hold our part of the limit from now on."""
        self.capacity = share.of(self.limit)
        self._admit()

    @asynccontextmanager
    async def entered(self) -> AsyncIterator[None]:
        """Be inside, once there is room."""
        if self._inside < self.capacity and not self._queue:
            self._inside += 1
        else:
            await self._wait()
        try:
            yield
        finally:
            self._inside -= 1
            self._admit()

    async def _wait(self) -> None:
        turn = asyncio.get_running_loop().create_future()
        self._queue.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():  # admitted and cancelled at once
                self._inside -= 1
                self._admit()
            raise

    def _admit(self) -> None:
        while self._queue and self._inside < self.capacity:
            turn = self._queue.popleft()
            if not turn.done():
                self._inside += 1
                turn.set_result(None)


class Pace:
    """Lets at most `rate` calls a second through, evenly spaced."""

    def __init__(self, rate: float, monotonic: Callable[[], float]) -> None:
        self.rate = rate
        self._gap = 1.0 / rate
        self._monotonic = monotonic
        self._next = 0.0

    def take_share(self, share: Share) -> None:
        """Hold our part of the rate from now on."""
        self._gap = share.workers / self.rate

    def reserve(self) -> float:
        """Take the next place and say how long to wait for it."""
        now = self._monotonic()
        place = max(self._next, now)
        self._next = place + self._gap
        return place - now

    async def wait(self) -> None:
        """Wait for our turn."""
        delay = self.reserve()
        if delay > 0:
            await asyncio.sleep(delay)
