"""A rolling deploy under load: `python -m tests.torture.rolling --db postgresql --seconds 120`.

Worker processes of two releases of one pipeline come, go and are killed side by side, while operations of both are
created and some of the first are migrated to the second. Every call is noted with the release that made it. In the end
every operation must have been run to its end, each step by the release that fits it, and `verify` must find nothing.
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
from collections import Counter, defaultdict
from collections.abc import Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from penstock import Context, Penstock, Pipeline, operation, step
from penstock.clock import SystemClock
from penstock.db.upgrade import upgrade
from penstock.errors import Conflict, NoSuchWait, Unavailable
from penstock.operations.model import Operation
from penstock.settings import Settings
from penstock.testing import json_lines

from .limits import DATABASES, PACE, _database, _dies
from .nursery import Child, Nursery

ROWS = 6
END_S = 120.0  # until all has ended, once nobody is killed any more
RENAMED = {"approval": "consent"}
STEPS = {"1": ("submit", "approval", "book"), "2": ("submit", "consent", "audit", "book")}
MIGRATED = {"submit": "1", "approval": "1", "audit": "2", "book": "2"}  # which release runs which step


class Order(BaseModel):
    id: int


class Notes:
    """What one process notes of its calls; None for one that makes none."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def note(self, release: str, ctx: Context) -> None:
        """A call begins."""
        os.write(self._file, f"{release} {ctx.operation_id} {ctx.row_number} {ctx.step_name}\n".encode())


def first_release(notes: Notes | None) -> type:
    """The pipeline as operations under way were created for it."""

    @operation("orders", version=1)
    class Orders(Pipeline[Order]):
        @step
        async def submit(self, order: Order, ctx: Context) -> str:
            return await called("1", notes, ctx)

        @step.signal(key="order-{row.id}", timeout=3600)
        async def approval(self, order: Order, ctx: Context) -> None:
            await called("1", notes, ctx)

        @step
        async def book(self, order: Order, ctx: Context) -> str:
            return await called("1", notes, ctx)

    return Orders


def second_release(notes: Notes | None) -> type:
    """The pipeline after the deploy: a step was renamed, and one added behind it."""

    @operation("orders", version=2)
    class Orders(Pipeline[Order]):
        @step
        async def submit(self, order: Order, ctx: Context) -> str:
            return await called("2", notes, ctx)

        @step.signal(key="order-{row.id}", timeout=3600)
        async def consent(self, order: Order, ctx: Context) -> None:
            await called("2", notes, ctx)

        @step
        async def audit(self, order: Order, ctx: Context) -> None:
            await called("2", notes, ctx)

        @step
        async def book(self, order: Order, ctx: Context) -> str:
            return await called("2", notes, ctx)

    return Orders


RELEASES = {"1": first_release, "2": second_release}


async def called(release: str, notes: Notes | None, ctx: Context) -> str:
    """What every step does."""
    assert notes is not None
    notes.note(release, ctx)
    await asyncio.sleep(random.uniform(0, 0.02))
    return f"{ctx.step_name} by {release}"


def live(given: Mapping[str, Any]) -> None:
    """The life of a worker process of one release."""
    logging.basicConfig(level=logging.WARNING, stream=sys.stderr, format="%(asctime)s %(name)s: %(message)s")
    random.seed()
    kind = RELEASES[given["release"]](Notes(Path(given["notes"])))
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


