"""Seeded schedules: several workers and callers on one SQLite file, in one thread, in an order drawn from a seed.

A worker is a `Vessel`: it can be sunk at any point around a COMMIT or at any await, or go deaf for a while: its heart
stops, and perhaps its writes come late, so that others take its chunks while it still believes to own them.
Every second schedule has no deaths and no sweep, behind which a wake-up that was missed would hide: there each signal
must be heard at once.
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
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

from penstock import Penstock
from penstock.clock import Entropy, ManualClock
from penstock.settings import Settings

from .campaign import PACE
from .client_main import PLAIN, Client
from .facts import gather
from .faults import CLIENT_POINTS, WORKER_POINTS, both_sides
from .journal import Effect, Line, Said
from .kinds import OPERATIONS
from .observer import Observer, Sightings
from .oracle import Finding, judge
from .seeded_loop import SeededLoop, Stuck
from .vessels import CURRENT, LATE_S, SLOW_S, MemoryJournal, Process, Sunk, Vessel, under_glass

__all__ = ["play"]

STORM_S, CALM_S = 12.0, 180.0
VESSELS, ROWS_MAX = 3, 6
# Where nobody dies, most rows wait already when their signals come, many at a gate that others wait at too. A wait that
# misses its signal hears it at its deadline, well after the storm; and no neighbour in its chunk is woken before.
LONG_STORM_S = 20.0
PATIENT: dict[str, Any] = {"signal_timeout_s": 40.0, "signal_delay_s": 10.0, "shared": 0.6}
# Where somebody dies, callers also interrupt validation and edit the same rows at once.
TROUBLED = replace(PLAIN, pauses=True, edits=True)
# Time costs nothing here, but looking does.
CALMER = {"chunk_rows": 3, "flush_rows": 3, "wake_poll_s": 0.4, "control_poll_s": 0.6}
CALMEST = {**CALMER, "chunk_rows": 1}
FATES = ("sink", "point", "point", "deaf", "deaf", "hear", "leave")
QUIET_FATES = ("slow", "slow", "slow", "deaf", "hear")
OVERHEARD = ("Pending", "Validating", "Running", "Retrying", "Paused", "Stopping")


class World:
    """One schedule: a database, vessels, a client, and what is done to them."""

    def __init__(self, seed: int, folder: Path, clock: ManualClock, lines: list[Line]) -> None:
        self.rng, self.folder, self.clock, self.lines = random.Random(seed), folder, clock, lines
        self.vessels: list[Vessel] = []
        self.has_deaths = seed % 2 == 1
        self._ids = random.Random(seed + 1)
        self._born = 0

    def open(self) -> Any:
        """Another process's view of the database."""
        places = {"database_url": f"sqlite:///{self.folder / 'penstock.db'}", "storage_url": str(self.folder / "files")}
        entropy = Entropy(self._ids.getrandbits, random.Random(self._ids.random()))
        settings = Settings(**{**PACE, **(CALMER if self.has_deaths else CALMEST), **places})
        return Penstock.open(operations=OPERATIONS, settings=settings, clock=self.clock, entropy=entropy)

    async def run(self) -> list[Finding]:
        """Storm, calm, judgement."""
        async with self.open() as penstock:
            self.observer = Observer(penstock, lambda lease: None, self.clock.monotonic, every_s=0.3)
            self.vessels = [self._launch() for _ in range(VESSELS)]
            watching = asyncio.create_task(self.observer.run())
            callers = [asyncio.create_task(self._call(penstock)) for _ in range(1 if self.has_deaths else 3)]
            await self._storm()
            await self._calm(penstock, callers)
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
        return Vessel(MemoryJournal(f"w{self._born}", self.lines, self.clock), self.open, self.rng)

    async def _call(self, penstock: Penstock) -> None:
        """A caller that dies now and then in the middle of a call, and comes back as another."""
        while True:
            self._born += 1
            process = Process(MemoryJournal(f"c{self._born}", self.lines, self.clock))
            if self.has_deaths and self.rng.random() < 0.5:
                process.point = self.rng.choice(both_sides(CLIENT_POINTS))
            CURRENT.set(process)
            habits = {"switches": TROUBLED} if self.has_deaths else PATIENT
            client = Client(penstock, process.journal, rows_max=ROWS_MAX, **habits)
            with contextlib.suppress(Sunk, BaseExceptionGroup):
                await client.tend(random.Random(self.rng.random()))

    async def _storm(self) -> None:
        end = self.clock.monotonic() + (STORM_S if self.has_deaths else LONG_STORM_S)
        while self.clock.monotonic() < end:
            await asyncio.sleep(self.rng.random() * 0.8)
            victim = self.rng.randrange(len(self.vessels))
            await self._befall(self.vessels[victim])
            if self.vessels[victim].task.done():
                self.vessels[victim] = self._launch()

    async def _befall(self, vessel: Vessel) -> None:
        match self.rng.choice(FATES if self.has_deaths else QUIET_FATES):
            case "sink":
                await vessel.sink()
            case "point":
                vessel.point = self.rng.choice(both_sides(WORKER_POINTS))
            case "deaf":
                vessel.is_deaf, vessel.late_s = True, self.rng.choice((0.0, LATE_S))
            case "slow":
                vessel.late_s = SLOW_S
            case "hear":
                vessel.is_deaf, vessel.late_s = False, 0.0
            case "leave":
                vessel.leave.set()
                await vessel.ended()

    async def _calm(self, penstock: Penstock, callers: list[asyncio.Task[None]]) -> None:
        """Nobody interferes; everything must end."""
        for vessel in self.vessels:
            vessel.is_deaf, vessel.late_s = False, 0.0
            vessel.point = None
        self.quiet_since = self.clock.monotonic()
        end = self.quiet_since + CALM_S
        for caller in callers:
            caller.cancel()
        await asyncio.gather(*callers, return_exceptions=True)
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
                quiet_since=None if self.has_deaths else self.quiet_since,
            )
            found += judge(evidence)
        return found


def play(seed: int, lines: list[Line] | None = None) -> list[Finding]:
    """One schedule from its seed; returns what is wrong. What happened goes to `lines`."""
    random.seed(seed)  # back-offs and the steps' own chance
    clock = ManualClock()
    with tempfile.TemporaryDirectory(prefix="penstock-schedule-") as folder, under_glass():
        world = World(seed, Path(folder), clock, [] if lines is None else lines)
        sweep = nullcontext() if world.has_deaths else patch("penstock.operations.inbox.settling.sweep", _nobody)
        try:
            with sweep, asyncio.Runner(loop_factory=lambda: SeededLoop(random.Random(seed), clock)) as runner:
                return runner.run(world.run())
        except Stuck as error:
            return [Finding("stuck", str(error))]


async def _nobody(*_: object) -> int:
    """A sweep that wakes nobody."""
    return 0


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
