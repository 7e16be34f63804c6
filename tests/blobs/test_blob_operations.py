"""Operations take their input from blobs: only Valid ones, read where they are, and broken when they are others."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import obstore
import pytest
from blob_worker import Ship
from blob_worker import settings as worker_settings
from patience import HANG_S
from pydantic import BaseModel
from sqlalchemy import select

from penstock import Context, Penstock, Pipeline, operation, step
from penstock.blobs import ranges
from penstock.blobs.checks.policy import BlobPolicy
from penstock.blobs.objects import ObjectStorage
from penstock.clock import ManualClock, from_micros
from penstock.errors import Conflict, FileRejected, InvalidInput, NotFound
from penstock.operations.tables import operations, workers
from penstock.settings import Settings
from penstock.testing import Engine, engine

ROWS = int(os.environ.get("PENSTOCK_TEST_BLOB_ROWS", "20000"))


class Item(BaseModel):
    id: int
    name: str


@operation("take", row_key="id")
class Take(Pipeline[Item]):
    """Take items; those called bad fail."""

    @step
    async def store(self, item: Item, ctx: Context) -> str:
        if item.name == "bad":
            raise RuntimeError("no")
        return item.name


def table(rows: int, name: str = "x") -> bytes:
    return b"id,name\n" + b"".join(b"%d,%s\n" % (n, name.encode()) for n in range(1, rows + 1))


@asynccontextmanager
async def on_storage(url: str, storage_url: str, **given: Any) -> AsyncIterator[Engine]:
    clock = ManualClock()
    settings = Settings(database_url=url, storage_url=storage_url, chunk_rows=100)
    opened = Penstock.open(operations=[Take], settings=settings, clock=clock, **given)
    async with opened as penstock, Engine(penstock, clock) as made:
        yield made


@pytest.fixture
async def e(database_url: str, tmp_path: Path) -> AsyncIterator[Engine]:
    """An engine with a folder, on each database in turn."""
    async with engine([Take], url=database_url, tmp_path=tmp_path) as made:
        yield made


async def finished(e: Engine, operation_id: str) -> Any:
    await e.work_until_idle()
    return await e.operations.get(operation_id)


# --- on every database


@pytest.mark.covers("SM-048")
async def test_the_file_of_an_operation_is_a_valid_blob_that_it_uses(e: Engine):
    made = await e.create(Take, table(3), file_name="items.csv")
    assert made.blob_id is not None
    blob = await e.penstock.blobs.get(made.blob_id)
    assert (blob.status, blob.file_name, blob.sha256, blob.is_temporary) == (
        "Valid", "items.csv", made.file_sha256, True,
    )  # fmt: skip
    assert [each.owner for each in await e.penstock.blobs.references(blob.id)] == [f"operation:{made.id}"]
    with pytest.raises(Conflict, match=f"is used by operation:{made.id}"):
        await e.penstock.blobs.delete(blob.id, "old")
    assert (await finished(e, made.id)).successful_rows == 3
    assert (await e.operations.verify(deep=True)).is_clean
    assert await e.penstock.blobs.verify(deep=True) == []


async def test_several_operations_can_use_one_uploaded_blob(e: Engine):
    blob = await e.penstock.blobs.upload(table(4), file_name="items.csv")
    made = [await e.operations.create(Take, blob=blob.id) for _ in range(2)]
    assert {(each.file_name, each.file_sha256, each.blob_id) for each in made} == {("items.csv", blob.sha256, blob.id)}
    assert len(await e.penstock.blobs.references(blob.id)) == 2
    for each in made:
        assert (await finished(e, each.id)).successful_rows == 4


async def test_an_operation_starts_only_from_a_valid_blob(e: Engine):
    blobs = e.penstock.blobs
    pending = (await blobs.initiate("items.csv")).blob
    rejected = await blobs.upload(b"MZ\x90", file_name="items.csv")
    deleted = await blobs.delete((await blobs.upload(table(1), file_name="items.csv")).id, "old")
    for blob in (pending, rejected, deleted):
        with pytest.raises((Conflict, InvalidInput), match=f"is {blob.status}"):
            await e.operations.create(Take, blob=blob.id)
    with pytest.raises(NotFound, match="no blob has the id"):
        await e.operations.create(Take, blob="01900000-0000-7000-8000-000000000000")
    with pytest.raises(InvalidInput, match="a file or a blob"):
        await e.operations.create(Take)
    with pytest.raises(InvalidInput, match="a file or a blob"):
        await e.operations.create(Take, blob=pending.id, file=b"")
    assert (await e.operations.list()).items == []


async def test_of_a_deletion_and_a_new_operation_at_once_one_wins(e: Engine):
    for _ in range(4):
        blob = await e.penstock.blobs.upload(table(1), file_name="items.csv")
        made, deleted = await asyncio.gather(
            e.operations.create(Take, blob=blob.id), e.penstock.blobs.delete(blob.id, "old"), return_exceptions=True
        )
        now = (await e.penstock.blobs.get(blob.id)).status
        if isinstance(made, Exception):
            assert (now, isinstance(deleted, Exception)) == ("Deleted", False)
        else:
            assert (now, type(deleted)) == ("Valid", Conflict)
            assert (await finished(e, made.id)).status == "Completed"


async def test_a_file_that_a_scanner_refuses_makes_no_operation(database_url: str, tmp_path: Path):
    policy = BlobPolicy(scanner=lambda stream: "Eicar" if b"EICAR" in stream.read() else None)
    async with on_storage(database_url, str(tmp_path / "files"), blob_policy=policy) as e:
        with pytest.raises(FileRejected, match="Eicar") as refused:
            await e.create(Take, table(1, "EICAR"), file_name="items.csv")
        assert refused.value.code == "scanner"
        assert (await e.operations.list()).items == []
        (blob,) = (await e.penstock.blobs.list()).items
        assert (blob.status, "Eicar" in str(blob.rejection_reason)) == ("Rejected", True)
        made = await e.create(Take, table(1), file_name="items.csv")
        assert (await finished(e, made.id)).status == "Completed"


# --- from S3, on SQLite


@pytest.fixture
async def far(s3_url: str, tmp_path: Path) -> AsyncIterator[Engine]:
    """An engine whose files are in S3."""
    async with on_storage(f"sqlite:///{tmp_path / 'penstock.db'}", s3_url) as made:
        yield made


def store_of(e: Engine) -> Any:
    assert isinstance(e.penstock.files, ObjectStorage)
    return e.penstock.files.store


async def stored(e: Engine, blob: str | None) -> str:
    assert blob is not None
    return str((await e.penstock.blobs.get(blob)).storage_key).partition("@")[0]


async def test_an_operation_reads_its_file_from_s3(far: Engine, tmp_path: Path):
    made = await far.create(Take, table(2500), file_name="items.csv")
    done = await finished(far, made.id)
    assert (done.status, done.successful_rows) == ("Completed", 2500)
    assert (await far.operations.row(made.id, 2500)).row_key == "2500"
    assert not any(entry.is_dir() for entry in os.scandir(tmp_path)), "no folder is used"
    assert (await far.operations.verify(deep=True)).is_clean
    await far.advance(10)
    blob = await stored(far, made.blob_id)
    purged = await far.operations.prune(from_micros(far.clock.now_us()))
    assert (purged.operations, purged.file_bytes) == (1, len(table(2500)))
    with pytest.raises(FileNotFoundError):
        obstore.head(store_of(far), blob)


@pytest.mark.parametrize("when", ["before it is read", "while it is read"])
@pytest.mark.parametrize("harm", ["gone", "changed"])
async def test_a_file_that_is_gone_or_changed_breaks_its_operation_with_the_reason(
    far: Engine, harm: str, when: str, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(ranges, "FIRST_BYTES", 1000)
    monkeypatch.setattr(ranges, "MOST_BYTES", 1000)
    made = await far.create(Take, table(1000), file_name="items.csv")
    name, store = await stored(far, made.blob_id), store_of(far)

    def spoil() -> None:
        if harm == "gone":
            obstore.delete(store, name)
        else:
            obstore.put(store, name, table(1000, "y"))

    if when == "before it is read":
        spoil()
    else:
        after_ranges(monkeypatch, 4, spoil)
    done = await finished(far, made.id)
    assert done.status == "Failed"
    wanted = {"gone": ("gone from the storage", "was removed while"), "changed": ("was changed after", "was replaced")}
    assert any(words in str(done.error) for words in wanted[harm]), done.error


def after_ranges(monkeypatch: pytest.MonkeyPatch, number: int, act: Callable[[], None]) -> list[tuple[int, int]]:
    """Act once after so many ranges were read; the ranges, as they are asked for."""
    asked: list[tuple[int, int]] = []
    get = obstore.get

    def counted(store: Any, name: str, *, options: Any) -> Any:
        asked.append(tuple(options["range"]))
        if len(asked) == number + 1:
            act()
        return get(store, name, options=options)

    monkeypatch.setattr(obstore, "get", counted)
    return asked


async def test_another_worker_goes_on_reading_where_the_last_one_died(far: Engine, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(ranges, "FIRST_BYTES", 10_000)
    monkeypatch.setattr(ranges, "MOST_BYTES", 10_000)
    made = await far.create(Take, table(6000, "x" * 200), file_name="items.csv")
    stopped, released = asyncio.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    def die() -> None:
        loop.call_soon_threadsafe(stopped.set)
        released.wait(HANG_S)

    asked = after_ranges(monkeypatch, 80, die)
    await far.worker.tick()
    await stopped.wait()
    await far.crash()
    released.set()
    read = (await far.operations.get(made.id)).rows_read
    assert 0 < read < 6000
    before = len(asked)
    done = await finished(far, made.id)
    assert (done.status, done.successful_rows) == ("Completed", 6000)
    header = 70_000  # with what is looked at to find the delimiter
    resumed = [start for start, _ in asked[before:] if start >= header]
    assert min(resumed) > read * 200 > header, "what was stored is not read again"


async def test_a_store_that_is_away_breaks_nothing(far: Engine, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(ranges, "PAUSE_S", 0)
    made = await far.create(Take, table(10), file_name="items.csv")

    def away(*given: object, **named: object) -> None:
        raise obstore.exceptions.GenericError("the network is away")

    with monkeypatch.context() as patch:
        patch.setattr(obstore, "get", away)
        found = await finished(far, made.id)
        assert found.status == "Validating"
        assert "the network is away" in str(found.trouble)
    await far.advance(3600)
    assert (await finished(far, made.id)).status == "Completed"


# --- processes


@pytest.fixture
def processes(s3_server: str, tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Starts workers, and ends them."""
    started: list[subprocess.Popen[str]] = []
    (tmp_path / "met").mkdir()
    (tmp_path / "gate").touch()

    def start(*words: str) -> subprocess.Popen[str]:
        script = str(Path(__file__).with_name("blob_worker.py"))
        place = os.environ | {"PENSTOCK_TEST_PLACE": str(tmp_path)}
        started.append(subprocess.Popen([sys.executable, script, *words], stdout=subprocess.PIPE, text=True, env=place))
        assert started[-1].stdout is not None
        assert started[-1].stdout.readline() == "ready\n"
        return started[-1]

    yield start
    (tmp_path / "gate").unlink(missing_ok=True)
    for process in started:
        process.kill()
        process.communicate()


