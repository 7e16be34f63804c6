"""Limits over workers that join, leave and are killed: `python -m tests.torture.limits --db postgresql --limit 1`.

Two to four worker processes run operations of which one step has a limit. Every call is noted in a file when it begins
and when it ends; a killed process's calls end when it does. From the notes alone follows how many calls ever were
under way at once, or began within a second, and, with the times at which operations were created, how long an
operation stood still. Exit 1 when that is too many, or too long.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from penstock import Context, Penstock, Pipeline, operation, step
from penstock.clock import SystemClock
from penstock.db.upgrade import upgrade
from penstock.errors import Unavailable
from penstock.settings import Settings
from penstock.testing import json_lines

from .. import servers
from .call_notes import Call, calls_of, idle_s_of, most_at_once, most_in_a_second, standstills
from .nursery import Child, Nursery

DATABASES = ("sqlite", *servers.KINDS)
LEASE_S = 3.0
IDLE_S_MAX = LEASE_S + 5.0  # and some seconds until processes are up
LEAVE_S = 30.0
CALL_S = 0.02
PACE: dict[str, Any] = {
    "lease_s": LEASE_S,
    "lease_margin_s": 0.5,
    "heartbeat_s": 0.5,
    "control_poll_s": 0.2,
    "wake_poll_s": 0.1,
    "flush_s": 0.2,
    "chunk_rows": 10,
    "shutdown_s": 2.0,
    "poison_rows_max": 1_000_000,  # rows die with their workers here, and are not to blame
}


class Item(BaseModel):
    id: int


class Notes:
    """What one process notes of its calls; each line is whole, and in the file when the call goes on."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def note(self, what: str, ctx: Context) -> None:
        """A call begins or ends now."""
        os.write(self._file, f"{what} {ctx.operation_id} {ctx.row_number} {now():.6f}\n".encode())


