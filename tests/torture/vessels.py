"""Processes in miniature: workers and callers of one thread that can die, or go deaf, like real ones."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any
from unittest.mock import patch

from penstock import Context, failpoints
from penstock.clock import ManualClock
from penstock.errors import PenstockError
from penstock.operations.worker.worker import Worker

from . import ordeal
from .journal import Journal, Line, What
from .seeded_loop import without_threads

__all__ = ["CURRENT", "LATE_S", "SLOW_S", "MemoryJournal", "Process", "Sunk", "Vessel", "under_glass"]

LATE_S = 3.0  # more than a lease
SLOW_S = 0.6  # less
STEP_S = 0.15  # long enough that most of what befalls a worker finds it with rows in hand


class Sunk(BaseException):
    """This process is dead: nothing of it may be written any more."""


class MemoryJournal(Journal):
    """A journal for processes that only seem to be some."""

    def __init__(self, who: str, lines: list[Line], clock: ManualClock) -> None:
        super().__init__(who)
        self._lines, self._clock = lines, clock

    def write(self, line: Line) -> None:
        self._lines.append(line)

    def moment(self) -> float:
        return self._clock.monotonic()

    def wall_us(self) -> int:
        return self._clock.now_us()


class Process:
    """What can die: a worker or a caller. It dies at once, or at the next hit of a point."""

    def __init__(self, journal: Journal) -> None:
        self.journal = journal
        self.is_sunk = False
        self.point: str | None = None

    def hit(self, point: str) -> None:
        """Pass a point; the dead do not."""
        if self.is_sunk:
            raise Sunk(point)
        self.journal.hit(point, kills=point == self.point)
        if point == self.point:
            self.is_sunk = True
            raise Sunk(point)

    def note(self, what: What, ctx: Context[Any]) -> None:
        """Witness a step, unless we are dead and it never happened."""
        if not self.is_sunk:
            self.journal.note(what, ctx)


CURRENT: ContextVar[Process | None] = ContextVar("CURRENT", default=None)


class Vessel(Process):
    """A worker process in miniature."""

    def __init__(self, journal: Journal, open_engine: Callable[[], Any], rng: random.Random) -> None:
        super().__init__(journal)
        self._open, self._rng = open_engine, rng
        self.is_deaf = False
        self.late_s = 0.0  # how late its writes come at most
        self.worker: Worker | None = None
        self.leave = asyncio.Event()
        self.task = asyncio.create_task(self._live(), name=journal.who)

    async def _live(self) -> None:
        CURRENT.set(self)
        with contextlib.suppress(Sunk, asyncio.CancelledError, PenstockError):
            async with self._open() as penstock, penstock.worker() as worker:
                self.worker = worker
                self._beat, worker.lease.beat = worker.lease.beat, self._beat_unless_deaf
                self._transact, worker.db.transaction = worker.db.transaction, self._transact_late
                await worker.run(self.leave)

    async def _beat_unless_deaf(self, over: Any = None) -> bool:
        return True if self.is_deaf else await self._beat(over)

    async def _transact_late(self, work: Any, point: str = "transaction") -> Any:
        if self.late_s:
            await asyncio.sleep(self._rng.random() * self.late_s)
        return await self._transact(work, point)

    async def sink(self) -> None:
        """Die where we stand."""
        self.is_sunk = True
        if self.worker is not None:
            self.worker.tasks.tell_to_end()
        self.task.cancel()
        await self.ended()

    async def ended(self) -> None:
        """Return when nothing of it runs any more."""
        await asyncio.gather(self.task, return_exceptions=True)


@contextmanager
def under_glass() -> Iterator[None]:
    """No threads, no real time, no noise."""

    def hit(point: str) -> None:
        process = CURRENT.get()
        if process is not None:
            process.hit(point)

    def note(what: What, ctx: Context[Any]) -> None:
        process = CURRENT.get()
        if process is not None:
            process.note(what, ctx)

    ordeal.set_witness(note)
    patience = patch.multiple(ordeal, PACE_S=STEP_S), patch("time.sleep", lambda seconds: None)
    with without_threads(), patience[0], patience[1], failpoints.armed(hit):
        yield
