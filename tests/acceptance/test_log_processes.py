"""Several processes on one SQLite file, killed and frozen at any moment: the file stays whole, with every commit."""

from __future__ import annotations

import random
import re
import signal
import sqlite3
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from patience import HANG_S

from penstock.db.checkpoint import LOG_BYTES
from penstock.operations.proof.symptoms import has_wal_reset_fault

# Folds the log all the time. Its two connections are kept, and a careless one folds many times in one call, so that the
# dangerous moment is a large part of the whole.
FOLDER = """
import itertools, sqlite3, sys
from pathlib import Path
from penstock.db import checkpoint

class Kept(sqlite3.Connection):
    is_careless = sys.argv[2] == "careless"
    def close(self):
        pass
    def execute(self, statement, *given):
        if statement == "PRAGMA synchronous=FULL" or self.is_careless and statement in ("BEGIN IMMEDIATE", "ROLLBACK"):
            return None
        if self.is_careless and "checkpoint" in statement:
            return self.executescript(f"{statement};" * 100)
        return super().execute(statement, *given)

checkpoint.LOG_BYTES = 0
log = checkpoint.WriteAheadLog(Path(sys.argv[1]))
two = [sqlite3.connect(sys.argv[1], isolation_level=None, timeout=0, factory=Kept) for _ in range(2)]
for connection in two:
    connection.execute("PRAGMA synchronous=OFF")
kept = itertools.cycle(two)
log._connect = lambda: next(kept)
print("folding", flush=True)
while True:
    log._due_bytes = 0
    log.tend()
"""

# Writes, and says what was committed; beside it a heart beats on a thread and a connection of its own.
WRITER = """
import asyncio, os, sys, threading
from penstock.clock import SystemClock
from penstock.db.database import Database

url, name, first = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])

async def beat():
    db = Database.connect(url, clock=SystemClock(), pool_size=1)
    while True:
        await db.transaction(lambda tx: tx.exec_driver_sql("UPDATE beat SET n = n + 1 WHERE name = ?", (name,)))
        await asyncio.sleep(0.002)

async def write():
    db = Database.connect(url, clock=SystemClock())
    for number in range(first, 1 << 30):
        row = (name, number, os.urandom(number % 7 * 30_000))
        await db.transaction(lambda tx: tx.exec_driver_sql("INSERT INTO kept VALUES (?, ?, ?)", row))
        print(number, flush=True)

threading.Thread(target=asyncio.run, args=(beat(),), daemon=True).start()
asyncio.run(write())
"""
FREEZES, FREEZES_MAX = 1000, 100_000
WRITERS, KILLS, COMMITS_EACH = 3, 10, 40