@pytest.mark.databases("postgresql")
async def test_two_workers_read_one_file_from_s3_and_one_that_is_killed_loses_nothing(
    database_url: str, s3_url: str, tmp_path: Path, processes: Callable[..., subprocess.Popen[str]]
):
    by_process = {process.pid: process for process in [processes(database_url, s3_url) for _ in range(2)]}
    async with Penstock.open(operations=[Ship], settings=worker_settings(database_url, s3_url)) as penstock:
        rows = b"id,city\n" + b"".join(b"%d,Lyon\n" % n for n in range(1, ROWS + 1))
        made = await penstock.operations.create(Ship, file=rows, file_name="parcels.csv")
        async with asyncio.timeout(HANG_S):
            while len(os.listdir(tmp_path / "met")) < 2:  # noqa: ASYNC110  # other processes
                await asyncio.sleep(0.02)
        async with penstock.db.read() as tx:
            owner = select(workers.c.process).join(operations, operations.c.owner == workers.c.id)
            reader = (await tx.execute(owner)).scalar_one()
        by_process[reader].kill()
        by_process[reader].wait()
        (tmp_path / "gate").unlink()
        async with asyncio.timeout(HANG_S):
            done = await penstock.operations.wait(made.id)
        assert (done.status, done.total_rows, done.successful_rows) == ("Completed", ROWS, ROWS)
        assert (await penstock.operations.verify()).is_clean
