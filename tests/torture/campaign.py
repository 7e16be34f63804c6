"""A campaign: rounds of storm, calm and judgement over one database.

In the storm workers and clients live and die; in the calm nobody interferes and everything must settle; then the
oracle looks at every operation of the round.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy.exc import NoResultFound

from penstock import Penstock
from penstock.clock import SystemClock
from penstock.db.upgrade import upgrade
from penstock.errors import NotFound, PenstockError, Unavailable
from penstock.operations.states import OPERATION
from penstock.settings import Settings

from .attempt_rules import cancel_latency_s, late_starts, starts
from .dump import dump
from .facts import gather
from .faults import Menu, Switches
from .journal import Effect, Line, Said, read_all
from .kinds import OPERATIONS
from .lifecycle_callers import LIFECYCLE, prepare_lifecycles
from .lifecycle_rules import judge_lifecycles
from .nursery import Nursery
from .observer import Observer, Sightings
from .oracle import Finding, judge
from .proofs import Proofs
from .stillness import Stillness
from .storm import Round, Storm
from .tally import Tally

__all__ = ["Campaign", "Wanted"]

LEASE_S = 1.5
TAKEOVER_S = LEASE_S + 30
CALM_S = 90.0
SAID_MAX = 3  # findings of one rule that are printed for a round
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
    "shutdown_s": 2.0,
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
    patience: float  # how many times slower than usual everything may be


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
        switches: Switches,
    ) -> None:
        self.nursery, self.folder, self.wanted, self.seed = nursery, folder, wanted, seed
        self.say, self._has_server, self.switches = say, restart is not None, switches
        self.settings = {**PACE, "database_url": url, "storage_url": str(folder / "files")}
        self.tally = Tally()
        self.findings: list[Finding] = []
        self.rng = random.Random(seed)
        self._still: set[str] = set()  # operations that stand still for good
        self._lifecycles: list[Said] = []  # of all rounds: instances live through them
        menu = Menu(
            self.rng,
            LEASE_S,
            wanted.kills,
            wanted.freezes,
            stops=max(10, wanted.kills // (3 if switches.pauses else 20)),
            stop_share=4 if switches.pauses else 1,
            lifecycles=switches.lifecycles,
        )
        self.storm = Storm(
            nursery, self.settings, menu, self.tally, self.rng, restart, wanted.restarts, switches, wanted.patience
        )

    async def run(self) -> None:
        """The whole campaign."""
        url = self.settings["database_url"]
        await upgrade(url, SystemClock())
        end = time.monotonic() + self.wanted.seconds
        number = 0
        async with Penstock.open(operations=OPERATIONS, settings=Settings(**self.settings)) as penstock:
            if self.switches.lifecycles:
                await prepare_lifecycles(penstock)
            while time.monotonic() < end and not self._is_enough():
                number += 1
                await self._round(penstock, number, min(self.wanted.round_s, end - time.monotonic()))
        for point in self.tally.unknown:
            finding = Finding("unknown_point", f"{point} was passed; name it in faults.py")
            self.findings.append(finding)
            self.say(f"FINDING seed {self.seed}: {finding}")

    def _is_enough(self) -> bool:
        tally, wanted = self.tally, self.wanted
        return (
            tally.kills >= wanted.kills
            and tally.freezes >= wanted.freezes
            and tally.signals >= wanted.signals
            and (tally.restarts >= wanted.restarts or not self._has_server)
        )

    async def _round(self, penstock: Penstock, number: int, seconds: float) -> None:
        folder = self.folder / f"round-{number}"
        folder.mkdir()
        now = Round(number, folder)
        observer = Observer(penstock, lambda lease: self._died_at(now.holder(lease)))
        if self.switches.pauses:
            observer.validates = lambda lease: self.storm.stop_while_validating(now.holder(lease))
        stillness = Stillness(penstock, now.can_run, folder, found=self._still)
        proofs = Proofs(penstock, self.rng)
        await proofs.begin()
        watchers = [observer.run(), stillness.run(), *([proofs.run()] if self.switches.proofs else [])]
        watching = [asyncio.create_task(watcher) for watcher in watchers]
        try:
            if self._has_server and self.switches.cuts:
                await self.storm.put_proxy(now)
            await self.storm.rage(now, seconds)
            now.findings += await self._calm(penstock, now)
        finally:
            for task in watching:
                task.cancel()
            ended = await asyncio.gather(*watching, return_exceptions=True)
        now.findings += [Finding("watcher", repr(error)) for error in ended if isinstance(error, Exception)]
        now.findings += stillness.findings + proofs.findings
        now.findings += await self._judge(penstock, now, observer)
        self.findings += now.findings
        self.tally.proofs += proofs.count
        await self._tell(penstock, now)

    async def _tell(self, penstock: Penstock, now: Round) -> None:
        """Print what was found, of each rule a few, and keep all of it with what is stored of those operations."""
        said = Counter[str]()
        for finding in now.findings:
            said[finding.rule] += 1
            if said[finding.rule] <= SAID_MAX:
                self.say(f"FINDING seed {self.seed} round {now.number}: {finding}")
        for rule, many in said.items():
            if many > SAID_MAX:
                self.say(f"FINDING seed {self.seed} round {now.number}: {rule}: {many - SAID_MAX} more")
        for operation in {finding.operation for finding in now.findings if finding.operation is not None}:
            with contextlib.suppress(PenstockError, NoResultFound):
                await dump(penstock, operation, now.folder)
        (now.folder / "faults.txt").write_text("\n".join(now.faults))
        (now.folder / "findings.txt").write_text("\n".join(map(str, now.findings)))
        self.say(f"round {now.number}: {self.tally.summary()}; {len(self.findings)} findings")

    def _died_at(self, who: str) -> float | None:
        """When a process died; nobody can take over while the database is away."""
        child = self.nursery.children.get(who)
        return None if child is None or child.died_at is None else max(child.died_at, self.storm.back_at)

    # --- the calm

    async def _calm(self, penstock: Penstock, now: Round) -> list[Finding]:
        """Nobody interferes: two workers, replaced if they end by themselves, must bring everything to its end.

        A third one cannot run every operation, and must not stand in the way."""
        over, calm_s = asyncio.Event(), CALM_S * self.wanted.patience
        workers = [asyncio.create_task(self.storm.serve(now, over)) for _ in range(2)]
        if self.switches.lifespans:
            workers.append(asyncio.create_task(self.storm.serve(now, over, {"local": 1.0})))
        try:
            async with asyncio.timeout(calm_s):
                while open_ones := await self._unsettled(penstock):
                    await _resume_paused(penstock, open_ones)
                    await asyncio.sleep(0.2)
        except TimeoutError:
            found = await self._unsettled(penstock)
            self._still.update(operation for operation, _ in found)
            return [
                Finding("hangs", f"it is still {status} after {calm_s:g} s of calm", operation)
                for operation, status in found
            ]
        finally:
            over.set()
            await asyncio.gather(*workers)
        return []

    async def _unsettled(self, penstock: Penstock) -> list[tuple[str, str]]:
        """Operations that are not at rest, but for those that never will be."""
        return [(operation, status) for operation, status in await _moving(penstock) if operation not in self._still]

    # --- the judgement

    async def _judge(self, penstock: Penstock, now: Round, observer: Observer) -> list[Finding]:
        lines = read_all(now.folder)
        self.tally.count(lines)
        effects: dict[str, list[Effect]] = defaultdict(list)
        said: dict[str, list[Said]] = defaultdict(list)
        for line in lines:
            _sort_in(line, effects, said)
        self._lifecycles += said.pop(LIFECYCLE, [])
        found = [Finding("verify", str(difference)) for difference in await _differences(penstock, said)]
        if self.switches.lifecycles:
            amiss, self.tally.lifecycle_entries = await judge_lifecycles(penstock, self._lifecycles)
            found += amiss
        for operation, words in said.items():
            try:
                evidence = await gather(
                    penstock,
                    operation,
                    effects=effects[operation],
                    said=words,
                    sightings=observer.sightings.get(operation, Sightings()),
                    thawed=now.thawed,
                    patience=self.wanted.patience,
                )
            except PenstockError as error:
                found.append(Finding("lost_operation", f"acknowledged, but: {error}", operation))
                continue
            if operation not in self._still:
                found += judge(evidence)
            self.tally.operations += 1
            self.tally.rows += len(evidence.rows)
            self.tally.starts += len(starts(evidence))
            self.tally.signals += len(evidence.acknowledged("signal"))
            self.tally.repeats += sum(line.detail["nth"] > 0 for line in evidence.acknowledged("signal"))
            self.tally.edits += len(evidence.acknowledged("edit"))
            self.tally.retries += len(evidence.acknowledged("retry"))
            self.tally.pauses += len(evidence.acknowledged("pause"))
            self.tally.late_starts += late_starts(evidence)
            self.tally.verdicts.update(row.state for row in evidence.rows.values())
            latency = cancel_latency_s(evidence)
            if latency is not None:
                self.tally.cancels_s.append(latency)
        self.tally.takeovers_s += observer.takeovers
        found += [
            Finding("takeover", f"a dead worker's chunk was taken over after {s:.1f} s")
            for s in observer.takeovers
            if s > TAKEOVER_S * self.wanted.patience
        ]
        return found


def _sort_in(line: Line, effects: dict[str, list[Effect]], said: dict[str, list[Said]]) -> None:
    match line:
        case Effect(operation=operation):
            effects[operation].append(line)
        case Said(operation=str(operation)):
            said[operation].append(line)


async def _moving(penstock: Penstock) -> list[tuple[str, str]]:
    """Operations that are not at rest; empty only when the database says so."""
    while True:
        with contextlib.suppress(Unavailable):
            page = await penstock.operations.list(status=_MOVING, limit=1000)
            return [(operation.id, operation.status) for operation in page.items]
        await asyncio.sleep(0.2)


async def _resume_paused(penstock: Penstock, found: Iterable[tuple[str, str]]) -> None:
    """Somebody paused them and died; nobody else would go on."""
    for operation, status in found:
        if status == "Paused":
            with contextlib.suppress(PenstockError):
                await penstock.operations.resume(operation)


async def _differences(penstock: Penstock, operations: Iterable[str]) -> list[object]:
    """What `verify` finds in these operations."""
    found: list[object] = []
    for operation in operations:
        with contextlib.suppress(NotFound):  # the oracle tells of that
            found += (await penstock.operations.verify(operation)).differences
    return found