def now() -> float:
    """Seconds on a clock that all processes share."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def limited(notes: Notes | None, limits: Mapping[str, Any]) -> type:
    """The operation; one who only creates it takes no notes."""
    call_s = 0.0 if limits.get("rate") else CALL_S

    @operation("limited", max_row_concurrency=20)
    class Limited(Pipeline[Item]):
        @step(**limits)
        async def call(self, row: Item, ctx: Context) -> None:
            assert notes is not None
            notes.note("began", ctx)
            try:
                await asyncio.sleep(random.uniform(0, 2 * call_s))
            finally:
                notes.note("ended", ctx)

    return Limited


def live(given: Mapping[str, Any]) -> None:
    """The life of a worker process."""
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr, format="%(asctime)s %(name)s: %(message)s")
    random.seed()
    kind = limited(Notes(Path(given["notes"])), given["limits"])
    try:
        asyncio.run(_work(kind, Settings(**given["settings"])))
    except Unavailable as error:
        print(f"gave up: {error}", file=sys.stderr)
        sys.exit(os.EX_TEMPFAIL)


async def _work(kind: type, settings: Settings) -> None:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    async with Penstock.open(operations=[kind], settings=settings) as penstock, penstock.worker() as worker:
        await worker.run(stop)


# --- the campaign


@dataclass
class Campaign:
    """Keeps workers coming and going, and always an operation for them."""

    nursery: Nursery
    folder: Path
    settings: Mapping[str, Any]
    limits: Mapping[str, Any]
    rows: int
    rng: random.Random
    fates: Counter[str] = field(default_factory=Counter)
    findings: list[str] = field(default_factory=list)
    verdicts: Counter[str] = field(default_factory=Counter)
    created: dict[str, float] = field(default_factory=dict)
    end: float = 0.0
    _born: int = 0

    async def run(self, seconds: float) -> None:
        """For so long."""
        await upgrade(str(self.settings["database_url"]), SystemClock())
        self.end = end = now() + seconds
        kind = limited(None, self.limits)
        async with (
            Penstock.open(operations=[kind], settings=Settings(**self.settings)) as penstock,
            asyncio.TaskGroup() as group,
        ):
            for is_steady in (True, True, False, False):
                group.create_task(self._keep(end, is_steady=is_steady))
            group.create_task(self._feed(penstock, kind, end))

    async def _feed(self, penstock: Penstock, kind: type, end: float) -> None:
        """One operation after the other; the last one need not end."""
        file = json_lines({"id": number} for number in range(1, self.rows + 1))
        while now() < end:
            made = await penstock.operations.create(kind, file=file, file_name="rows.jsonl")
            self.created[made.id] = now()
            while not (done := await penstock.operations.get(made.id)).is_settled and now() < end:  # noqa: ASYNC110
                await asyncio.sleep(0.2)
            if done.is_settled:
                self.verdicts[done.status] += 1

    async def _keep(self, end: float, *, is_steady: bool) -> None:
        """One place for a worker: a steady one is never empty for long."""
        while now() < end:
            if not is_steady:
                await asyncio.sleep(self.rng.uniform(0, min(4.0, max(0.0, end - now()))))
            worker = self._spawn()
            await _dies(worker, min(self.rng.expovariate(1 / 4.0), max(0.0, end - now())))
            await self._end(worker, "kill" if self.rng.random() < 0.5 and now() < end else "stop")

    def _spawn(self) -> Child:
        self._born += 1
        who = f"w{self._born}"
        notes = str(self.folder / f"{who}.calls")
        given = {"notes": notes, "limits": self.limits, "settings": self.settings}
        return self.nursery.spawn(who, "worker", self.folder / f"{who}.err", **given)

    async def _end(self, worker: Child, fate: str) -> None:
        self.nursery.signal(worker, signal.SIGKILL if fate == "kill" else signal.SIGTERM)
        if not await _dies(worker, LEAVE_S):
            self.findings.append(f"{worker.who} did not leave within {LEAVE_S:g} s")
            self.nursery.signal(worker, signal.SIGKILL)
            await worker.dead.wait()
        is_well = worker.was_killed or worker.was_told_too_early or worker.exit_code in (0, os.EX_TEMPFAIL)
        if not is_well:
            words = (self.folder / f"{worker.who}.err").read_text()
            self.findings.append(f"{worker.who} ended with {worker.status}: {words[-1000:]}")
        self.fates["gave up" if worker.exit_code == os.EX_TEMPFAIL else fate] += 1

    def calls(self) -> dict[str, list[Call]]:
        """Every call of every process, by operation."""
        since_boot = now() - time.monotonic()  # a death is told by another clock, which stands still in suspend
        found: dict[str, list[Call]] = {}
        for path in self.folder.glob("*.calls"):
            died_at = self.nursery.children[path.stem].died_at
            for made, call in calls_of(path, (died_at or time.monotonic()) + since_boot):
                found.setdefault(made, []).append(call)
        return found


async def _dies(child: Child, within_s: float) -> bool:
    try:
        await asyncio.wait_for(child.dead.wait(), within_s)
    except TimeoutError:
        return False
    return True


def judge(campaign: Campaign, calls: Mapping[str, Sequence[Call]]) -> str:
    """Add to the findings what is too much or too long; returns the figures."""
    limits = campaign.limits
    total = sum(map(len, calls.values()))
    idle_s = idle_s_of(calls, campaign.created, campaign.end)
    if "rate" in limits:
        most, allowed = max(map(most_in_a_second, calls.values()), default=0), int(limits["rate"])
        figure = f"at most {most} began in any second (the limit is {allowed})"
    else:
        most, allowed = max(map(most_at_once, calls.values()), default=0), int(limits["concurrency"])
        figure = f"at most {most} at once (the limit is {allowed})"
    if most > allowed:
        campaign.findings.append(f"the limit was exceeded: {figure}")
    campaign.findings += standstills(idle_s, IDLE_S_MAX)
    if not total:
        campaign.findings.append("nothing was called at all")
    fates = ", ".join(f"{number} {fate}" for fate, number in sorted(campaign.fates.items()))
    ended = ", ".join(f"{number} {status}" for status, number in sorted(campaign.verdicts.items())) or "none ended"
    idle = f"longest idle {max(idle_s.values(), default=0.0):.2f} s"
    return f"{total:,} calls; {figure}; {idle}; workers: {fates}; operations: {ended}"


def main() -> int:
    """Run one campaign."""
    given = _arguments()
    seed = given.seed if given.seed is not None else time.time_ns() % 1_000_000
    limits = {"rate": given.rate} if given.rate else {"concurrency": given.limit}
    # An operation takes about half a minute; the next one begins with nobody holding anything.
    rows = 30 * int(given.rate or given.limit / CALL_S)
    folder = Path(tempfile.mkdtemp(prefix="penstock-limits-", dir=given.folder))
    nursery = Nursery({"worker": live})  # before any loop, thread or server handle exists that a fork could inherit
    print(f"seed {seed}, {given.db}, {limits}, notes in {folder}", flush=True)
    with _database(given.db, folder) as url:
        settings = {**PACE, "database_url": url, "storage_url": str(folder / "files")}
        campaign = Campaign(nursery, folder, settings, limits, rows, random.Random(seed))
        asyncio.run(_run(campaign, given.seconds))
    print(f"{given.db} {limits}: {judge(campaign, campaign.calls())}")
    for finding in campaign.findings:
        print(f"FINDING {finding}")
    if not campaign.findings:
        shutil.rmtree(folder)
    return bool(campaign.findings)


async def _run(campaign: Campaign, seconds: float) -> None:
    close = await campaign.nursery.connect()
    try:
        await campaign.run(seconds)
    finally:
        await close()


@contextmanager
def _database(kind: str, folder: Path) -> Iterator[str]:
    if kind == "sqlite":
        yield f"sqlite:///{folder / 'penstock.db'}"
        return
    with servers.private(kind) as server:
        yield server.url


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.torture.limits", description=__doc__)
    parser.add_argument("--db", choices=DATABASES, default="sqlite")
    parser.add_argument("--seconds", type=float, default=600, help="how long workers come and go")
    parser.add_argument("--limit", type=int, default=1, help="calls at once")
    parser.add_argument("--rate", type=float, help="calls a second, instead of a limit of calls at once")
    parser.add_argument("--seed", type=int, help="chosen and printed unless given")
    parser.add_argument("--folder", type=Path, help="where notes go; they are kept when something was found")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
