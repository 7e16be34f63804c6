"""Waits of paced calls on a manual clock: no real time passes, and none that nobody waits for."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from penstock.clock import ManualClock

__all__ = ["Timers", "most_within_a_second", "turn"]


async def turn() -> None:
    """Let everybody do what it can."""
    for _ in range(20):
        await asyncio.sleep(0)


class Timers:
    """Waits on a manual clock: time moves to the end of the wait that ends first."""

    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock
        self.waits: list[tuple[float, asyncio.Event]] = []

    async def happens_within(self, event: asyncio.Event, seconds: float) -> bool:
        over = asyncio.Event()
        wait = (self.clock.monotonic() + seconds, over)
        self.waits.append(wait)
        tasks = [asyncio.ensure_future(over.wait()), asyncio.ensure_future(event.wait())]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            if wait in self.waits:
                self.waits.remove(wait)
        return event.is_set()

    async def run(self, until: float) -> None:
        """Let time pass."""
        await turn()
        while self.waits and self._first()[0] <= until:
            await self.next()
        self.clock.advance(max(0.0, until - self.clock.monotonic()))

    async def next(self) -> None:
        """Let time pass until the next wait is over."""
        end, over = self._first()
        self.clock.advance(max(0.0, end - self.clock.monotonic()) + 2e-6)  # it counts whole microseconds
        self.waits.remove((end, over))
        over.set()
        await turn()

    def _first(self) -> tuple[float, asyncio.Event]:
        return min(self.waits, key=lambda wait: wait[0])


def most_within_a_second(starts: Sequence[float]) -> int:
    """The most calls that began within any second, but for what is lost in rounding."""
    return max((sum(start <= other < start + 0.9999 for other in starts) for start in starts), default=0)
