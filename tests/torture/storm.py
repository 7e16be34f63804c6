"""The storm: processes that live and die, each as its fault says, and a server that loses its power."""

from __future__ import annotations

import asyncio
import contextlib
import os
import random
import re
import signal
import socket
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from sqlalchemy import make_url

from . import clocks
from .faults import MOODS, Fault, Menu, Switches
from .journal import Began, read_all
from .nursery import Child, Nursery
from .oracle import Finding
from .proxy import HOST
from .tally import Tally
from .worker_main import GAVE_UP

__all__ = ["Round", "Storm"]

WORKERS, CLIENTS = 3, 2
OPERATIONS_EACH = 3
ODD_CLOCKS = 0.5  # of all rounds
JUMPING_S = 60.0
ALL_WELL: Mapping[str, float] = MappingProxyType({})
LUCK: Sequence[Mapping[str, float]] = (ALL_WELL, ALL_WELL, {"connected": 0.5}, {"local": 1.0})
LEAVE_S = 20.0  # an answer that comes late holds up a leave, too
LOOK_S = 0.02
AGAIN_S = 0.3  # before the next one, when one gave up
STOPPED = 0.15  # how often a worker is stopped when it is seen to validate a chunk that was left to it


@dataclass
class Round:
    """What one storm leaves behind."""

    number: int
    folder: Path
    thawed: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    faults: list[str] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    clock: clocks.Plan | None = None  # of the host, where all processes share one with the database
    unable: dict[str, Collection[str]] = field(default_factory=dict)  # by process: whose lifespan fails there
    proxy_url: str | None = None  # where the storm finds the database
    _who: dict[str, str] = field(default_factory=dict)  # process by lease id

    def holder(self, lease: str) -> str:
        """The process with this lease, if it is a worker's: it says so before it claims anything."""
        if lease not in self._who:
            self._who |= {line.lease: line.who for line in read_all(self.folder) if isinstance(line, Began)}
        return self._who.setdefault(lease, "")

    def can_run(self, lease: str, name: str) -> bool:
        """Whether the worker with this lease can run operations of this name."""
        who = self.holder(lease)
        return bool(who) and name not in self.unable.get(who, ())


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
    switches: Switches
    patience: float = 1.0  # how many times slower than usual everything may be
    back_at: float = 0.0  # when the database answered again
    _is_raging: bool = False
    _has_odd_clocks: bool = False  # in this storm
    _born: int = 0

    async def rage(self, now: Round, seconds: float) -> None:
        """For so long."""
        end = time.monotonic() + seconds
        self._is_raging, self.menu.mood = True, self.rng.choice(MOODS) if now.number > 1 else "rough"
        now.faults.append(f"the round is {self.menu.mood}")
        self._has_odd_clocks = self.switches.clocks and self.rng.random() < ODD_CLOCKS
        if self._has_odd_clocks and self.restart is None:
            now.clock = clocks.jumps(self.rng, time.monotonic(), end)
        async with asyncio.TaskGroup() as group:
            for _ in range(WORKERS):
                group.create_task(self._keep(now, "worker", end, self.menu.for_worker))
            for _ in range(CLIENTS):
                group.create_task(self._keep(now, "client", end, self.menu.for_client))
            # A server that is away hides what odd clocks lead to.
            if self.restart is not None and not self._has_odd_clocks and self.menu.mood != "quiet":
                group.create_task(self._keep_restarting(self.restart, end))
        self._is_raging = self._has_odd_clocks = False
        now.clock = None

    async def serve(self, now: Round, over: asyncio.Event, failing: Mapping[str, float] = ALL_WELL) -> None:
        """Keep one worker that nothing befalls, until it is over."""
        while not over.is_set():
            worker = self._spawn(now, "worker", Fault("none"), failing=failing, is_direct=True)
            ends = [asyncio.ensure_future(event.wait()) for event in (over, worker.dead)]
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            for end in ends:
                end.cancel()
            await self._stop(now, worker)
            self._count_death(now, worker)
            if not over.is_set():
                await asyncio.sleep(AGAIN_S)

    def stop_while_validating(self, who: str) -> None:
        """Ask a worker to leave in the middle of what it validates, now and then."""
        child = self.nursery.children.get(who)
        if child is not None and child.is_alive and self._is_raging and self.rng.random() < STOPPED:
            self.nursery.signal(child, signal.SIGTERM)
            self.tally.stops += 1

    async def _keep(self, now: Round, role: str, end: float, choose: Callable[[], Fault]) -> None:
        """One place that is never empty: when its process ends, the next one begins."""
        while time.monotonic() < end:
            fault = choose()
            is_odd = role == "worker" and self.switches.lifespans
            child = self._spawn(now, role, fault, failing=self.rng.choice(LUCK) if is_odd else ALL_WELL)
            now.faults.append(f"{child.who}: {fault}")
            await self._befall(now, child, fault, end)
            self._count_death(now, child)
            if child.exit_code == os.EX_TEMPFAIL:
                await asyncio.sleep(AGAIN_S)

    async def put_proxy(self, now: Round) -> None:
        """Let this round's storm reach the database through a proxy; the calm does not."""
        url = make_url(self.settings["database_url"])
        with socket.create_server((HOST, 0)) as probe:
            port = probe.getsockname()[1]
        self._begin(now, "proxy", port=port, server_port=url.port, kind=url.get_backend_name())
        while True:
            with contextlib.suppress(OSError):
                (await asyncio.open_connection(HOST, port))[1].close()
                break
            await asyncio.sleep(LOOK_S)
        now.proxy_url = url.set(port=port).render_as_string(hide_password=False)

    def _spawn(
        self, now: Round, role: str, fault: Fault, *, failing: Mapping[str, float] = ALL_WELL, is_direct: bool = False
    ) -> Child:
        way = {"database_url": now.proxy_url} if now.proxy_url and not is_direct else {}
        child = self._begin(
            now,
            role,
            settings={**self.settings, **way},
            point=fault.point,
            clock=now.clock or self._odd_clock(role),
            failing=dict(failing),
            operations=OPERATIONS_EACH,
            switches=asdict(self.switches),
        )
        now.unable[child.who] = failing.keys()
        return child

    def _odd_clock(self, role: str) -> clocks.Plan | None:
        """The wall clock of one worker beside a server, whose own is right."""
        if not self._has_odd_clocks or self.restart is None or role != "worker":
            return None
        since = time.monotonic()
        kinds = (None, clocks.steady(self.rng, since), clocks.jumps(self.rng, since, since + JUMPING_S))
        return self.rng.choice(kinds)

    def _begin(self, now: Round, role: str, **given: Any) -> Child:
        self._born += 1
        who = f"{role[0]}{self._born}"
        place = {"folder": str(now.folder), "seed": self.rng.random()}
        return self.nursery.spawn(who, role, now.folder / f"{who}.err", **place, **given)

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
            self.nursery.signal(child, signal.SIGUSR1)  # it prints where its tasks stand
            await _dies(child, 2)
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
            stderr = now.folder / f"{child.who}.err"
            message = f"{child.who} ended with {child.status}: {_last_error(stderr)}; see {stderr}"
            now.findings.append(Finding("crash", message))

    async def _keep_restarting(self, restart: Callable[[], None], end: float) -> None:
        while self.tally.restarts < self.restarts_max:
            await asyncio.sleep(self.rng.uniform(1, 6) if self.menu.mood == "rough" else self.rng.uniform(8, 20))
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


def _last_error(stderr: Path) -> str:
    """The last line of the last trace that names an exception."""
    named = [line for line in stderr.read_text().splitlines() if re.match(r"[A-Za-z_][\w.]*(: |$)", line)]
    return named[-1][:500] if named else "without a word"


async def _dies(child: Child, within_s: float) -> bool:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(within_s):
            await child.dead.wait()
    return not child.is_alive