@dataclass
class Deploy:
    """Workers of two releases, and operations for both."""

    nursery: Nursery
    folder: Path
    settings: Mapping[str, Any]
    rng: random.Random
    kills: int = 0
    to_migrate: set[str] = field(default_factory=set)
    migrated: set[str] = field(default_factory=set)
    created: dict[str, str] = field(default_factory=dict)  # by operation: its first release
    findings: list[str] = field(default_factory=list)
    _born: int = 0

    async def run(self, seconds: float) -> None:
        """Deploy for so long, then let all end, and judge."""
        await upgrade(str(self.settings["database_url"]), SystemClock())
        async with AsyncExitStack() as stack:
            opened = {
                release: await stack.enter_async_context(
                    Penstock.open(operations=[make(None)], settings=Settings(**self.settings))
                )
                for release, make in RELEASES.items()
            }
            end = time.monotonic() + seconds
            async with asyncio.TaskGroup() as group:
                for release in ("1", "2", "1", "2"):
                    group.create_task(self._keep(release, end))
                group.create_task(self._feed(opened, end))
            await self._let_all_end(opened)
            await self._judge(opened["2"])

    async def _keep(self, release: str, end: float) -> None:
        """One place for a worker of a release; whoever is in it is killed or stopped after a while."""
        while time.monotonic() < end:
            worker = self._spawn(release)
            await _dies(worker, min(self.rng.expovariate(0.5), max(0.0, end - time.monotonic())))
            self.kills += worker.is_alive
            self.nursery.signal(worker, signal.SIGKILL if self.rng.random() < 0.7 else signal.SIGTERM)
            if not await _dies(worker, 30.0):
                self.findings.append(f"{worker.who} did not leave")
                self.nursery.signal(worker, signal.SIGKILL)

    def _spawn(self, release: str) -> Child:
        self._born += 1
        who = f"r{release}-{self._born}"
        given = {"notes": str(self.folder / f"{who}.calls"), "release": release, "settings": self.settings}
        return self.nursery.spawn(who, "worker", self.folder / f"{who}.err", **given)

    async def _feed(self, opened: Mapping[str, Penstock], end: float) -> None:
        file = json_lines({"id": number} for number in range(1, ROWS + 1))
        while time.monotonic() < end:
            release = "2" if len(self.created) % 3 == 2 else "1"
            made = await opened[release].operations.create("orders", file=file, file_name="orders.jsonl")
            self.created[made.id] = release
            if len(self.created) % 3 == 1:
                self.to_migrate.add(made.id)
            await self._advance(opened)
            await asyncio.sleep(self.rng.uniform(0, 0.3))

    async def _advance(self, opened: Mapping[str, Penstock]) -> bool:
        """Migrate some operations whose rows all wait, and let the rows of the others go on; whether all have ended."""
        is_over = True
        for made, release in self.created.items():
            now = await opened[release].operations.get(made)
            is_over &= now.is_settled
            if now.status != "Running" or now.waiting_rows < ROWS:
                continue
            if made in self.to_migrate - self.migrated:
                await self._migrate(opened["2"], made)
            else:
                await self._signal(opened[release], now)
        return is_over

    async def _migrate(self, penstock: Penstock, made: str) -> None:
        try:
            await penstock.operations.migrate(made, RENAMED)
            self.migrated.add(made)
        except Conflict:  # a worker has just claimed a chunk to look at it; the next time
            pass

    async def _signal(self, penstock: Penstock, now: Operation) -> None:
        for row in range(1, ROWS + 1):
            try:
                await penstock.signals.complete(now.id, f"order-{row}", id=f"consent-{row}")
            except NoSuchWait:
                return

    async def _let_all_end(self, opened: Mapping[str, Penstock]) -> None:
        """With one worker of each release that nobody kills."""
        workers = [self._spawn(release) for release in RELEASES]
        until = time.monotonic() + END_S
        while not await self._advance(opened) and time.monotonic() < until:  # noqa: ASYNC110
            await asyncio.sleep(0.1)
        for worker in workers:
            self.nursery.signal(worker, signal.SIGTERM)
            await _dies(worker, 30.0)

    async def _judge(self, penstock: Penstock) -> None:
        calls = self._calls()
        for made, release in self.created.items():
            now = await penstock.operations.get(made)
            right = dict.fromkeys(STEPS[release], release)
            if made in self.migrated:
                right = MIGRATED
            if now.status != "Completed":
                self.findings.append(f"operation {made} of release {release} is {now.status}: {now.trouble}")
            for row in range(1, ROWS + 1):
                found = {(name, by) for name, by in calls[made, row]}
                if found != set(right.items()):
                    self.findings.append(f"operation {made} of release {release}, row {row}: {sorted(found)}")
        report = await penstock.verify()
        self.findings += [str(difference) for difference in report.differences]

    def _calls(self) -> dict[tuple[str, int], Counter[tuple[str, str]]]:
        """By operation and row: the steps that were called, and by which release."""
        found: dict[tuple[str, int], Counter[tuple[str, str]]] = defaultdict(Counter)
        for path in self.folder.glob("*.calls"):
            for line in path.read_text().splitlines():
                release, made, row, name = line.split()
                found[made, int(row)][name, release] += 1
        return found


def main() -> int:
    """Run one deploy."""
    given = _arguments()
    seed = given.seed if given.seed is not None else time.time_ns() % 1_000_000
    folder = Path(tempfile.mkdtemp(prefix="penstock-rolling-", dir=given.folder))
    nursery = Nursery({"worker": live})  # before any loop, thread or server handle exists that a fork could inherit
    print(f"seed {seed}, {given.db}, notes in {folder}", flush=True)
    with _database(given.db, folder) as url:
        settings = {**PACE, "chunk_rows": 2, "database_url": url, "storage_url": str(folder / "files")}
        deploy = Deploy(nursery, folder, settings, random.Random(seed))
        asyncio.run(_run(deploy, given.seconds))
    of_each = Counter(deploy.created.values())
    print(
        f"{given.db}: {of_each['1']} operations of release 1 ({len(deploy.migrated)} migrated), "
        f"{of_each['2']} of release 2, {deploy.kills} workers killed or stopped"
    )
    for finding in deploy.findings:
        print(f"FINDING {finding}")
    if not deploy.findings:
        shutil.rmtree(folder)
    return bool(deploy.findings)


async def _run(deploy: Deploy, seconds: float) -> None:
    close = await deploy.nursery.connect()
    try:
        await deploy.run(seconds)
    finally:
        await close()


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.torture.rolling", description=__doc__)
    parser.add_argument("--db", choices=DATABASES, default="sqlite")
    parser.add_argument("--seconds", type=float, default=120, help="how long workers are killed")
    parser.add_argument("--seed", type=int, help="chosen and printed unless given")
    parser.add_argument("--folder", type=Path, help="where notes go; they are kept when something was found")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
