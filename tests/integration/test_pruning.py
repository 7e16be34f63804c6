"""Operations that ended long ago are removed with all that is stored about them, and nothing else is; at any crash."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from approvals import Calls, Paper, Wall, a_moment, approvals, at_wall, clean, papers, states, two_engines
from patience import HANG_S
from sqlalchemy import delete, func, insert, select, update
from stored import stored_files

from penstock import Context, Penstock, Pipeline, StepFailed, failpoints, operation, step
from penstock.blobs.tables import references
from penstock.blobs.tables import rows as blobs
from penstock.clock import from_micros
from penstock.db.database import Database
from penstock.errors import InvalidInput, NotFound
from penstock.journal.tables import transitions
from penstock.operations.model import Operation, Pruned
from penstock.operations.operation_ids import number_of
from penstock.operations.pruning import applying, removal
from penstock.operations.pruning.applying import Retention
from penstock.operations.tables import (
    chunk_rows,
    chunks,
    history,
    limit_shares,
    operations,
    requests,
    row_records,
    signals,
    workers,
)
from penstock.operations.worker import background
from penstock.settings import Settings
from penstock.testing import Engine, engine, json_lines

SMALL = Settings(chunk_rows=3)
DAY_S, LEASE_S = 86_400, 10
DAY = timedelta(days=1)
TABLES = (
    operations,
    chunks,
    chunk_rows,
    row_records,
    history,
    signals,
    requests,
    limit_shares,
    transitions,
    blobs,
    references,
)


@operation("file-papers")
async def file_papers(paper: Paper, ctx: Context) -> None:
    if ctx.generation == 0 and paper.code == "bad":
        raise StepFailed("no room")


@pytest.fixture
async def e(database_url: str, tmp_path: Path) -> AsyncIterator[Engine]:
    kinds = [approvals(Calls()), file_papers]
    async with engine(kinds, url=database_url, tmp_path=tmp_path, settings=SMALL) as opened:
        yield opened
        assert await clean(opened) == []


async def eventful(e: Engine, rows: int = 7) -> Operation:
    """An operation with records of every kind: rows that waited, were signalled, failed, and were retried."""
    made = await e.create("approvals", papers(rows))
    await e.work_until_idle()
    for n in range(1, rows + 1):
        await e.penstock.signals.fail(made.id, f"paper-p{n}", "no")
    await e.work_until_idle()
    await e.advance(1)
    await e.operations.retry(made.id, rows=[1, 2, 3])
    await e.work_until_idle()
    for n in (1, 2, 3):
        await e.penstock.signals.complete(made.id, f"paper-p{n}")
    await e.work_until_idle()

    async def hold_a_share(tx: Any) -> None:
        share = {"operation": await number_of(tx, made.id), "worker": "w1", "joined_at": 0, "units": {}}
        await tx.execute(insert(limit_shares), [share])

    await e.penstock.db.transaction(hold_a_share)
    done = await e.operations.get(made.id)
    assert done.status == "CompletedWithErrors"
    return done


async def finished(e: Engine, *codes: str) -> Operation:
    return await e.run("file-papers", [{"code": code} for code in codes])


def now(e: Engine) -> datetime:
    return from_micros(e.clock.now_us())


async def counts(e: Engine) -> dict[str, int]:
    """How many records each table holds."""
    async with e.penstock.db.read() as tx:
        return {t.name: (await tx.execute(select(func.count()).select_from(t))).scalar_one() for t in TABLES}


def stored(folder: Path) -> list[str]:
    """The digests of the files that are stored."""
    return sorted(path.suffix.removeprefix(".") or path.name for path in stored_files(folder))


def age_files(folder: Path, hours: float = 2) -> None:
    """Let every stored file have been stored so long ago."""
    for path in stored_files(folder):
        then = path.stat().st_mtime - hours * 3600
        os.utime(path, (then, then))


async def test_pruning_removes_all_that_is_stored_about_old_operations_and_nothing_else(e, tmp_path):
    old = await eventful(e)
    assert all((await counts(e)).values()), "the operation has records of every kind"
    await e.advance(DAY_S)
    before = now(e)
    young = await finished(e, "p1", "bad")
    open_one = await e.create("approvals", papers(2))
    await e.work_until_idle()
    young_story = await e.operations.row(young.id, 2)
    age_files(tmp_path)
    assert await e.operations.prune(before) == Pruned(operations=1, rows=7, file_bytes=old.file_bytes)
    with pytest.raises(NotFound):
        await e.operations.get(old.id)
    assert [found.id for found in (await e.operations.list()).items] == [open_one.id, young.id]
    assert {event.operation_id for event in await e.operations.events()} == {young.id, open_one.id}
    assert await e.operations.row(young.id, 2) == young_story
    assert stored(tmp_path) == sorted([young.file_sha256, open_one.file_sha256])
    assert await clean(e) == []
    await e.operations.retry(young.id)
    await e.work_until_idle()
    assert await states(e, young) == ["Completed", "Completed"]
    await e.operations.cancel(open_one.id)
    assert (await e.operations.prune(now(e) + DAY)).operations == 2
    assert not any((await counts(e)).values())
    assert stored(tmp_path) == []


async def test_a_dry_run_says_what_would_be_removed_and_removes_nothing(e, tmp_path):
    made = await eventful(e)
    twin = await eventful(e)
    assert made.file_sha256 == twin.file_sha256
    await e.advance(1)
    age_files(tmp_path)
    there = await counts(e)
    would = await e.operations.prune(now(e), dry_run=True)
    assert would == Pruned(operations=2, rows=14, file_bytes=2 * made.file_bytes)
    assert await counts(e) == there
    assert await e.operations.prune(now(e)) == would
    assert await e.operations.prune(now(e), dry_run=True) == Pruned()


async def test_an_operation_that_settled_at_that_instant_or_later_stays(e, tmp_path):
    made = await finished(e, "p1")
    assert made.finished_at is not None
    assert await e.operations.prune(made.finished_at) == Pruned()
    assert (await e.operations.get(made.id)).status == "Completed"
    with pytest.raises(InvalidInput, match="time zone"):
        await e.operations.prune(datetime(2031, 1, 1))


@pytest.fixture
def small_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(removal, "ROWS_EACH", 4)
    monkeypatch.setattr(removal, "RECORDS_EACH", 3)


class Died(Exception):
    """The process is gone."""


async def prune_and_die(e: Engine, at: str) -> None:
    def die(point: str) -> None:
        if point == at:
            raise Died

    with failpoints.armed(die), pytest.raises(Died):
        await e.operations.prune(now(e))


async def test_pruning_that_dies_anywhere_leaves_all_in_order_and_the_next_one_finishes_it(e, tmp_path, small_slices):
    made = await eventful(e)
    await e.advance(1)
    age_files(tmp_path)
    await prune_and_die(e, "prune_begin:before")
    assert await clean(e) == []
    assert (await e.operations.get(made.id)).status == "CompletedWithErrors", "nothing has begun"
    left = [sum((await counts(e)).values())]
    points = ("prune_begin:after", "prune:before", *["prune:after"] * 3)
    for point in (*points, "prune_blob:after", "blob_clear:after", "prune_end:before", "prune_end:after"):
        await prune_and_die(e, point)
        assert await clean(e) == []
        assert (await e.operations.list()).items == []
        for late in (e.operations.retry(made.id), e.operations.retry(made.id, rows=[4]), e.operations.get(made.id)):
            with pytest.raises(NotFound):
                await late
        left.append(sum((await counts(e)).values()))
    assert left[0] == left[1] == left[2] > left[3] > left[4] > left[5] >= left[6] == left[7] == left[8] == 7, (
        "its row goes last, with its share and the record of its file"
    )
    assert left[9] == 0
    assert stored(tmp_path) == []
    assert await e.operations.prune(now(e)) == Pruned()


async def test_remains_are_finished_when_older_operations_are_pruned_too(e, tmp_path, small_slices):
    await eventful(e)
    await e.advance(DAY_S)
    age_files(tmp_path)
    await prune_and_die(e, "prune:after")
    await e.operations.prune(now(e) - 365 * DAY)
    assert not any((await counts(e)).values())


def meanwhile(monkeypatch: pytest.MonkeyPatch, point: str, work: Any) -> None:
    """Do something, once, before the transaction of that name begins."""
    todo, transaction = [work], Database.transaction

    async def after_it(db: Database, of: Any, name: str = "") -> Any:
        if name == point and todo:
            await todo.pop()()
        return await transaction(db, of, name)

    monkeypatch.setattr(Database, "transaction", after_it)


async def test_a_retry_that_comes_before_the_removal_begins_wins(e, tmp_path, monkeypatch):
    made = await finished(e, "p1", "bad")
    await e.advance(1)
    age_files(tmp_path)
    meanwhile(monkeypatch, "prune_begin", lambda: e.operations.retry(made.id))
    assert await e.operations.prune(now(e)) == Pruned()
    await e.work_until_idle()
    assert await states(e, made) == ["Completed", "Completed"]
    assert stored(tmp_path) == [made.file_sha256]


@pytest.mark.parametrize("rows", [None, [2]])
async def test_a_removal_that_begins_before_a_retry_wins(e, tmp_path, monkeypatch, small_slices, rows):
    made = await finished(e, "p1", "bad", "p3", "p4", "p5")
    await e.advance(1)
    age_files(tmp_path)

    name = "retry" if rows is None else "retry_rows"
    meanwhile(monkeypatch, name, lambda: prune_and_die(e, "prune_begin:after"))
    with pytest.raises(NotFound, match="has been removed"):
        await e.operations.retry(made.id, rows=rows)
    assert await clean(e) == []
    await e.operations.prune(now(e))
    assert not any((await counts(e)).values())


@pytest.mark.parametrize("rows", [None, [2]])
async def test_a_retry_of_an_operation_that_is_gone_by_then_says_so(e, tmp_path, monkeypatch, rows):
    made = await finished(e, "p1", "bad")
    await e.advance(1)
    age_files(tmp_path)
    meanwhile(monkeypatch, "retry" if rows is None else "retry_rows", lambda: e.operations.prune(now(e)))
    with pytest.raises(NotFound, match="has been removed"):
        await e.operations.retry(made.id, rows=rows)


async def test_a_control_of_an_operation_that_is_gone_by_then_says_so(e, tmp_path, monkeypatch):
    made = await finished(e, "p1")
    await e.advance(1)
    age_files(tmp_path)
    meanwhile(monkeypatch, "cancel_requested", lambda: e.operations.prune(now(e)))
    with pytest.raises(NotFound, match="has been removed"):
        await e.operations.cancel(made.id)


async def test_a_file_stays_for_as_long_as_an_operation_uses_it(e, tmp_path):
    first = await finished(e, "p1")
    await e.advance(DAY_S)
    between = now(e)
    second = await e.operations.create("file-papers", blob=first.blob_id)
    await e.work_until_idle()
    assert second.blob_id == first.blob_id
    await e.advance(1)
    assert await e.operations.prune(between) == Pruned(operations=1, rows=1)
    assert await clean(e) == []
    assert await e.operations.prune(now(e)) == Pruned(operations=1, rows=1, file_bytes=first.file_bytes)
    assert stored(tmp_path) == []


async def test_a_file_that_was_uploaded_before_stays_when_its_operation_is_removed(e, tmp_path):
    blob = await e.penstock.blobs.upload(b'{"code": "p1"}\n', file_name="papers.jsonl")
    await e.operations.create("file-papers", blob=blob.id)
    await e.work_until_idle()
    await e.advance(1)
    assert await e.operations.prune(now(e), dry_run=True) == Pruned(operations=1, rows=1)
    assert await e.operations.prune(now(e)) == Pruned(operations=1, rows=1)
    assert await e.penstock.blobs.references(blob.id) == []
    assert (await e.penstock.blobs.get(blob.id)).status == "Valid"
    assert stored(tmp_path) == [blob.sha256]


async def without_blobs(e: Engine, folder: Path) -> None:
    """Make the operations those of a release before blobs, whose files are shared by their digest."""
    async with e.penstock.db.write() as tx:
        found = (await tx.execute(select(operations))).all()
        for row in found:
            name, _, mark = row.file_key.partition("@")
            (folder / "files" / name).replace(folder / "files" / row.file_sha256)
            shared = {"blob": None, "file_version": None, "file_key": f"{row.file_sha256}@{mark}"}
            await tx.execute(update(operations).where(operations.c.id == row.id).values(shared))
        await tx.execute(delete(blobs))


async def test_a_file_of_a_release_before_blobs_stays_for_as_long_as_an_operation_uses_it(e, tmp_path):
    first = await finished(e, "p1", "bad")
    await e.advance(DAY_S)
    between = now(e)
    await finished(e, "p1", "bad")
    await without_blobs(e, tmp_path)
    await e.operations.retry(first.id)
    await e.work_until_idle()
    assert stored(tmp_path) == [first.file_sha256]
    await e.advance(1)
    assert await clean(e) == []
    assert await e.operations.prune(now(e)) == Pruned(operations=2, rows=4, files_left=1), "it was stored just now"
    age_files(tmp_path)
    assert await e.operations.prune(between) == Pruned(file_bytes=first.file_bytes)
    assert stored(tmp_path) == []


async def test_a_file_that_was_just_stored_stays_for_the_operation_that_is_about_to_use_it(e, tmp_path, monkeypatch):
    """The same bytes are handed in while their last operation is removed: stored, but their operation not yet."""
    made = await finished(e, "p1")
    await e.advance(1)
    meanwhile(monkeypatch, "create", lambda: e.operations.prune(now(e)))
    again = await e.create("file-papers", [{"code": "p1"}])
    assert again.file_sha256 == made.file_sha256
    assert [found.id for found in (await e.operations.list()).items] == [again.id]
    assert await clean(e) == []
    await e.work_until_idle()
    assert (await e.operations.get(again.id)).status == "Completed"


async def test_several_at_once_remove_everything_once_while_others_look_and_work(database_url, tmp_path, small_slices):
    async with two_engines(file_papers, url=database_url, folder=tmp_path, settings=SMALL) as (one, other):
        for codes in (["p1", "bad"], ["p1", "bad"], ["p3"] * 8):
            await one.run(file_papers, [{"code": code} for code in codes])
        await one.advance(1)
        age_files(tmp_path)
        made = await other.create(file_papers, papers(5))
        before = now(one)
        *pruned, report, _ = await asyncio.gather(
            one.operations.prune(before),
            other.operations.prune(before),
            other.operations.verify(),
            other.work_until_idle(),
        )
        assert report.is_clean
        assert sum(done.rows for done in pruned) == 12
        assert [found.id for found in (await one.operations.list()).items] == [made.id]
        assert stored(tmp_path) == [made.file_sha256]
        assert await clean(one) == []


async def test_the_feed_goes_on_behind_what_was_seen_of_operations_that_are_gone(e, tmp_path):
    await finished(e, "p1")
    seen = (await e.operations.events())[-1].sequence
    await e.advance(1)
    await e.operations.prune(now(e))
    made = await e.create("file-papers", [{"code": "p2"}])
    assert [event.operation_id for event in await e.operations.events(since=seen)] == [made.id]


async def test_the_feed_goes_on_where_nobody_read_it_before_its_last_events_were_removed(e, tmp_path):
    """Those of an upgraded database have numbers, but nobody has counted yet."""
    made = await finished(e, "p1")

    async def upgrade(tx: Any) -> None:
        await tx.execute(transitions.update().values(position=transitions.c.sequence))

    await e.penstock.db.transaction(upgrade)
    async with e.penstock.db.read() as tx:
        last = (await tx.execute(select(func.max(transitions.c.position)))).scalar_one()
    await e.advance(1)
    await e.operations.prune(now(e))
    after = await e.create("file-papers", [{"code": "p2"}])
    assert [event.operation_id for event in await e.operations.events(since=last)] == [after.id] != [made.id]


async def test_a_result_that_comes_after_the_removal_leaves_no_line(database_url, tmp_path):
    wall = Wall()

    @operation("ending")
    class Ending(Pipeline[Paper]):
        @step(retries=2)
        async def work(self, paper: Paper, ctx: Context) -> None:
            if ctx.attempt == 1:
                await wall.stop()

    async with two_engines(Ending, url=database_url, folder=tmp_path) as (frozen, other):
        made = await frozen.create(Ending, papers(1))
        await at_wall(wall, frozen.work_until_idle())
        await other.advance(LEASE_S + 1)
        await other.work_until_idle()
        assert (await other.operations.get(made.id)).status == "Completed"
        await other.advance(1)
        age_files(tmp_path)
        await other.operations.prune(now(other))
        wall.gone.set()
        await a_moment()
        await frozen.work_until_idle()
        assert not any((await counts(other)).values())


async def test_pruning_removes_workers_that_are_long_dead(e):
    async def forget_to_leave(tx: Any) -> None:
        gone = {"id": "w1", "lease_until": e.clock.now_us(), "started_at": 0, "host": "elsewhere", "process": 1}
        await tx.execute(insert(workers), [gone])

    await e.penstock.db.transaction(forget_to_leave)
    await e.advance(2 * 3600)
    await e.operations.prune(now(e))
    async with e.penstock.db.read() as tx:
        assert list((await tx.execute(select(workers.c.id))).scalars()) == [e.worker.lease.id]


# --- workers that prune


async def test_retention_removes_what_is_too_old_in_small_passes(e, tmp_path, monkeypatch, small_slices):
    monkeypatch.setattr(applying, "PASS_TRANSACTIONS", 2)
    retention = Retention(e.penstock.db, e.penstock.files, e.clock, keep={"operations": 30 * DAY_S})
    for _ in range(2):
        await eventful(e)
    young = await finished(e, "p1")
    await retention.tick()
    assert len((await e.operations.list()).items) == 3, "none is that old yet"
    await e.advance(31 * DAY_S)
    retried = await e.operations.get(young.id)
    age_files(tmp_path)
    left = [sum((await counts(e)).values())]
    while left[-1]:
        await retention.tick()
        assert await clean(e) == []
        left.append(sum((await counts(e)).values()))
    assert retried.status == "Completed"
    assert len(left) > 5
    assert left == sorted(set(left), reverse=True), "each pass has removed something"
    assert stored(tmp_path) == []


async def test_without_a_setting_nothing_is_ever_removed(e):
    await finished(e, "p1")
    await e.advance(10_000 * DAY_S)
    retention = Retention(e.penstock.db, e.penstock.files, e.clock, keep=Settings().keep)
    await retention.tick()
    assert len((await e.operations.list()).items) == 1


async def test_a_file_that_cannot_be_removed_holds_up_no_other(e, tmp_path, monkeypatch):
    monkeypatch.setattr(applying, "PASS_OPERATIONS", 1)
    stuck, other = await finished(e, "p1"), await finished(e, "p2")
    await e.advance(2 * DAY_S)
    age_files(tmp_path)
    (file,) = [path for path in stored_files(tmp_path) if path.name.endswith(stuck.file_sha256)]
    file.unlink()
    (file / "kept").mkdir(parents=True)
    retention = Retention(e.penstock.db, e.penstock.files, e.clock, keep={"operations": DAY_S})
    for _ in range(3):
        await retention.tick()
    assert file.exists(), "it is still there"
    assert other.file_sha256 not in stored(tmp_path)
    assert (await counts(e))["penstock_operation"] == 1


@pytest.mark.databases("sqlite")
async def test_a_worker_prunes_by_itself(database_url, tmp_path, monkeypatch):
    monkeypatch.setattr(background, "SWEEP_S", 0.0)
    monkeypatch.setattr(applying, "LOOK_AGAIN_S", 0.0)
    settings = Settings(
        database_url=database_url, storage_url=str(tmp_path / "files"), control_poll_s=0.01, lease_s=3600
    )
    async with Penstock.open(operations=[file_papers], settings=settings) as penstock:
        made = await penstock.operations.create(file_papers, file=json_lines(papers(3)), file_name="papers.jsonl")
        await penstock.run_until_done(made.id)
    age_files(tmp_path)
    brief = settings.model_copy(update={"keep": {"operations": 0}})
    async with Penstock.open(operations=[file_papers], settings=brief) as penstock:
        async with penstock.worker(), asyncio.timeout(HANG_S):
            while stored(tmp_path):  # noqa: ASYNC110  # it happens in the worker
                await asyncio.sleep(0.01)
        assert (await penstock.operations.list()).items == []
