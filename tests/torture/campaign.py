"""A campaign: rounds of storm, calm and judgement over one database.

In the storm workers and clients live and die; in the calm nobody interferes and everything must settle; then the
oracle looks at every operation of the round.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import re
import signal
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from penstock import Penstock
from penstock.clock import SystemClock
from penstock.db.upgrade import upgrade
from penstock.errors import NotFound, PenstockError, Unavailable
from penstock.operations.states import OPERATION
from penstock.settings import Settings

from .facts import gather
from .faults import Fault, Menu
from .journal import Began, Effect, Line, Said, read_all
from .nursery import Child, Nursery
from .observer import Observer, Sightings
from .oracle import Finding, cancel_latency_s, judge, late_starts, starts
from .ordeal import OPERATIONS
from .tally import Tally
from .worker_main import GAVE_UP

__all__ = ["Campaign", "Wanted"]

LEASE_S = 1.5
TAKEOVER_S = LEASE_S + 10
WORKERS, CLIENTS = 3, 2
OPERATIONS_EACH = 3
CALM_S = 60.0
SHUTDOWN_S = 2.0
LEAVE_S = 10.0
_MOVING = sorted(set(OPERATION.states) - set(OPERATION.settled))

PACE: dict[str, Any] = {
    "lease_s": LEASE_S,
    "lease_margin_s": 0.3,
    "heartbeat_s": 0.4,
    "control_poll_s": 0.2,
    "wake_poll_s": 0.05,
    "flush_s": 0.2,
    "chunk_rows": 5,
    "flush_rows": 5,
    "shutdown_s": SHUTDOWN_S,
    "cancel_grace_s": 1.0,
    "sync_threads": 4,
}


@dataclass(frozen=True)
class Wanted:
    """How much is enough."""

    kills: int
    freezes: int
    restarts: int
    signals: int
    seconds: float
    round_s: float


@dataclass
class Round:
    """What one storm left behind."""

    number: int
    folder: Path
    observer: Observer
    thawed: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    leases: dict[str, str] = field(default_factory=dict)  # process by lease id
    faults: list[str] = field(default_factory=list)


class Campaign:
    """Runs rounds until everything wanted was reached or the time is up; `restart` kills and starts the database."""

    def __init__(
        self,
        nursery: Nursery,
        folder: Path,
        url: str,
        wanted: Wanted,
        seed: int,
        *,
        restart: Callable[[], None] | None,
        say: Callable[[str], None],
    ) -> None:
        self.nursery, self.folder, self.wanted, self.seed = nursery, folder, wanted, seed
        self.say, self._restart = say, restart
        self.settings = {**PACE, "database_url": url, "storage_url": str(folder / "files")}
        self.tally = Tally()
        self.findings: list[Finding] = []
        self.rng = random.Random(seed)
        self.menu = Menu(self.rng, LEASE_S, wanted.kills, wanted.freezes, stops=max(10, wanted.kills // 20))
        self._born = 0

    async def run(self) -> None:
        """The whole campaign."""
        url = self.settings["database_url"]
        await upgrade(url, SystemClock())
        end = time.monotonic() + self.wanted.seconds
        number = 0
        async with Penstock.open(operations=OPERATIONS, settings=Settings(**self.settings)) as penstock:
            while time.monotonic() < end and not self._is_enough():
                number += 1
                await self._round(penstock, number, min(self.wanted.round_s, end - time.monotonic()))
        for point in self.tally.unknown:
            self.findings.append(Finding("unknown_point", f"{point} was passed; name it in faults.py"))

    def _is_enough(self) -> bool:
        tally, wanted = self.tally, self.wanted
        return (
            tally.kills >= wanted.kills
            and tally.freezes >= wanted.freezes
            and tally.signals >= wanted.signals
            and (tally.restarts >= wanted.restarts or self._restart is None)
        )

    async def _round(self, penstock: Penstock, number: int, seconds: float) -> None:
        folder = self.folder / f"round-{number}"
        folder.mkdir()
        now = Round(number, folder, Observer(penstock, self._died_at))
        self._leases = now.leases
        watching = asyncio.create_task(now.observer.run())
        try:
            await self._storm(now, seconds)
            hanging = await self._calm(penstock, now)
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)
        found = [*hanging, *await self._judge(penstock, now)]
        self.findings += found
        for finding in found:
            self.say(f"FINDING seed {self.seed} round {number}: {finding}")
        if found:
            (folder / "faults.txt").write_text("\n".join(now.faults))
        self.say(f"round {number}: {self.tally.summary()}, {len(self.findings)} findings")

    # --- the storm

    async def _storm(self, now: Round, seconds: float) -> None:
        end = time.monotonic() + seconds
        async with asyncio.TaskGroup() as group:
            for _ in range(WORKERS):
                group.create_task(self._keep(now, "worker", end, self.menu.for_worker))
            for _ in range(CLIENTS):
                group.create_task(self._keep(now, "client", end, self.menu.for_client))
            if self._restart is not None and self.tally.restarts < self.wanted.restarts:
                group.create_task(self._keep_restarting(end))

    async def _keep(self, now: Round, role: str, end: float, choose: Callable[[], Fault]) -> None:
        """One place that is never empty: when its process ends, the next one begins."""
        while time.monotonic() < end:
            fault = choose()
            child = self._spawn(now, role, fault)
            now.faults.append(f"{child.who}: {fault}")
            await self._befall(now, child, fault, end)
            self._count_death(child, fault, now)

    def _spawn(self, now: Round, role: str, fault: Fault) -> Child:
        self._born += 1
        who = f"{role[0]}{self._born}"
        return self.nursery.spawn(
            who,
            role,
            now.folder / f"{who}.err",
            folder=str(now.folder),
            settings=self.settings,
            point=fault.point,
            seed=self.rng.random(),
            operations=OPERATIONS_EACH,
        )

    async def _befall(self, now: Round, child: Child, fault: Fault, end: float) -> None:
        """Let the fault happen, and return when the process is dead."""
        left = max(0.0, end - time.monotonic())
        if await _dies(child, min(fault.after_s, left) if fault.kind != "none" else left):
            return
        if fault.kind == "freeze" and fault.after_s < left:
            await self._freeze(now, child, fault.for_s)
            if not await _dies(child, 1.0):
                await self._stop(child)
        elif fault.kind in ("stop", "none") or fault.after_s >= left:
            await self._stop(child)
        else:
            self.nursery.signal(child, signal.SIGKILL)
            await child.dead.wait()

    async def _freeze(self, now: Round, child: Child, seconds: float) -> None:
        self.nursery.signal(child, signal.SIGSTOP)
        await asyncio.sleep(seconds)
        now.thawed[child.who].append(time.monotonic())
        self.nursery.signal(child, signal.SIGCONT)
        self.tally.freezes += 1
        self.menu.freezes -= 1

    async def _stop(self, child: Child) -> None:
        """Ask it to leave, and see how long that takes."""
        asked = time.monotonic()
        self.nursery.signal(child, signal.SIGTERM)
        if not await _dies(child, SHUTDOWN_S + LEAVE_S):
            self.findings.append(Finding("shutdown", f"{child.who} did not leave within {SHUTDOWN_S + LEAVE_S:g} s"))
            self.nursery.signal(child, signal.SIGKILL)
            await child.dead.wait()
        elif child.role == "worker" and child.exit_code == 0 and child.died_at is not None:
            self.tally.shutdowns_s.append(child.died_at - asked)
            self.tally.stops += 1
            self.menu.stops -= 1

    def _count_death(self, child: Child, fault: Fault, now: Round) -> None:
        if child.was_killed:
            self.tally.kills += 1
            self.tally.point_kills += fault.kind == "point"
            self.menu.kills -= 1
        elif child.exit_code == os.EX_TEMPFAIL:
            self.tally.gave_up[_last_words(now.folder / f"{child.who}.err")] += 1
        elif child.exit_code != 0:
            trace = (now.folder / f"{child.who}.err").read_text()
            self.findings.append(Finding("crash", f"{child.who} ended with {child.status}: {trace[-1500:]}"))
            self.say(f"FINDING seed {self.seed} round {now.number}: {self.findings[-1]}")

    async def _keep_restarting(self, end: float) -> None:
        assert self._restart is not None
        while self.tally.restarts < self.wanted.restarts:
            await asyncio.sleep(1 + self.rng.random() * 4)
            if time.monotonic() > end - 2:
                return
            began = time.monotonic()
            await asyncio.to_thread(self._restart)
            self.tally.restarts_s.append(time.monotonic() - began)
            self.tally.restarts += 1

    def _died_at(self, lease: str) -> float | None:
        child = self.nursery.children.get(self._who(lease))
        return child.died_at if child is not None else None

    def _who(self, lease: str) -> str:
        if lease not in self._leases:
            folder = max(self.folder.glob("round-*"), key=lambda path: path.stat().st_mtime)
            self._leases |= {line.lease: line.who for line in read_all(folder) if isinstance(line, Began)}
        return self._leases.get(lease, "")

    # --- the calm

    async def _calm(self, penstock: Penstock, now: Round) -> list[Finding]:
        """Nobody interferes: two workers must bring everything to its end."""
        workers = [self._spawn(now, "worker", Fault("none")) for _ in range(2)]
        try:
            async with asyncio.timeout(CALM_S):
                while open_ones := await _unsettled(penstock):
                    for operation, status in open_ones:
                        if status == "Paused":
                            with contextlib.suppress(PenstockError):
                                await penstock.operations.resume(operation)
                    await asyncio.sleep(0.2)
        except TimeoutError:
            return [
                Finding("hangs", f"it is still {status} after {CALM_S:g} s of calm", operation)
                for operation, status in await _unsettled(penstock)
            ]
        finally:
            await asyncio.gather(*map(self._stop, workers))
            for worker in workers:
                self._count_death(worker, Fault("none"), now)
        return []

    # --- the judgement

    async def _judge(self, penstock: Penstock, now: Round) -> list[Finding]:
        lines = read_all(now.folder)
        self.tally.count_points(lines)
        effects: dict[str, list[Effect]] = defaultdict(list)
        said: dict[str, list[Said]] = defaultdict(list)
        for line in lines:
            _sort_in(line, effects, said)
        found = [Finding("verify", str(difference)) for difference in await _differences(penstock, said)]
        for operation, words in said.items():
            try:
                evidence = await gather(
                    penstock,
                    operation,
                    effects=effects[operation],
                    said=words,
                    sightings=now.observer.sightings.get(operation, Sightings()),
                    thawed=now.thawed,
                )
            except PenstockError as error:
                found.append(Finding("lost_operation", f"acknowledged, but: {error}", operation))
                continue
            found += judge(evidence)
            self.tally.operations += 1
            self.tally.rows += len(evidence.rows)
            self.tally.starts += len(starts(evidence))
            self.tally.signals += len(evidence.acknowledged("signal"))
            self.tally.late_starts += late_starts(evidence)
            self.tally.verdicts.update(row.state for row in evidence.rows.values())
            latency = cancel_latency_s(evidence)
            if latency is not None:
                self.tally.cancels_s.append(max(0.0, latency))
        self.tally.takeovers_s += now.observer.takeovers
        found += [
            Finding("takeover", f"a dead worker's chunk was taken over after {s:.1f} s")
            for s in now.observer.takeovers
            if s > TAKEOVER_S
        ]
        return found


def _sort_in(line: Line, effects: dict[str, list[Effect]], said: dict[str, list[Said]]) -> None:
    match line:
        case Effect(operation=operation):
            effects[operation].append(line)
        case Said(operation=str(operation)):
            said[operation].append(line)


def _last_words(stderr: Path) -> str:
    lines = [line for line in stderr.read_text().splitlines() if line.startswith(GAVE_UP)]
    return re.sub(r"\d+", "#", lines[-1].removeprefix(GAVE_UP))[:100] if lines else "silently"


async def _dies(child: Child, within_s: float) -> bool:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(within_s):
            await child.dead.wait()
    return not child.is_alive


async def _unsettled(penstock: Penstock) -> list[tuple[str, str]]:
    """Operations that are not at rest; empty only when the database says so."""
    while True:
        with contextlib.suppress(Unavailable):
            page = await penstock.operations.list(status=_MOVING, limit=1000)
            return [(operation.id, operation.status) for operation in page.items]
        await asyncio.sleep(0.2)


async def _differences(penstock: Penstock, operations: Iterable[str]) -> list[object]:
    """What `verify` finds in these operations."""
    found: list[object] = []
    for operation in operations:
        with contextlib.suppress(NotFound):  # the oracle tells of that
            found += (await penstock.operations.verify(operation)).differences
    return found
