"""Senders that are killed while a receiver fails and hangs: `python -m tests.torture.deliveries --db postgresql`.

Operations are made and moved all the while. Two processes write and send deliveries; they are killed at any moment, and
around each of their commits. Then nobody dies any more, and it is counted: every move of every operation was told,
those of one operation in their order, and `verify` finds nothing. Exit 1 when something is amiss.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from penstock import Penstock
from penstock.clock import SystemClock
from penstock.db.upgrade import upgrade
from penstock.failpoints import KILL_VARIABLE
from penstock.secret_keys import new_key
from penstock.settings import Settings

from .. import servers
from .deliveries_sender import parcels

SENDERS = 2
POINTS = ("number_events", "outbox", "delivery_claim", "delivery_settle")
AT_ONCE = 4


@dataclass
class Receiver:
    """Keeps what it took; fails and hangs now and then while things are rough."""

    rng: random.Random
    is_rough: bool = True
    taken: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    requests: int = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
            size = int(head.partition("content-length:")[2].split()[0])
            event = json.loads(await reader.readexactly(size))
            self.requests += 1
            luck = self.rng.random() if self.is_rough else 1.0
            if luck < 0.1:
                await reader.read()  # it hangs until the other side gives up
            elif luck < 0.25:
                writer.write(b"HTTP/1.1 500 No\r\nContent-Length: 0\r\n\r\n")
            else:
                if event["id"] not in self.taken[event["subject"]]:
                    self.taken[event["subject"]].append(event["id"])
                writer.write(b"HTTP/1.1 204 Yes\r\n\r\n")
            await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()


class Senders:
    """Processes that send; who dies is replaced."""

    def __init__(self, environment: dict[str, str], rng: random.Random) -> None:
        self._environment, self._rng = environment, rng
        self._processes: list[subprocess.Popen[bytes]] = []
        self.deaths, self.is_rough = 0, True

    def tend(self) -> None:
        """Replace who died."""
        for process in [each for each in self._processes if each.poll() is not None]:
            if process.returncode != -signal.SIGKILL:
                raise RuntimeError(f"a sender ended by itself with {process.returncode}")
            self._processes.remove(process)
            self.deaths += 1
        while len(self._processes) < SENDERS:
            self._processes.append(self._start())

    def kill_one(self) -> None:
        """Kill one at this very moment."""
        self._rng.choice(self._processes).kill()

    def end(self) -> None:
        for process in self._processes:
            process.kill()
            process.wait()
        self._processes.clear()

    def _start(self) -> subprocess.Popen[bytes]:
        environment = {**self._environment}
        if self.is_rough and self._rng.random() < 0.7:
            moment = f"{self._rng.choice(POINTS)}:{self._rng.choice(('before', 'after'))}"
            environment[KILL_VARIABLE] = f"{moment}={self._rng.randint(1, 10)}"
        return subprocess.Popen([sys.executable, "-m", "tests.torture.deliveries_sender"], env=environment)


async def campaign(url: str, folder: Path, *, kills: int, seed: int) -> list[str]:
    """Make moves and kill senders; what is amiss at the end."""
    rng = random.Random(seed)
    receiver = Receiver(random.Random(seed + 1))
    server = await asyncio.start_server(receiver.serve, "127.0.0.1", 0)
    key = new_key()
    settings = Settings.model_validate(
        {"database_url": url, "storage_url": str(folder), "secret_key": key, "webhook_networks": "127.0.0.0/8"}
    )
    environment = {
        **os.environ, "PENSTOCK_DATABASE_URL": url, "PENSTOCK_STORAGE_URL": str(folder), "PENSTOCK_SECRET_KEY": key,
        "PENSTOCK_WEBHOOK_NETWORKS": "127.0.0.0/8", "PENSTOCK_WEBHOOK_TIMEOUT_S": "1",
        "PENSTOCK_HANDLER_TIMEOUT_S": "1",
    }  # fmt: skip
    await upgrade(url, SystemClock())
    async with Penstock.open(operations=[parcels], settings=settings) as penstock:
        await penstock.webhooks.add(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/")
        senders = Senders(environment, rng)
        is_over = asyncio.Event()
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(AT_ONCE):
                    group.create_task(_make_moves(penstock, is_over, rng))
                while senders.deaths < kills:
                    senders.tend()
                    await asyncio.sleep(rng.uniform(0.2, 2.0))
                    if rng.random() < 0.5:
                        senders.kill_one()
                is_over.set()
            senders.is_rough = receiver.is_rough = False
            senders.end()
            senders.tend()
            await _wait_until_told(penstock)
        finally:
            senders.end()
            server.close()
        events = await _every_event(penstock)
        findings = [f"{each.rule}: {each.message}" for each in await penstock.events.verify()]
    for operation, expected in events.items():
        if receiver.taken[operation] != expected:
            findings.append(f"operation {operation}: expected {expected}, taken {receiver.taken[operation]}")
    told = sum(map(len, events.values()))
    print(f"{senders.deaths} kills, {len(events)} operations, {told} events, {receiver.requests} requests")
    return findings


async def _make_moves(penstock: Penstock, is_over: asyncio.Event, rng: random.Random) -> None:
    while not is_over.is_set():
        made = await penstock.operations.create(parcels, file=b'{"name": "a"}\n', file_name="a.jsonl")
        await asyncio.sleep(rng.uniform(0, 0.3))
        await penstock.operations.cancel(made.id)
        await asyncio.sleep(rng.uniform(0, 0.3))


async def _wait_until_told(penstock: Penstock) -> None:
    """Until nothing is to be sent any more, and nothing to be written."""
    while True:
        events = await penstock.operations.events(limit=100_000)
        counts = await penstock.webhooks.counts()
        if sum(counts.values()) >= len(events) and not counts["Pending"]:
            return
        await asyncio.sleep(0.2)


async def _every_event(penstock: Penstock) -> dict[str, list[str]]:
    """The ids of the events of each operation, as its moves were made."""
    found: dict[str, list[str]] = defaultdict(list)
    cursor: str | None = None
    while True:
        page = await penstock.webhooks.deliveries(cursor=cursor, limit=1000)
        for each in page.items:
            found[each.subject].append(each.event_id)
        cursor = page.next_cursor
        if cursor is None:
            return {
                subject: sorted(ids, key=lambda text: int(text.rpartition("-")[2])) for subject, ids in found.items()
            }


@contextmanager
def _database(kind: str, folder: Path) -> Iterator[str]:
    if kind == "sqlite":
        yield f"sqlite:///{folder / 'penstock.db'}"
        return
    with servers.private(kind) as server:
        yield server.url


def main() -> int:
    """Run one campaign."""
    parser = argparse.ArgumentParser(prog="python -m tests.torture.deliveries", description=__doc__)
    parser.add_argument("--db", choices=("sqlite", *servers.KINDS), default="sqlite")
    parser.add_argument("--kills", type=int, default=100, help="processes to kill")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="penstock-deliveries-") as folder, _database(given.db, Path(folder)) as url:
        findings = asyncio.run(campaign(url, Path(folder), kills=given.kills, seed=given.seed))
    for finding in findings:
        print(finding)
    print(f"{given.db} seed {given.seed}: {len(findings)} findings")
    return bool(findings)


if __name__ == "__main__":
    sys.exit(main())
