"""SQLite's write-ahead log: it stays short, whoever reads; and nobody writes while it is folded into the file."""

from __future__ import annotations

import os
import shutil
import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from sqlalchemy import make_url

from penstock import failpoints
from penstock.clock import SystemClock
from penstock.db.checkpoint import LOG_BYTES, WriteAheadLog
from penstock.db.connection import Connection
from penstock.db.database import Database

pytestmark = pytest.mark.databases("sqlite")

MIB = 1 << 20


@pytest.fixture
def file(database_url: str) -> Path:
    return Path(str(make_url(database_url).database))


def log_bytes(file: Path) -> int:
    log = file.with_name(f"{file.name}-wal")
    return log.stat().st_size if log.exists() else 0


def shell(file: Path) -> closing[sqlite3.Connection]:
    """A connection of somebody else's, which knows nothing of Penstock."""
    return closing(sqlite3.connect(file, timeout=0, isolation_level=None, check_same_thread=False))


async def write(db: Database, size: int = MIB) -> None:
    """A commit that adds so much to the log."""

    async def work(tx: Connection) -> None:
        await tx.exec_driver_sql("CREATE TABLE IF NOT EXISTS ballast (bytes BLOB)")
        await tx.exec_driver_sql("INSERT INTO ballast VALUES (?)", (os.urandom(size),))

    await db.transaction(work)


@contextmanager
def at_fold(action: Callable[[], object]) -> Iterator[list[str]]:
    """Do something at each moment when the log is about to be folded; the list has the moments so far."""
    moments: list[str] = []

    def act(point: str) -> None:
        if point == "fold:before":
            moments.append(point)
            action()

    with failpoints.armed(act):
        yield moments


def say_nothing() -> None:
    """Only count."""


async def test_the_log_stays_short_over_a_long_run_of_writes(database: Database, file: Path):
    sizes = []
    for _ in range(30):
        await write(database)
        sizes.append(log_bytes(file))
    assert max(sizes) < LOG_BYTES + 2 * MIB
    assert os.stat(file).st_size > 20 * MIB


async def test_a_short_log_is_left_alone(database: Database):
    with at_fold(say_nothing) as folds:
        for _ in range(20):
            await write(database, size=1000)
    assert folds == []


async def test_a_log_that_begins_anew_is_not_folded_again_until_it_has_grown(database: Database):
    with at_fold(say_nothing) as folds:
        for _ in range(30):
            await write(database)
    assert 5 <= len(folds) <= 8


async def test_a_reader_that_stays_keeps_the_log_only_until_it_leaves(database: Database, file: Path):
    with shell(file) as reader, at_fold(say_nothing) as folds:
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM penstock_operation").fetchall()
        for _ in range(12):
            await write(database)
        assert log_bytes(file) > 12 * MIB
        assert len(folds) < 8, "each vain try waits for more to do than the last"
        reader.execute("ROLLBACK")
    for _ in range(6):
        await write(database)
    assert log_bytes(file) < LOG_BYTES + 2 * MIB


async def test_readers_that_follow_each_other_closely_do_not_keep_the_log_for_ever(database: Database, file: Path):
    leave = threading.Event()

    def read_in_relay() -> None:
        """At every moment one of two is reading what is committed last."""
        with shell(file) as one, shell(file) as other:
            while not leave.is_set():
                for arriving, leaving in ((one, other), (other, one)):
                    arriving.execute("BEGIN")
                    arriving.execute("SELECT count(*) FROM penstock_operation").fetchall()
                    leave.wait(0.002)
                    if leaving.in_transaction:
                        leaving.execute("ROLLBACK")

    sizes = []
    readers = threading.Thread(target=read_in_relay)
    readers.start()
    try:
        for _ in range(60):
            await write(database)
            sizes.append(log_bytes(file))
    finally:
        leave.set()
        readers.join()
    assert max(sizes) < 40 * MIB


async def test_nobody_can_write_while_the_log_is_folded(database: Database, file: Path):
    with shell(file) as somebody:
        refused = []

        def try_to_write() -> None:
            with pytest.raises(sqlite3.OperationalError, match="locked"):
                somebody.execute("BEGIN IMMEDIATE")
            refused.append(True)

        with at_fold(try_to_write) as folds:
            for _ in range(6):
                await write(database)
    assert refused == [True] * len(folds)
    assert folds


async def test_whoever_finds_a_writer_at_work_leaves_the_log_to_it(database: Database, file: Path):
    for _ in range(4):
        await write(database)
    with shell(file) as somebody, at_fold(say_nothing) as folds:
        somebody.execute("PRAGMA wal_autocheckpoint=0")
        somebody.execute("BEGIN IMMEDIATE")
        somebody.execute("INSERT INTO ballast VALUES (?)", (os.urandom(MIB),))
        WriteAheadLog(file).tend()
        assert folds == []
        somebody.execute("COMMIT")
        WriteAheadLog(file).tend()
        assert len(folds) == 1


async def test_no_connection_folds_the_log_by_itself(database: Database, monkeypatch: pytest.MonkeyPatch, file: Path):
    monkeypatch.setattr(WriteAheadLog, "tend", lambda _: None)
    before = os.stat(file).st_size
    for _ in range(8):
        await write(database)
    assert os.stat(file).st_size == before
    assert log_bytes(file) > 8 * MIB


async def test_whoever_leaves_last_folds_what_is_left(database_url: str, file: Path):
    one = await Database.open(database_url, clock=SystemClock())
    other = await Database.open(database_url, clock=SystemClock())
    await write(one)
    await write(other)
    await one.close()
    assert log_bytes(file) > 2 * MIB
    await other.close()
    assert log_bytes(file) == 0
    with shell(file) as later:
        assert later.execute("SELECT count(*) FROM ballast").fetchall() == [(2,)]


async def test_a_commit_stands_when_the_log_behind_it_cannot_be_folded(
    database: Database, file: Path, caplog: pytest.LogCaptureFixture
):
    def fail() -> None:
        raise sqlite3.OperationalError("database or disk is full")

    with at_fold(fail) as folds:
        for _ in range(6):
            await write(database)
    assert folds
    assert "could not be folded: database or disk is full" in caplog.text
    await write(database)
    assert log_bytes(file) < 9 * MIB
    async with database.read() as tx:
        assert (await tx.exec_driver_sql("SELECT count(*) FROM ballast")).scalar() == 7


async def test_a_file_that_was_moved_away_is_not_made_again(tmp_path: Path):
    (tmp_path / "gone.db-wal").write_bytes(bytes(LOG_BYTES + 1))
    WriteAheadLog(tmp_path / "gone.db").tend()
    assert not (tmp_path / "gone.db").exists()


async def test_a_database_behind_a_link_has_its_log_beside_the_file_itself(database: Database, file: Path):
    link = file.with_name("link.db")
    link.symlink_to(file)
    linked = Database.connect(f"sqlite:///{link}", clock=SystemClock())
    with at_fold(say_nothing) as folds:
        for _ in range(6):
            await write(linked)
    await linked.close()
    assert folds


async def test_a_database_named_as_a_uri_is_the_same_file(file: Path):
    spaced = shutil.copy(file, file.with_name("a b.db"))
    named = Database.connect(f"sqlite:///file:{spaced.parent}/a%20b.db?uri=true", clock=SystemClock())
    with at_fold(say_nothing) as folds:
        for _ in range(6):
            await write(named)
    await named.close()
    assert folds


async def test_folding_leaves_no_files_open(database: Database):
    for _ in range(6):
        await write(database)
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(30):
        await write(database)
    assert len(os.listdir("/proc/self/fd")) == before
