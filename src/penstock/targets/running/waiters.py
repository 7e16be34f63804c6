"""Who waits for what in a pool: for a slot, for a table that is being built, for a fresh token."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, defaultdict, deque
from enum import Enum, auto

from penstock.targets.rules.limits import Source
from penstock.targets.target import Target

__all__ = ["CallQueue", "Priority", "SourceRefresh", "TableGate"]

log = logging.getLogger("penstock.targets")


class Priority(Enum):
    """Where in the line of its bulk call a batch waits."""

    NEW = auto()  # behind what was begun
    PIECE = auto()  # of a batch that was split: behind other pieces
    RETRY = auto()  # first: a remote in trouble is tried by one batch, not by all of them in turn


class CallQueue:
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

    def line_up(self, priority: Priority) -> asyncio.Future[Source]:
        """Take a place in the line."""
        future: asyncio.Future[Source] = asyncio.get_running_loop().create_future()
        match priority:
            case Priority.NEW:
                self._fresh.append(future)
            case Priority.PIECE:
                self._begun.append(future)
            case Priority.RETRY:
                self._begun.appendleft(future)
        return future

    def next(self) -> asyncio.Future[Source]:
        """The first in the line."""
        return (self._begun or self._fresh).popleft()

    def count_wait(self, held_before_s: float, held_s: float) -> None:
        """Add time in which every source was throttled; what several waited for together counts once."""
        self.waited_s += max(0.0, held_s - max(held_before_s, self._counted_s))
        self._counted_s = max(held_s, self._counted_s)


class TableGate:
    """Tables on which a batch met a race: whoever met it first tries alone until it is through or gives up."""

    def __init__(self) -> None:
        self._holders: dict[str, object] = {}
        self._freed = asyncio.Event()

    def begin(self, table: str, who: object) -> None:
        """`who` met a race; it holds the table unless someone already does."""
        self._holders.setdefault(table, who)

    def end(self, table: str, who: object) -> None:
        """`who` is through or has given up; does nothing unless it held the table."""
        if self.is_held_by(table, who):
            del self._holders[table]
            self._freed.set()

    def is_held_by(self, table: str, who: object) -> bool:
        """Whether `who` itself holds the table."""
        return self._holders.get(table) is who

    def is_held(self, table: str, who: object) -> bool:
        """Whether someone else holds the table."""
        return table in self._holders and not self.is_held_by(table, who)

    async def wait_until_free(self, table: str, who: object) -> None:
        """Wait until nobody else holds the table."""
        while self.is_held(table, who):
            self._freed.clear()
            await self._freed.wait()


class SourceRefresh:
    """One renewal at a time for each source of a target; a call that started before the last one asks for none."""

    def __init__(self) -> None:
        self._locks: defaultdict[tuple[int, str], asyncio.Lock] = defaultdict(asyncio.Lock)
        self._done: Counter[tuple[int, str]] = Counter()

    def generation(self, target: Target, source: str) -> int:
        """How often the source was renewed; a call remembers it when it starts."""
        return self._done[id(target), source]

    async def renew(self, target: Target, source: str, generation: int) -> None:
        """Renew unless that was done since; a renewal that fails is logged, and the next call will tell."""
        key = id(target), source
        async with self._locks[key]:
            if self._done[key] != generation:
                return
            try:
                await target.refresh(source)
            except Exception as error:
                log.warning("source %r could not be renewed: %r", source, error)
            self._done[key] += 1
