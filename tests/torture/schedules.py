"""Seeded schedules: several workers and callers on one SQLite file, in one thread, in an order drawn from a seed.

A worker is a `Vessel`: it can be sunk at any point around a COMMIT or at any await, or go deaf for a while: its heart
stops and its writes come late, so that others take its chunks while it still believes to own them.
`python -m tests.torture.schedules --seeds 1000` tries many; `--seed 17` one of them, exactly as it was.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import logging
import random
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any
from unittest.mock import patch

from penstock import Context, Penstock, failpoints
from penstock.clock import Entropy, ManualClock
from penstock.errors import PenstockError
from penstock.operations.worker import Worker
from penstock.settings import Settings

from . import ordeal
from .campaign import PACE
from .client_main import Client
from .facts import gather
from .faults import CLIENT_POINTS, WORKER_POINTS, both_sides
from .journal import Effect, Journal, Line, Said, What
from .observer import Observer, Sightings
from .oracle import Finding, judge
from .ordeal import OPERATIONS
from .seeded_loop import SeededLoop, Stuck, inline_sqlite

__all__ = ["play"]

STORM_S, CALM_S = 12.0, 180.0
VESSELS, ROWS_MAX = 3, 6
STEP_S = 0.15  # long enough that most of what befalls a worker finds it with rows in hand
LATE_S = 2 * PACE["lease_s"]
# Time costs nothing here, but looking does.
CALMER = {"chunk_rows": 3, "flush_rows": 3, "wake_poll_s": 0.4, "control_poll_s": 0.6}
OVERHEARD = ("Pending", "Validating", "Running", "Retrying", "Paused", "Stopping")


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

    def __init__(self, journal: Journal, world: World) -> None:
        super().__init__(journal)
        self.world = world
        self.is_deaf = False
        self.worker: Worker | None = None
        self.leave = asyncio.Event()
        self.task = asyncio.create_task(self._live(), name=journal.who)

    async def _live(self) -> None:
        CURRENT.set(self)
        with contextlib.suppress(Sunk, asyncio.CancelledError, PenstockError):
            async with self.world.open() as penstock, penstock.worker() as worker:
                self.worker = worker
                self._beat, worker.lease.beat = worker.lease.beat, self._beat_unless_deaf  # type: ignore[method-assign]
                self._transact, worker.db.transaction = worker.db.transaction, self._transact_late  # type: ignore
                await worker.run(self.leave)

    async def _beat_unless_deaf(self, over: Any = None) -> bool:
        return True if self.is_deaf else await self._beat(over)

    async def _transact_late(self, work: Any, point: str = "transaction") -> Any:
        if self.is_deaf:
            await asyncio.sleep(self.world.rng.random() * LATE_S)
        return await self._transact(work, point)

    async def sink(self) -> None:
        """Die where we stand."""
        self.is_sunk = True
        if self.worker is not None:
            for task in list(self.worker._tasks):
                task.cancel()
        self.task.cancel()
        await self.ended()

    async def ended(self) -> None:
        """Return when nothing of it runs any more."""
        await asyncio.gather(self.task, return_exceptions=True)


class World:
    """One schedule: a database, vessels, a client, and what is done to them."""

    def __init__(self, seed: int, folder: Path, clock: ManualClock, lines: list[Line]) -> None:
        self.rng, self.folder, self.clock, self.lines = random.Random(seed), folder, clock, lines
        self.vessels: list[Vessel] = []
        self._ids = random.Random(seed + 1)
        self._born = 0

    def open(self) -> Any:
        """Another process's view of the database."""
        places = {"database_url": f"sqlite:///{self.folder / 'penstock.db'}", "storage_url": str(self.folder / "files")}
        entropy = Entropy(self._ids.getrandbits, random.Random(self._ids.random()))
        settings = Settings(**{**PACE, **CALMER, **places})
        return Penstock.open(operations=OPERATIONS, settings=settings, clock=self.clock, entropy=entropy)

    async def run(self) -> list[Finding]:
        """Storm, calm, judgement."""
        async with self.open() as penstock:
            self.observer = Observer(penstock, lambda lease: None, self.clock.monotonic, every_s=0.3)
            self.vessels = [self._launch() for _ in range(VESSELS)]
            watching = asyncio.create_task(self.observer.run())
            caller = asyncio.create_task(self._call(penstock))
            await self._storm()
            await self._calm(penstock, caller)
            open_ones = (await penstock.operations.list(status=OVERHEARD)).items
            for vessel in self.vessels:
                vessel.leave.set()
                await vessel.ended()
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)
            hangs = [Finding("hangs", f"it is still {one.status}", one.id) for one in open_ones]
            return [*hangs, *await self._judge(penstock)]

    def _launch(self) -> Vessel:
        self._born += 1
        return Vessel(MemoryJournal(f"w{self._born}", self.lines, self.clock), self)

    async def _call(self, penstock: Penstock) -> None:
        """A caller that dies now and then in the middle of a call, and comes back as another."""
        while True:
            self._born += 1
            process = Process(MemoryJournal(f"c{self._born}", self.lines, self.clock))
            if self.rng.random() < 0.5:
                process.point = self.rng.choice(both_sides(CLIENT_POINTS))
            CURRENT.set(process)
            client = Client(penstock, process.journal, rows_max=ROWS_MAX)
            with contextlib.suppress(Sunk, BaseExceptionGroup):
                await client.tend(random.Random(self.rng.random()))

    async def _storm(self) -> None:
        end = self.clock.monotonic() + STORM_S
        while self.clock.monotonic() < end:
            await asyncio.sleep(self.rng.random() * 0.8)
            victim = self.rng.randrange(len(self.vessels))
            await self._befall(self.vessels[victim])
            if self.vessels[victim].task.done():
                self.vessels[victim] = self._launch()

    async def _befall(self, vessel: Vessel) -> None:
        match self.rng.choice(("sink", "point", "point", "deaf", "deaf", "hear", "leave")):
            case "sink":
                await vessel.sink()
            case "point":
                vessel.point = self.rng.choice(both_sides(WORKER_POINTS))
            case "deaf":
                vessel.is_deaf = True
            case "hear":
                vessel.is_deaf = False
            case "leave":
                vessel.leave.set()
                await vessel.ended()

    async def _calm(self, penstock: Penstock, caller: asyncio.Task[None]) -> None:
        """Nobody interferes; everything must end."""
        for vessel in self.vessels:
            vessel.is_deaf, vessel.point = False, None
        end = self.clock.monotonic() + CALM_S
        caller.cancel()
        await asyncio.gather(caller, return_exceptions=True)
        while self.clock.monotonic() < end:
            self.vessels = [self._launch() if vessel.task.done() else vessel for vessel in self.vessels]
            found = (await penstock.operations.list(status=OVERHEARD)).items
            if not found:
                return
            for one in found:
                if one.status == "Paused":
                    await penstock.operations.resume(one.id)
            await asyncio.sleep(0.5)

    async def _judge(self, penstock: Penstock) -> list[Finding]:
        effects: dict[str, list[Effect]] = defaultdict(list)
        said: dict[str, list[Said]] = defaultdict(list)
        for line in self.lines:
            if isinstance(line, Effect):
                effects[line.operation].append(line)
            elif isinstance(line, Said) and line.operation is not None:
                said[line.operation].append(line)
        report = await penstock.operations.verify()
        found = [Finding("verify", str(difference)) for difference in report.differences]
        for operation, words in said.items():
            evidence = await gather(
                penstock,
                operation,
                effects=effects[operation],
                said=words,
                sightings=self.observer.sightings.get(operation, Sightings()),
            )
            found += judge(evidence)
        return found


