"""Racing clients and servers that are killed: `python -m tests.torture.idempotency --store postgresql`.

Every key is sent by several clients at once, through two server processes that are killed again and again: at any
moment, and around each commit. Clients come again until they have an answer. Then it is counted: one effect for each
key that was answered, inside the database and outside; the same bytes for everybody. Exit 1 when something is amiss.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from penstock.clock import SystemClock
from penstock.db.database import Database
from penstock.db.upgrade import upgrade
from penstock.failpoints import KILL_VARIABLE

STORES = ("sqlite", "postgresql", "mariadb", "redis")
SERVER = Path(__file__).with_name("idempotency_server.py")
SERVERS = 2
CONNECTIONS = 100
# Where a server kills itself. Those of one transaction are hit by one kind of request only.
POINTS = ("key_claim", "key_completed", "key_take_over", "key_renew", "unit")
KEY_BYTES = 32
PAUSE_S = 0.05


@dataclass
class Wanted:
    """How much is done."""

    duplicates: int = 2000
    per_key: int = 10
    kills: int = 40
    seed: int = 1


@dataclass
class Tally:
    """What clients saw, and what happened."""

    answers: dict[tuple[str, str], set[bytes]] = field(default_factory=lambda: defaultdict(set))
    uncertain: set[tuple[str, str]] = field(default_factory=set)
    statuses: Counter[str] = field(default_factory=Counter)
    kills: int = 0
    findings: list[str] = field(default_factory=list)


class Fleet:
    """Server processes on one listening socket; who dies is replaced."""

    def __init__(self, url: str, effects: Path, rng: random.Random, *, has_points: bool) -> None:
        self._url, self._effects, self._rng, self._has_points = url, effects, rng, has_points
        self.listener = socket.create_server(("127.0.0.1", 0), backlog=1024)
        self.deaths = 0
        self._is_rough = True
        self._processes: list[subprocess.Popen[bytes]] = []

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self.listener.getsockname()[1]}"

    def tend(self) -> None:
        """Replace who died."""
        for process in [process for process in self._processes if process.poll() is not None]:
            if process.returncode != -signal.SIGKILL:
                raise RuntimeError(f"a server ended by itself with {process.returncode}")
            self._processes.remove(process)
            self.deaths += 1
        while len(self._processes) < SERVERS:
            self._processes.append(self._start())

    def kill_one(self) -> None:
        """Kill one at this very moment."""
        self._rng.choice(self._processes).kill()

    def calm_down(self) -> None:
        """From now on nobody dies."""
        self._is_rough = False
        self.end()
        self.tend()

    def end(self) -> None:
        for process in self._processes:
            process.kill()
            process.wait()

    def _start(self) -> subprocess.Popen[bytes]:
        environment = dict(os.environ)
        environment.pop(KILL_VARIABLE, None)
        if self._is_rough and self._has_points and self._rng.random() < 0.7:
            moment = f"{self._rng.choice(POINTS)}:{self._rng.choice(('before', 'after'))}"
            environment[KILL_VARIABLE] = f"{moment}={self._rng.randint(1, 30)}"
        number = self.listener.fileno()
        command = [sys.executable, str(SERVER), self._url, str(number), str(self._effects)]
        return subprocess.Popen(command, env=environment, pass_fds=[number])


async def campaign(url: str, folder: Path, wanted: Wanted) -> Tally:
    """Send everything, count everything."""
    rng, tally = random.Random(wanted.seed), Tally()
    effects = folder / "effects"
    effects.touch()
    paths = ["/calls"] if url.startswith("redis") else ["/transfers", "/calls"]
    keys = [(paths[number % len(paths)], f"key-{number}") for number in range(wanted.duplicates // wanted.per_key)]
    requests = [key for key in keys for _ in range(wanted.per_key)]
    rng.shuffle(requests)
    fleet = Fleet(url, effects, rng, has_points=not url.startswith("redis"))
    try:
        fleet.tend()
        limits = httpx.Limits(max_connections=CONNECTIONS, max_keepalive_connections=CONNECTIONS)
        async with httpx.AsyncClient(base_url=fleet.base_url, limits=limits, timeout=None) as client:
            sends = [asyncio.create_task(_until_answered(client, tally, path, key)) for path, key in requests]
            await _storm(sends, fleet, tally, wanted)
            for path, key in keys:
                await _until_answered(client, tally, path, key)
    finally:
        fleet.end()
        fleet.listener.close()
    inside = [] if url.startswith("redis") else await _stored(url)
    judge(_happened(effects, inside), keys, tally)
    return tally


async def _storm(sends: Sequence[asyncio.Task[None]], fleet: Fleet, tally: Tally, wanted: Wanted) -> None:
    """Kill a server each time some more clients have their answer, and let the rest come to its end."""
    every = max(1, len(sends) // wanted.kills)
    while not all(send.done() for send in sends):
        await asyncio.wait([send for send in sends if not send.done()], timeout=PAUSE_S, return_when="FIRST_COMPLETED")
        fleet.tend()
        if fleet.deaths >= wanted.kills:
            continue
        if sum(send.done() for send in sends) >= every * (fleet.deaths + 1):
            fleet.kill_one()
    tally.kills = fleet.deaths
    fleet.calm_down()
    for send in sends:
        send.result()


async def _until_answered(client: httpx.AsyncClient, tally: Tally, path: str, key: str) -> None:
    while True:
        try:
            response = await client.post(path, content=f"body of {key}", headers={"Idempotency-Key": key})
        except httpx.TransportError as error:
            tally.statuses[type(error).__name__] += 1
            await asyncio.sleep(PAUSE_S)
            continue
        is_problem = response.headers.get("content-type") == "application/problem+json"
        kind = response.json()["code"] if is_problem else ""
        tally.statuses[f"{response.status_code} {kind}".strip()] += 1
        if response.status_code == 201:
            tally.answers[path, key].add(response.content)
            return
        if kind == "idempotency-key-indeterminate":
            tally.uncertain.add((path, key))
            return
        if response.status_code not in (409, 503):
            tally.findings.append(f"{path} {key}: {response.status_code} {response.text[:200]}")
            return
        await asyncio.sleep(PAUSE_S)


def _happened(effects: Path, inside: Sequence[tuple[str, str]]) -> dict[tuple[str, str], list[str]]:
    """The effects of each key: lines of the file, and rows of the table."""
    happened: dict[tuple[str, str], list[str]] = defaultdict(list)
    for line in effects.read_text().splitlines():
        key, token = line.split()
        happened["/calls", key].append(token)
    for key, token in inside:
        happened["/transfers", key].append(token)
    return happened


def judge(happened: dict[tuple[str, str], list[str]], keys: Sequence[tuple[str, str]], tally: Tally) -> None:
    """Compare what happened with what clients saw, and note what does not fit."""
    for which in keys:
        tokens, answers = happened[which], tally.answers[which]
        if len(tokens) > 1:
            tally.findings.append(f"{which} had {len(tokens)} effects")
        if len(answers) > 1:
            tally.findings.append(f"{which} was answered in {len(answers)} ways")
        if answers and [next(iter(answers))[:KEY_BYTES].decode()] != tokens:
            tally.findings.append(f"{which} was answered for an effect that is not there: {tokens}")
        if which[0] == "/transfers" and (which in tally.uncertain or not answers):
            tally.findings.append(f"{which} was left in doubt, although its effect is in the database")


async def _stored(url: str) -> list[tuple[str, str]]:
    db = await Database.open(url, clock=SystemClock())
    try:
        async with db.connection() as connection:
            found = await connection.exec_driver_sql("SELECT kept_key, token FROM campaign_effects")
            return [(key, token) for key, token in found]
    finally:
        await db.close()


async def prepare(url: str) -> None:
    """An upgraded database with the table of effects, empty."""
    if url.startswith("redis"):
        return
    await upgrade(url, SystemClock())
    db = await Database.open(url, clock=SystemClock())
    try:
        async with db.connection() as connection:
            await connection.exec_driver_sql("DROP TABLE IF EXISTS campaign_effects")
            await connection.exec_driver_sql(
                "CREATE TABLE campaign_effects (kept_key VARCHAR(64) NOT NULL, token VARCHAR(64) NOT NULL)"
            )
    finally:
        await db.close()


@contextmanager
def place(store: str, folder: Path) -> Iterator[str]:
    """A store of one's own."""
    if store == "sqlite":
        yield f"sqlite:///{folder / 'keys.db'}"
        return
    from tests.servers import private

    with private(store) as server:
        yield server.url


