"""The calls that share a pool: who waits for a slot, and in which order."""

from __future__ import annotations

import asyncio
from collections import deque
from enum import Enum, auto

from penstock.targets.rules.breaker import Breaker
from penstock.targets.rules.pace import Pace
from penstock.targets.rules.widths import Width

__all__ = ["Party", "Source", "Turn"]


class Source:
    """One owner of a quota."""

    __slots__ = ("breaker", "in_flight", "name", "pace", "width")

    def __init__(self, name: str, width: Width, breaker: Breaker) -> None:
        self.name, self.width, self.breaker = name, width, breaker
        self.pace = Pace()
        self.in_flight = 0

    @property
    def load(self) -> float:
        """The share of its width that is taken."""
        return self.in_flight / self.width.now


class Turn(Enum):
    """Where in the line of its bulk call a batch waits."""

    NEW = auto()  # behind what was begun
    PIECE = auto()  # of a batch that was split: behind other pieces
    RETRY = auto()  # first: a remote in trouble is tried by one batch, not by all of them in turn


class Party:
    """One bulk call in the pool: how much it may take, what it has, and who of it waits."""

    def __init__(self, width_max: int | None) -> None:
        self.width_max = width_max
        self.in_flight = 0
        self.in_flight_max = 0
        self.waited_s = 0.0
        self._counted_s = 0.0
        self._begun: deque[asyncio.Future[Source]] = deque()
        self._fresh: deque[asyncio.Future[Source]] = deque()

    @property
    def is_full(self) -> bool:
        """Whether the call has all the slots it wanted."""
        return self.width_max is not None and self.in_flight >= self.width_max

    @property
    def is_waiting(self) -> bool:
        """Whether anyone of the call waits for a slot."""
        while self._begun and self._begun[0].done():
            self._begun.popleft()
        while self._fresh and self._fresh[0].done():
            self._fresh.popleft()
        return bool(self._begun or self._fresh)

    def line_up(self, turn: Turn) -> asyncio.Future[Source]:
        """Take a place in the line."""
        future: asyncio.Future[Source] = asyncio.get_running_loop().create_future()
        match turn:
            case Turn.NEW:
                self._fresh.append(future)
            case Turn.PIECE:
                self._begun.append(future)
            case Turn.RETRY:
                self._begun.appendleft(future)
        return future

    def next(self) -> asyncio.Future[Source]:
        """The first in the line."""
        return (self._begun or self._fresh).popleft()

    def count_wait(self, held_before_s: float, held_s: float) -> None:
        """Add time in which every source was throttled; what several waited for together counts once."""
        self.waited_s += max(0.0, held_s - max(held_before_s, self._counted_s))
        self._counted_s = max(held_s, self._counted_s)