def play(seed: int, lines: list[Line] | None = None) -> list[Finding]:
    """One schedule from its seed; returns what is wrong. What happened goes to `lines`."""
    random.seed(seed)  # back-offs and the steps' own chance
    clock = ManualClock()
    with tempfile.TemporaryDirectory(prefix="penstock-schedule-") as folder, _alone():
        world = World(seed, Path(folder), clock, [] if lines is None else lines)
        try:
            with asyncio.Runner(loop_factory=lambda: SeededLoop(random.Random(seed), clock)) as runner:
                return runner.run(world.run())
        except Stuck as error:
            return [Finding("stuck", str(error))]


@contextmanager
def _alone() -> Iterator[None]:
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
    patience = patch.multiple(ordeal, PACE_S=STEP_S), patch.object(ordeal.time, "sleep", lambda seconds: None)
    with inline_sqlite(), patience[0], patience[1], failpoints.armed(hit):
        yield


def main() -> int:
    """Try many seeds, or one."""
    parser = argparse.ArgumentParser(prog="python -m tests.torture.schedules", description=__doc__)
    parser.add_argument("--seeds", type=int, default=100)
    parser.add_argument("--first", type=int, default=1)
    parser.add_argument("--seed", type=int, help="only this one")
    given = parser.parse_args()
    logging.disable(logging.CRITICAL)
    began = time.perf_counter()
    wrong = 0
    seeds = [given.seed] if given.seed is not None else range(given.first, given.first + given.seeds)
    for seed in seeds:
        for finding in play(seed):
            wrong += 1
            print(f"FINDING schedule {seed}: {finding}", flush=True)
    print(f"{len(seeds)} schedules in {time.perf_counter() - began:.1f} s, {wrong} findings")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
