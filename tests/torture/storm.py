"""The storm: processes that live and die, each as its fault says, and a server that loses its power."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import re
import signal
import time
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .faults import Fault, Menu
from .journal import Began, read_all
from .nursery import Child, Nursery
from .oracle import Finding
from .tally import Tally
from .worker_main import GAVE_UP

__all__ = ["Round", "Storm"]

WORKERS, CLIENTS = 3, 2
OPERATIONS_EACH = 3
LEAVE_S = 12.0
AGAIN_S = 0.3  # before the next one, when one gave up


@dataclass
class Round:
    """What one storm leaves behind."""

    number: int
    folder: Path
    thawed: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    faults: list[str] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    _who: dict[str, str] = field(default_factory=dict)  # process by lease id

    def holder(self, lease: str) -> str:
        """The process with this lease, if it is a worker's: it says so before it claims anything."""
        if lease not in self._who:
            self._who |= {line.lease: line.who for line in read_all(self.folder) if isinstance(line, Began)}
        return self._who.setdefault(lease, "")


@dataclass
class Storm:
    """Keeps so many workers and clients alive, and lets something befall each of them."""

    nursery: Nursery
    settings: Mapping[str, Any]
    menu: Menu
    tally: Tally
    rng: random.Random
    restart: Callable[[], None] | None
    restarts_max: int
    patience: float = 1.0  # how many times slower than usual everything may be
    back_at: float = 0.0  # when the database answered again
    _born: int = 0

    async def rage(self, now: Round, seconds: float) -> None:
        """For so long."""
        end = time.monotonic() + seconds
        async with asyncio.TaskGroup() as group:
            for _ in range(WORKERS):
                group.create_task(self._keep(now, "worker", end, self.menu.for_worker))
            for _ in range(CLIENTS):
                group.create_task(self._keep(now, "client", end, self.menu.for_client))
            if self.restart is not None:
                group.create_task(self._keep_restarting(self.restart, end))

    async def serve(self, now: Round, over: asyncio.Event) -> None:
        """Keep one worker that nothing befalls, until it is over."""
        while not over.is_set():
            worker = self._spawn(now, "worker", Fault("none"))
            ends = [asyncio.ensure_future(event.wait()) for event in (over, worker.dead)]
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            for end in ends:
                end.cancel()
            await self._stop(now, worker)
            self._count_death(now, worker)

    async def _keep(self, now: Round, role: str, end: float, choose: Callable[[], Fault]) -> None:
        """One place that is never empty: when its process ends, the next one begins."""
        while time.monotonic() < end:
            fault = choose()
            child = self._spawn(now, role, fault)
            now.faults.append(f"{child.who}: {fault}")
            await self._befall(now, child, fault, end)
            self._count_death(now, child)
            if child.exit_code == os.EX_TEMPFAIL:
                await asyncio.sleep(AGAIN_S)

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
                await self._stop(now, child)
        elif fault.kind in ("stop", "none") or fault.after_s >= left:
            await self._stop(now, child)
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

    async def _stop(self, now: Round, child: Child) -> None:
        """Ask it to leave, and see how long that takes."""
        asked = time.monotonic()
        self.nursery.signal(child, signal.SIGTERM)
        within_s = LEAVE_S * self.patience
        if not await _dies(child, within_s):
            now.findings.append(Finding("shutdown", f"{child.who} did not leave within {within_s:g} s"))
            self.nursery.signal(child, signal.SIGKILL)
            await child.dead.wait()
        elif child.role == "worker" and child.exit_code == 0 and child.died_at is not None:
            self.tally.shutdowns_s.append(child.died_at - asked)
            self.tally.stops += 1
            self.menu.stops -= 1

    def _count_death(self, now: Round, child: Child) -> None:
        if child.was_killed:
            self.tally.kills += 1
            self.menu.kills -= 1
        elif child.exit_code == os.EX_TEMPFAIL:
            self.tally.gave_up[_last_words(now.folder / f"{child.who}.err")] += 1
        elif child.exit_code != 0 and not child.was_told_too_early:
            trace = (now.folder / f"{child.who}.err").read_text()
            now.findings.append(Finding("crash", f"{child.who} ended with {child.status}: {trace[-1500:]}"))

    async def _keep_restarting(self, restart: Callable[[], None], end: float) -> None:
        while self.tally.restarts < self.restarts_max:
            await asyncio.sleep(1 + self.rng.random() * 4)
            if time.monotonic() > end - 2:
                return
            began = time.monotonic()
            await asyncio.to_thread(restart)
            self.back_at = time.monotonic()
            self.tally.restarts_s.append(self.back_at - began)
            self.tally.restarts += 1


def _last_words(stderr: Path) -> str:
    lines = [line for line in stderr.read_text().splitlines() if line.startswith(GAVE_UP)]
    return re.sub(r"\d+", "#", lines[-1].removeprefix(GAVE_UP))[:100] if lines else "silently"


async def _dies(child: Child, within_s: float) -> bool:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(within_s):
            await child.dead.wait()
    return not child.is_alive