def main() -> None:
    """Run a campaign on each store."""
    parser = argparse.ArgumentParser(prog="python -m tests.torture.idempotency", description=__doc__)
    parser.add_argument("--store", action="append", choices=STORES, help="only this one; may be repeated")
    parser.add_argument("--duplicates", type=int, default=2000, help="requests of each store")
    parser.add_argument("--per-key", type=int, default=10, help="requests of each key")
    parser.add_argument("--kills", type=int, default=40)
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    wanted = Wanted(given.duplicates, given.per_key, given.kills, given.seed)
    findings = [finding for store in given.store or STORES for finding in run(store, wanted)]
    sys.exit(bool(findings))


def run(store: str, wanted: Wanted) -> list[str]:
    """One campaign; what was amiss."""
    began, folder = time.monotonic(), Path(tempfile.mkdtemp(prefix="penstock-idempotency-"))
    try:
        with place(store, folder) as url:
            asyncio.run(prepare(url))
            tally = asyncio.run(campaign(url, folder, wanted))
    finally:
        shutil.rmtree(folder)
    answered = sum(bool(answers) for answers in tally.answers.values())
    print(f"{store}: {tally.kills} kills, {answered} keys answered, {len(tally.uncertain)} left in doubt by a kill,"
          f" {len(tally.findings)} findings, {time.monotonic() - began:.0f} s; {dict(sorted(tally.statuses.items()))}",
          *tally.findings, sep="\n  ", flush=True)  # fmt: skip
    return tally.findings


if __name__ == "__main__":
    main()
