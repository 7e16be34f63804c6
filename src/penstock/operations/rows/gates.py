"""When a call of user code may begin: within the lease, and within its step's limits: so many at once, or a second.

Limits hold over all workers: each has some units of every limit (`limit_shares`), and lets through what they allow.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from math import floor
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from penstock.clock import Clock

__all__ = [
    "FOREVER",
    "Gate",
    "Limiter",
    "NoUnits",
    "Pace",
    "Refused",
    "RuntimeLimit",
    "StartLimit",
    "happens_within",
]


FOREVER = 2**63


class Refused(Exception):
    """A call may not begin here now: its row is put back, and its chunk given up."""


class StartLimit:
    """Until when user code may start, in ticks. It is checked directly before each call of user code.

    Another thread moves the limit, so it is read anew each time.
    """

    __slots__ = ("_ticks_ns", "until_ns")

    def __init__(self, clock: Clock, until_ns: int = 0) -> None:
        self._ticks_ns, self.until_ns = clock.ticks_ns, until_ns

    def may_start(self) -> bool:
        """Whether user code may start now."""
        return self._ticks_ns() < self.until_ns

    def check(self) -> None:
        """Raise `Refused` unless user code may start now."""
        if self._ticks_ns() >= self.until_ns:
            raise Refused


class RuntimeLimit:
    """The same for one runtime of an operation, which may be over before the lease is."""

    __slots__ = ("_lease", "is_over")

    def __init__(self, lease: StartLimit) -> None:
        self._lease, self.is_over = lease, False

    @property
    def until_ns(self) -> int:
        """Until when user code may start, in ticks."""
        return 0 if self.is_over else self._lease.until_ns

    def may_start(self) -> bool:
        """Whether user code may start now."""
        return not self.is_over and self._lease.may_start()

    def check(self) -> None:
        """Raise `Refused` unless user code may start now."""
        if self.is_over:
            raise Refused
        self._lease.check()


class NoUnits(Refused):
    """We hold no unit of a limit that the call needs."""


class Limiter(Protocol):
    """A limit of a step, of which this worker holds some units."""

    limit: int  # the units of all workers together
    units: int  # ours

    @property
    def in_use(self) -> int:
        """The units that we cannot give back now."""

    def hold(self, units: int, *, rests: bool) -> None:
        """Hold so many units from now on; new ones rest first (`rests`) when others may just have used them."""


class Gate:
    """Lets as many calls run at once as we have units; their number may change while some run."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.units = 0
        self._inside = 0
        self._queue: deque[asyncio.Future[None]] = deque()

    @property
    def in_use(self) -> int:
        return max(self.units, self._inside)

    def hold(self, units: int, *, rests: bool = False) -> None:
        self.units = units
        if units:
            self._admit()
            return
        while self._queue:
            turn = self._queue.popleft()
            if not turn.done():
                turn.set_exception(NoUnits())

    @asynccontextmanager
    async def entered(self) -> AsyncIterator[None]:
        """Run a call inside, as soon as there is room; `NoUnits` when we hold none."""
        if not self.units:
            raise NoUnits
        if self._inside < self.units and not self._queue:
            self._inside += 1
        else:
            await self._wait()
        try:
            if self._inside > self.units:  # they have become fewer since we were let in
                raise NoUnits
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
            if turn.done() and not turn.cancelled() and turn.exception() is None:  # let in and cancelled at once
                self._inside -= 1
                self._admit()
            raise

    def _admit(self) -> None:
        while self._queue and self._inside < self.units:
            turn = self._queue.popleft()
            if not turn.done():
                self._inside += 1
                turn.set_result(None)


class Pace:
    """Lets at most `rate` calls a second through, over all workers, evenly spaced.

    A unit is good for a call every `rest_s` seconds, whoever holds it: one that others may just have used rests first.
    Two calls of ours are never closer than our units allow, counted from when the earlier one really began.
    """

    def __init__(self, rate: float, monotonic: Callable[[], float]) -> None:
        self.limit = max(1, floor(rate))
        self.rest_s = self.limit / rate
        self.units = 0
        self._resting: list[tuple[float, int]] = []  # from when on so many of our units, the newest, can be used
        self._last = float("-inf")  # when our last call began
        self._turn = asyncio.Lock()
        self._change = asyncio.Event()
        self._monotonic = monotonic

    @property
    def in_use(self) -> int:
        return self.units

    def hold(self, units: int, *, rests: bool) -> None:
        more = units - self.units
        if not more:
            return
        if more > 0:
            # Where no other worker takes part, one gap is enough to be apart from whoever had them before.
            rest_s = self.rest_s if rests else self.rest_s / units
            self._resting.append((self._monotonic() + rest_s, more))
        while more < 0 and self._resting:  # those that rest go first
            end, resting = self._resting.pop()
            if resting + more > 0:
                self._resting.append((end, resting + more))
            more += resting
        self.units = units
        self._change.set()

    async def wait(self, ready: Callable[[], Awaitable[Any]] | None = None) -> Any:
        """Wait until the next call may begin, and then until it is `ready`; `NoUnits` when we hold none."""
        async with self._turn:
            at, found = await self._time(self._last), None
            if ready is not None:
                found = await ready()
                at = await self._time(at)  # we may hold fewer units by now
            self._last = at
            return found

    async def _time(self, after: float) -> float:
        """When the next call may begin, once that has come."""
        at = max(self._monotonic(), after)
        while (start := self._next()) > at:
            self._change.clear()
            is_time = not await happens_within(self._change, start - at)
            # A manual clock does not move while we wait: it counts as having reached `start`.
            at = max(self._monotonic(), start if is_time else at)
        return at

    def _next(self) -> float:
        """When our next call may begin."""
        if not self.units:
            raise NoUnits
        now = max(self._monotonic(), self._last)
        self._resting = [(end, units) for end, units in self._resting if end > now]
        usable = max(0, self.units - sum(units for _, units in self._resting))
        starts = [self._last + self.rest_s / usable] if usable else []
        for end, units in sorted(self._resting):
            usable = min(self.units, usable + units)
            starts.append(max(end, self._last + self.rest_s / usable))
        return min(starts)


async def happens_within(event: asyncio.Event, seconds: float | None) -> bool:
    """Whether an event happens before so much time has passed; for None, wait for it without a limit."""
    try:
        async with asyncio.timeout(seconds):
            return await event.wait()
    except TimeoutError:
        return False