@contextmanager
def python(text: str, *arguments: object) -> Iterator[subprocess.Popen[str]]:
    """A Python process that is gone at the end."""
    words = [sys.executable, "-c", text, *map(str, arguments)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


class Ledger:
    """A file written by this process, which knows what must be in it."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection, self._written, self._rng = connection, 0, random.Random(7)
        for pragma in ("journal_mode=WAL", "synchronous=OFF", "wal_autocheckpoint=0"):
            connection.execute(f"PRAGMA {pragma}")
        connection.execute("CREATE TABLE pages (id INTEGER PRIMARY KEY, bytes BLOB)")
        connection.execute("CREATE TABLE written (n INTEGER)")
        connection.execute("INSERT INTO written VALUES (0)")

    def write(self, size: int) -> None:
        """Commit something, unless somebody else is writing; `Spoilt` when an earlier commit is missing."""
        try:
            self._connection.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError:
            return
        try:
            self._write(size)
        except sqlite3.DatabaseError as error:
            raise Spoilt(str(error)) from error

    def _write(self, size: int) -> None:
        ((found,),) = self._connection.execute("SELECT n FROM written").fetchall()
        if found != self._written:
            raise Spoilt(f"{self._written} commits, of which {found} are there")
        page = (self._rng.randrange(300), self._rng.randbytes(size))
        self._connection.execute("UPDATE written SET n = n + 1")
        self._connection.execute("INSERT OR REPLACE INTO pages VALUES (?, ?)", page)
        self._connection.execute("COMMIT")
        self._written += 1


class Spoilt(Exception):
    """The file has lost something."""


def freeze_again_and_again(file: Path, how: str, times: int) -> None:
    """Write while a process that folds the log is frozen at random moments."""
    rng = random.Random()
    with closing(sqlite3.connect(file, isolation_level=None, timeout=0)) as connection:
        ledger = Ledger(connection)
        with python(FOLDER, file, how) as other:
            assert other.stdout is not None
            assert other.stdout.readline() == "folding\n"
            for _ in range(times):
                ledger.write(40_000)  # a long log, which is folded whole while we wait
                time.sleep(0.0003 + rng.random() * 0.0002)
                other.send_signal(signal.SIGSTOP)
                try:
                    ledger.write(10)  # begins it anew
                finally:
                    other.send_signal(signal.SIGCONT)
                time.sleep(0.0001)
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


def test_a_process_frozen_anywhere_in_folding_the_log_spoils_nothing(tmp_path: Path):
    freeze_again_and_again(tmp_path / "kept.db", "careful", FREEZES)


@pytest.mark.skipif(not has_wal_reset_fault(sqlite3.sqlite_version), reason="this SQLite has no such fault")
def test_folding_the_log_without_the_write_lock_is_caught(tmp_path: Path):
    with pytest.raises(Spoilt):
        freeze_again_and_again(tmp_path / "kept.db", "careless", FREEZES_MAX)


def test_processes_that_are_killed_while_they_write_and_fold_leave_a_whole_file(tmp_path: Path):
    file = tmp_path / "kept.db"
    with closing(sqlite3.connect(file, isolation_level=None)) as connection:
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("CREATE TABLE kept (name INTEGER, number INTEGER, bytes BLOB, PRIMARY KEY (name, number))")
        connection.execute("CREATE TABLE beat (name INTEGER PRIMARY KEY, n INTEGER)")
        connection.executemany("INSERT INTO beat VALUES (?, 0)", [(name,) for name in range(WRITERS)])
    writers = [Writer(file, name) for name in range(WRITERS)]
    rng, longest = random.Random(11), 0
    try:
        for _ in range(KILLS):
            victim = rng.choice(writers)
            victim.work_until(len(victim.acknowledged()) + COMMITS_EACH)
            time.sleep(rng.random() / 20)
            longest = max(longest, log_bytes(file))
            victim.die()
            victim.begin()
    finally:
        for writer in writers:
            writer.die()
    with closing(sqlite3.connect(file)) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        for writer in writers:
            stored = connection.execute("SELECT number FROM kept WHERE name = ?", (writer.name,)).fetchall()
            assert writer.acknowledged() <= {number for (number,) in stored}
        assert sum(n for (n,) in connection.execute("SELECT n FROM beat")) > KILLS
    assert LOG_BYTES <= longest < 4 * LOG_BYTES


class Writer:
    """One writer process after another, each killed when the next is wanted."""

    def __init__(self, file: Path, name: int) -> None:
        self.name, self._url, self._folder = name, f"sqlite:///{file}", file.parent
        self._said: list[Path] = []  # by each life, for the last word of one may be cut off
        self.begin()

    def begin(self) -> None:
        first = max(self.acknowledged(), default=0) + 2  # the last commit may not have been said
        self._said.append(self._folder / f"{self.name}-{len(self._said)}.said")
        with self._said[-1].open("w") as out:
            words = [sys.executable, "-c", WRITER, self._url, str(self.name), str(first)]
            self._process = subprocess.Popen(words, stdout=out)

    def die(self) -> None:
        self._process.kill()
        self._process.wait()

    def acknowledged(self) -> set[int]:
        """What it has said was committed."""
        return {int(word) for said in self._said for word in re.findall(r"(\d+)\n", said.read_text())}

    def work_until(self, many: int) -> None:
        """Wait until so much was committed."""
        ends = time.monotonic() + HANG_S
        while len(self.acknowledged()) < many:
            assert time.monotonic() < ends
            assert self._process.poll() is None
            time.sleep(0.02)


def log_bytes(file: Path) -> int:
    log = file.with_name(f"{file.name}-wal")
    return log.stat().st_size if log.exists() else 0
