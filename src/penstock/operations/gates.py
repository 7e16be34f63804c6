"""Per-step limits: how many at once, and how many a second."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

__all__ = ["Pace"]


class Pace:
    """Lets at most `rate` calls a second through, evenly spaced; `burst` may go at once after a pause."""

    def __init__(self, rate: float, monotonic: Callable[[], float], *, burst: int = 1) -> None:
        self._gap = 1.0 / rate
        self._slack = self._gap * (burst - 1)
        self._monotonic = monotonic
        self._next = 0.0

    def reserve(self, calls: int = 1) -> float:
        """Take the next `calls` places and say how long to wait for them."""
        now = self._monotonic()
        place = max(self._next, now - self._slack)
        self._next = place + self._gap * calls
        return max(0.0, place - now)

    async def wait(self, calls: int = 1) -> None:
        """Wait for our turn."""
        delay = self.reserve(calls)
        if delay:
            await asyncio.sleep(delay)
