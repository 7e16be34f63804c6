"""Chunks that a reader leaves unread: who validates them reads them too, and nothing else is different."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from approvals import Paper, Wall, a_moment, at_wall, chunks_of, clean, on_withdraw, papers, two_engines
from left_chunks import SMALL, Bench, csv_of, every_row, left_rows, mixed, raw_chunks, read_for_others
from patience import HANG_S
from pydantic import BaseModel
from sqlalchemy import select
from stored import count_of, stored_files

from penstock import Context, Pipeline, operation, step
from penstock.errors import FileRejected
from penstock.formats import Batch, Reader
from penstock.operations.chunk.owned import OwnedChunk
from penstock.operations.model import Operation
from penstock.operations.running.validation_jobs import ValidateJob
from penstock.operations.tables import chunk_rows, chunks
from penstock.operations.worker import chunk_runner
from penstock.settings import Settings
from penstock.testing import Engine, engine, json_lines

# Of chunks this large two pieces are read, one after the other.
LARGE = Settings(chunk_rows=600, flush_rows=600, cancel_grace_s=0)

PLAIN = csv_of(mixed(26))
FILES: dict[str, tuple[str, bytes]] = {
    "plain": ("a.csv", PLAIN),
    "CRLF": ("a.csv", PLAIN.replace(b"\n", b"\r\n")),
    "no newline at the end": ("a.csv", PLAIN.rstrip()),
    "too few and too many cells": ("a.csv", PLAIN.replace(b"p6,front", b"p6").replace(b"p9,front", b"p9,front,x")),
    "NUL": ("a.csv", PLAIN.replace(b"p6,front", b"p6,fr\0nt")),
    "too long": ("a.csv", PLAIN.replace(b"p6,front", b"p6," + b"x" * 200)),
    "quotes": ("a.csv", PLAIN.replace(b"p6,front", b'"p6","front\n\ndesk"').replace(b"p9,front", b'"p""9",""')),
    "text behind a quote": ("a.csv", PLAIN.replace(b"p6,front", b'"p6"x,front')),
    "blank lines": ("a.csv", PLAIN.replace(b"p6,front", b"\n\np6,front\n").replace(b"p9,front", b"p9,front\n\r\n")),
    "lone CR": ("a.csv", PLAIN.replace(b"p6,front\np7", b"p6,front\rp7")),
    "semicolons and UTF-8": ("a.csv", PLAIN.replace(b",", b";").replace(b"p6;front", "p6;Schalter für Ä;".encode())),
    "JSON Lines": ("a.jsonl", json_lines(mixed(26))),
    "broken JSON Lines": ("a.jsonl", json_lines(mixed(26)).replace(b'"p6"', b'"p6').replace(b"p9", b"\xff")),
    "JSON array": ("a.json", b"[" + b",".join(json_lines([row]) for row in mixed(26)) + b"]"),
}  # fmt: skip


async def stored_chunks(e: Engine) -> set[int]:
    """The first rows of the chunks whose rows are stored."""
    async with e.penstock.db.read() as tx:
        query = select(chunks.c.first_row).join(chunk_rows, chunk_rows.c.chunk == chunks.c.id)
        return set((await tx.execute(query)).scalars())


async def outcome(e: Engine, made: Operation) -> dict[str, Any]:
    """All that can be said of an operation's rows; when it was is not part of it."""
    done = await e.operations.get(made.id)
    errors = (await e.operations.errors(made.id, data=True, limit=1000)).items
    return {
        "status": done.status,
        "counts": (done.total_rows, done.successful_rows, done.failed_rows, done.cancelled_rows),
        "rows": [(row.number, row.row_key, row.state, row.data) for row in await every_row(e, made)],
        "errors": [(x.row, x.row_key, x.step, x.error_type, x.message, x.faults, x.attempt, x.data) for x in errors],
    }


async def until_left(e: Engine, made: Operation) -> list[int]:
    """The rows that a reader leaves while it goes on, as soon as they are stored."""
    async with asyncio.timeout(HANG_S):
        while not (left := await left_rows(e, made)):
            pass
    return left


# Who stores the rows


async def test_rows_are_stored_by_who_validates_them(database_url: str, tmp_path: Path):
    bench = Bench()
    async with two_engines(bench.kind, url=database_url, folder=tmp_path, settings=SMALL) as (reader, other):
        made = await reader.create(bench.kind, csv_of(papers(30)), file_name="a.csv")
        await read_for_others(reader)
        first_rows = {chunk.first_row for chunk in await chunks_of(reader, made)}
        left = await left_rows(reader, made)
        assert len(left) >= 20
        assert await stored_chunks(reader) == first_rows - set(left)
        unread = await reader.operations.row(made.id, left[0])
        assert (unread.state, unread.row_key, unread.data) == ("Pending", None, None)
        assert (await reader.operations.rows(made.id, row_key=f"p{left[0]}")).items == []
        await other.work_until_idle()
        assert await stored_chunks(other) == first_rows
        rows = await every_row(other, made)
        assert [(row.number, row.row_key, row.data) for row in rows] == [
            (n, paper["code"], paper) for n, paper in enumerate(papers(30), start=1)
        ]
        for number in (left[0], left[-1]):
            (found,) = (await other.operations.rows(made.id, row_key=f"p{number}", data=True)).items
            assert (found.number, found.data) == (number, {"code": f"p{number}", "desk": "front"})
        assert await clean(other) == []


@pytest.mark.parametrize("name", FILES)
async def test_rows_come_out_the_same_whoever_reads_them(database_url: str, tmp_path: Path, name: str):
    file_name, file = FILES[name]
    checked = Bench()

    @operation("unchecked", row_key="code")
    class Unchecked(Pipeline[Paper]):
        @step
        async def work(self, paper: Paper, ctx: Context) -> None: ...

    kinds = [checked.kind, Unchecked]
    settings = SMALL.model_copy(update={"row_bytes_max": 100})
    alone = []
    async with engine(kinds, url=database_url, tmp_path=tmp_path, settings=settings) as e:
        for kind in kinds:
            alone.append(await outcome(e, await e.run(kind, file, file_name=file_name)))
    async with two_engines(*kinds, url=database_url, folder=tmp_path, settings=settings) as (reader, other):
        for kind, expected in zip(kinds, alone, strict=True):
            made = await reader.create(kind, file, file_name=file_name)
            await read_for_others(reader)
            assert set(await left_rows(reader, made)) >= {6, 9}
            await other.work_until_idle()
            assert await outcome(other, made) == expected
        assert await clean(other) == []


async def test_what_is_wrong_with_cells_is_said_by_who_reads_them(database_url: str, tmp_path: Path):
    bench = Bench()
    async with two_engines(bench.kind, url=database_url, folder=tmp_path, settings=SMALL) as (reader, other):
        file = PLAIN.replace(b"p6,front", b"p6").replace(b"p9,front", b"p9,fr\0nt").replace(b"bad", b"front")
        made = await reader.create(bench.kind, file, file_name="a.csv")
        await read_for_others(reader)
        await other.work_until_idle()
        errors = (await other.operations.errors(made.id)).items
        assert [(x.row, x.row_key, x.error_type, [*map(str, x.faults)]) for x in errors] == [
            (6, "p6", "Validation", ["has 1 cell, the header has 2"]),
            (9, "p9", "Validation", ["desk: contains a NUL character"]),
        ]
        assert {"p6", "p9"}.isdisjoint(bench.checked)
        for row, changes in ((6, {"code": "p6", "desk": "front"}), (9, {"desk": "front"})):
            await other.operations.edit_row(made.id, row, changes)
        await other.work_until_idle()
        done = await other.operations.get(made.id)
        assert (done.status, done.successful_rows) == ("Completed", 26)
        assert await clean(other) == []


async def test_a_left_chunk_of_invalid_rows_only_is_over_when_they_are_read(database_url: str, tmp_path: Path):
    bench = Bench()
    async with two_engines(bench.kind, url=database_url, folder=tmp_path, settings=SMALL) as (reader, other):
        made = await reader.create(bench.kind, csv_of(papers(12, desk="bad")), file_name="a.csv")
        await read_for_others(reader)
        await other.work_until_idle()
        done = await other.operations.get(made.id)
        assert (done.status, done.failed_rows, bench.ran) == ("CompletedWithErrors", 12, [])
        assert await stored_chunks(other) == {1, 5, 9}
        assert await clean(other) == []


@pytest.mark.covers("SM-039")
async def test_rows_whose_data_is_not_kept_are_validated_by_others_too(database_url: str, tmp_path: Path):
    lean = Bench(track_row_data=False)
    async with two_engines(lean.kind, url=database_url, folder=tmp_path, settings=SMALL) as (reader, other):
        made = await reader.create(lean.kind, csv_of(mixed(26)), file_name="a.csv")
        await read_for_others(reader)
        assert await raw_chunks(reader, made)
        await other.work_until_idle()
        done = await other.operations.get(made.id)
        assert (done.status, done.successful_rows, done.failed_rows) == ("CompletedWithErrors", 21, 5)
        assert sorted(lean.ran) == sorted(row["code"] for row in mixed(26) if row["desk"] != "bad")
        assert (await count_of(other.penstock.db))["rows"] == 0
        assert await clean(other) == []


@pytest.mark.parametrize("flush_rows", [1, 3])
async def test_a_chunk_that_is_validated_in_several_groups_is_stored_whole(
    database_url: str, tmp_path: Path, flush_rows: int
):
    bench, settings = Bench(), SMALL.model_copy(update={"flush_rows": flush_rows})
    async with two_engines(bench.kind, url=database_url, folder=tmp_path, settings=settings) as (reader, other):
        file = PLAIN.replace(b"p6,front", b"p6").replace(b"p9,front", b"p9,fr\0nt")
        made = await reader.create(bench.kind, file, file_name="a.csv")
        await read_for_others(reader)
        await other.work_until_idle()
        errors = {x.row: str(x.faults[0]) for x in (await other.operations.errors(made.id)).items}
        assert errors == dict.fromkeys(range(3, 27, 5), "desk: not a desk") | {
            6: "has 1 cell, the header has 2",
            9: "desk: contains a NUL character",
        }
        assert len(await stored_chunks(other)) == 7
        rows = await every_row(other, made)
        assert [row.data for row in rows if row.number not in (6, 9)] == [
            row for n, row in enumerate(mixed(26), start=1) if n not in (6, 9)
        ]
        assert Counter(bench.ran) == Counter(row.row_key for row in rows if row.state == "Completed")
        assert await clean(other) == []


# Who takes them


async def test_a_worker_does_not_take_the_chunks_it_left_while_it_still_reads(database_url: str, tmp_path: Path):
    bench = Bench()
    async with two_engines(bench.kind, url=database_url, folder=tmp_path, settings=SMALL) as (reader, other):
        rows = papers(120)
        for row in (rows[5], *rows[60:]):
            row["desk"] = "wall"
        made = await reader.create(bench.kind, csv_of(rows), file_name="a.csv")
        await reader.worker.look_round()
        await at_wall(bench.wall, reader.work_until_idle())
        assert 6 in await until_left(reader, made)
        checked = bench.checked[:]
        assert not await reader.worker.tick()
        assert bench.checked == checked
        bench.wall.reached.clear()
        work = asyncio.create_task(other.work_until_idle())
        await bench.wall.reached.wait()
        assert "p6" in bench.checked
        bench.wall.gone.set()
        await asyncio.gather(work, reader.work_until_idle())
        await reader.work_until_idle()
        done = await reader.operations.get(made.id)
        assert (done.status, done.successful_rows) == ("Completed", 120)
        assert set(Counter(bench.checked).values()) == {1}
        assert await clean(reader) == []


async def test_what_nobody_came_for_is_validated_by_the_reader_when_it_has_read_all(database_url: str, tmp_path: Path):
    bench = Bench()
    async with two_engines(bench.kind, url=database_url, folder=tmp_path, settings=SMALL) as (reader, _):
        made = await reader.create(bench.kind, csv_of(mixed(100)), file_name="a.csv")
        await read_for_others(reader)
        left = await left_rows(reader, made)
        assert left
        assert {f"p{n}" for n in left}.isdisjoint(bench.checked)
        await reader.work_until_idle()
        done = await reader.operations.get(made.id)
        assert (done.status, done.successful_rows, done.failed_rows) == ("CompletedWithErrors", 80, 20)
        assert [row.data for row in await every_row(reader, made)] == mixed(100)
        assert set(Counter(bench.checked).values()) == {1}
        assert await clean(reader) == []


@pytest.mark.parametrize("settings", [SMALL, LARGE], ids=["small", "large"])
async def test_a_worker_validates_chunks_of_several_files_at_once(
    database_url: str, tmp_path: Path, settings: Settings
):
    one, two = Bench("one"), Bench("two")
    count = 3 * settings.chunk_rows
    async with two_engines(one.kind, two.kind, url=database_url, folder=tmp_path, settings=settings) as (reader, other):
        made = [
            await reader.create(bench.kind, csv_of(papers(count, desk=desk)), file_name="a.csv")
            for bench, desk in ((one, "front"), (two, "back"))
        ]
        await read_for_others(reader)
        await other.work_until_idle()
        for operation, desk in zip(made, ("front", "back"), strict=True):
            done = await other.operations.get(operation.id)
            assert (done.status, done.successful_rows) == ("Completed", count)
            assert [row.data for row in await every_row(other, operation)] == papers(count, desk=desk)
        assert await clean(other) == []


async def test_chunks_of_another_file_are_begun_while_one_is_half_read(database_url: str, tmp_path: Path):
    slow, quick = Bench("slow", max_row_concurrency=1), Bench("quick")
    rows = papers(1200, desk="long" * 100)  # so that a piece takes more than one block of the file
    rows[700]["desk"] = "wall"
    kinds = (slow.kind, quick.kind)
    async with two_engines(*kinds, url=database_url, folder=tmp_path, settings=LARGE) as (reader, other):
        first = await reader.create(slow.kind, csv_of(rows), file_name="a.csv")
        await read_for_others(reader)
        await at_wall(slow.wall, other.work_until_idle())
        second = await reader.create(quick.kind, csv_of(rows[:1000]), file_name="b.csv")
        await read_for_others(reader)
        await at_wall(quick.wall, other.work_until_idle())
        slow.wall.gone.set()
        quick.wall.gone.set()
        await other.work_until_idle()
        for made, expected in ((first, rows), (second, rows[:1000])):
            done = await other.operations.get(made.id)
            assert (done.status, done.successful_rows) == ("Completed", len(expected))
            assert [row.data for row in await every_row(other, made)] == expected
        assert await clean(other) == []


# What comes between


async def interrupt(other: Engine, made: Operation, wall: Wall, how: str, heard: asyncio.Event) -> None:
    """Let a worker that stands at the wall be paused, stop, be cut off, die or be late; then let it go on."""
    if how == "paused":
        await other.operations.pause(made.id)
        await other.worker.look_round()
        await heard.wait()
        wall.gone.set()
        await other.work_until_idle()
        assert (await other.operations.get(made.id)).status == "Paused"
        await other.operations.resume(made.id)
    elif how == "stopped":
        stopping = asyncio.create_task(other.restart())
        await heard.wait()
        wall.gone.set()
        await stopping
    elif how == "cut off":
        await other.restart()
    elif how == "late":  # no time is left in its lease to begin anything more
        other.clock.advance(other.penstock.settings.lease_s - 1)
        wall.gone.set()
        await a_moment()
    else:
        await other.crash()
    wall.gone.set()


@dataclass(frozen=True)
class Place:
    """Where in a chunk somebody is held up, and how many hands the operation has."""

    settings: Settings
    wall_row: int
    hands: int = 10

    @property
    def rows(self) -> list[dict[str, str]]:
        """Two chunks of papers, of which some have no desk; the second is left."""
        rows = mixed(2 * self.settings.chunk_rows)
        rows[self.wall_row - 1]["desk"] = "wall"
        return rows


PLACES = {
    "the only piece": Place(SMALL, 6),
    "one of two groups": Place(SMALL.model_copy(update={"flush_rows": 2}), 7),
    "the first of two pieces": Place(LARGE, 701),
    "the first of two pieces, one by one": Place(LARGE, 701, hands=1),
    "the last of two pieces, one by one": Place(LARGE, 1101, hands=1),
}
places = pytest.mark.parametrize("place", PLACES.values(), ids=PLACES)


@places
@pytest.mark.covers("I-06")
@pytest.mark.parametrize("how", ["paused", "stopped", "late", "cut off", "killed"])
async def test_a_chunk_that_was_let_go_half_way_is_read_again_and_each_row_is_judged_once(
    database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str, place: Place
):
    bench, heard, rows = Bench(max_row_concurrency=place.hands), on_withdraw(monkeypatch), place.rows
    settings = place.settings.model_copy(update={"shutdown_s": 0 if how == "cut off" else 25})
    async with two_engines(bench.kind, url=database_url, folder=tmp_path, settings=settings) as (reader, other):
        made = await reader.create(bench.kind, csv_of(rows), file_name="a.csv")
        await read_for_others(reader)
        assert place.wall_row in await left_rows(reader, made)
        await at_wall(bench.wall, other.work_until_idle())
        await interrupt(other, made, bench.wall, how, heard)
        assert await clean(other) == []
        await other.work_until_idle()
        done, bad = await other.operations.get(made.id), sum(row["desk"] == "bad" for row in rows)
        assert (done.status, done.successful_rows, done.failed_rows) == ("CompletedWithErrors", len(rows) - bad, bad)
        assert [row.data for row in await every_row(other, made)] == rows
        assert sorted(bench.ran) == sorted(row["code"] for row in rows if row["desk"] != "bad")
        assert await clean(other) == []
        times = Counter(bench.checked)
        assert set(times) == {row["code"] for row in rows}
        if how in ("paused", "stopped", "late"):  # what runs may end
            assert set(times.values()) == {1}


async def test_rows_that_were_cancelled_unread_are_stored_when_they_are_retried(database_url: str, tmp_path: Path):
    bench = Bench()
    async with two_engines(bench.kind, url=database_url, folder=tmp_path, settings=SMALL) as (reader, other):
        rows = mixed(26)
        made = await reader.create(bench.kind, csv_of(rows), file_name="a.csv")
        await read_for_others(reader)
        left = await left_rows(reader, made)
        assert (await reader.operations.cancel(made.id)).status == "Cancelled"
        assert (await reader.operations.row(made.id, left[0])).data is None
        assert await clean(reader) == []
        await reader.operations.retry(made.id)
        await other.work_until_idle()
        done = await other.operations.get(made.id)
        assert (done.status, done.successful_rows, done.failed_rows) == ("CompletedWithErrors", 21, 5)
        assert [row.data for row in await every_row(other, made)] == rows
        (found,) = (await other.operations.rows(made.id, row_key=f"p{left[-1]}")).items
        assert found.number == left[-1]
        assert await clean(other) == []


@places
async def test_an_operation_is_cancelled_while_a_left_chunk_is_being_read(
    database_url: str, tmp_path: Path, place: Place
):
    bench, rows = Bench(max_row_concurrency=place.hands), place.rows
    async with two_engines(bench.kind, url=database_url, folder=tmp_path, settings=place.settings) as (reader, other):
        made = await reader.create(bench.kind, csv_of(rows), file_name="a.csv")
        await read_for_others(reader)
        await at_wall(bench.wall, other.work_until_idle())
        await reader.operations.cancel(made.id)
        await other.worker.look_round()
        await other.work_until_idle()
        done = await other.operations.get(made.id)
        assert (done.status, done.cancelled_rows + done.failed_rows, bench.ran) == ("Cancelled", len(rows), [])
        assert await clean(other) == []
        bench.wall.gone.set()
        await other.operations.retry(made.id)
        await other.work_until_idle()
        again, bad = await other.operations.get(made.id), sum(row["desk"] == "bad" for row in rows)
        assert (again.status, again.successful_rows, again.failed_rows) == ("CompletedWithErrors", len(rows) - bad, bad)
        assert [row.data for row in await every_row(other, made)] == rows
        assert await clean(other) == []


@pytest.mark.covers("SM-018")
async def test_a_file_that_turns_out_to_be_broken_is_refused_though_others_validate_its_rows(
    database_url: str, tmp_path: Path
):
    bench = Bench()
    rows = papers(200)
    for row in (rows[5], *rows[60:]):
        row["desk"] = "wall"
    async with two_engines(bench.kind, url=database_url, folder=tmp_path, settings=SMALL) as (reader, other):
        made = await reader.create(bench.kind, csv_of(rows) + b'p201,"front\n', file_name="a.csv")
        await reader.worker.look_round()
        await at_wall(bench.wall, reader.work_until_idle())
        await until_left(reader, made)
        bench.wall.reached.clear()
        work = asyncio.create_task(other.work_until_idle())
        await bench.wall.reached.wait()
        bench.wall.gone.set()
        await asyncio.gather(work, reader.work_until_idle())
        done = await reader.operations.get(made.id)
        assert (done.status, done.total_rows, bench.ran) == ("Failed", 0, [])
        assert "row 201 opens a quote" in (done.error or "")
        assert await count_of(reader.penstock.db) == {"operations": 1, "chunks": 0, "rows": 0, "records": 0}
        assert await clean(reader) == []


async def test_an_invalid_row_of_a_chunk_that_is_half_validated_can_be_corrected_meanwhile(
    database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    bench, heard = Bench(max_row_concurrency=1), on_withdraw(monkeypatch)
    settings = SMALL.model_copy(update={"flush_rows": 2})
    rows = papers(8)
    rows[4]["desk"], rows[6]["desk"] = "bad", "wall"
    async with two_engines(bench.kind, url=database_url, folder=tmp_path, settings=settings) as (reader, other):
        made = await reader.create(bench.kind, csv_of(rows), file_name="a.csv")
        await read_for_others(reader)
        await at_wall(bench.wall, other.work_until_idle())
        await other.operations.pause(made.id)
        await other.worker.look_round()
        await heard.wait()
        bench.wall.gone.set()
        await other.work_until_idle()
        assert await left_rows(reader, made) == [5, 6, 7, 8]
        await other.operations.edit_row(made.id, 5, {"desk": "front"})
        await other.operations.resume(made.id)
        await other.work_until_idle()
        done = await other.operations.get(made.id)
        assert (done.status, done.successful_rows) == ("Completed", 8)
        assert sorted(bench.ran) == [f"p{n}" for n in range(1, 9)]
        assert await clean(other) == []


async def test_a_row_that_is_corrected_before_its_chunk_is_validated_is_judged_as_it_is_now(
    database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    class Numbered(BaseModel):
        number: int

    @operation("numbered")
    class Kind(Pipeline[Numbered]):
        @step
        async def work(self, row: Numbered, ctx: Context) -> None: ...

    settings = SMALL.model_copy(update={"flush_rows": 2})
    async with two_engines(Kind, url=database_url, folder=tmp_path, settings=settings) as (reader, other):
        made = await reader.create(Kind, b"number\n1\n2\n3\n4\nx\n6\n7\n8\n", file_name="a.csv")
        await read_for_others(reader)
        with monkeypatch.context() as patch:
            take = ValidateJob.take

            async def take_and_stop(job: ValidateJob) -> bool:
                other.worker.halt("Paused")
                return await take(job)

            patch.setattr(ValidateJob, "take", take_and_stop)
            await other.worker.tick()
            while other.worker.is_busy:
                other.worker.wake.clear()
                await other.worker.wake.wait()
        await other.operations.pause(made.id)
        await other.operations.edit_row(made.id, 5, {"number": "5"})
        await other.operations.resume(made.id)
        await other.work_until_idle()
        done = await other.operations.get(made.id)
        assert (done.status, done.successful_rows) == ("Completed", 8)
        assert await clean(other) == []


async def test_rows_of_a_left_chunk_do_not_run_before_its_suspects_are_validated(database_url: str, tmp_path: Path):
    """Whoever validated them died: the healthy ones are right by now, the others are tried again."""
    bench, rows = Bench(), papers(12)
    rows[9]["desk"] = "wall"
    settings = Settings(chunk_rows=6, flush_rows=2)
    async with two_engines(bench.kind, url=database_url, folder=tmp_path, settings=settings) as (reader, other):
        made = await reader.create(bench.kind, csv_of(rows), file_name="a.csv")
        await read_for_others(reader)
        await at_wall(bench.wall, other.work_until_idle())
        await other.crash()
        bench.wall.reached.clear()
        await at_wall(bench.wall, other.work_until_idle())
        assert ((await other.operations.get(made.id)).status, bench.ran) == ("Validating", [])
        bench.wall.gone.set()
        await other.work_until_idle()
        done = await other.operations.get(made.id)
        assert (done.status, done.successful_rows, len(bench.ran)) == ("Completed", 12, 12)
        assert await clean(other) == []


# The file is not as it was


async def fail(reader: Engine, other: Engine, made: Operation) -> Operation:
    """Work until the operation has failed; a worker hears within a second of what it holds but cannot work on."""
    await other.work_until_idle()
    await other.worker.look_round()
    await other.work_until_idle()
    return await reader.operations.get(made.id)


async def test_an_operation_whose_file_is_gone_before_its_rows_are_read_fails_with_the_reason(
    database_url: str, tmp_path: Path
):
    bench = Bench()
    async with two_engines(bench.kind, url=database_url, folder=tmp_path, settings=SMALL) as (reader, other):
        made = await reader.create(bench.kind, csv_of(papers(12)), file_name="a.csv")
        await read_for_others(reader)
        (file,) = stored_files(tmp_path)
        file.unlink()
        done = await fail(reader, other, made)
        assert (done.status, done.cancelled_rows, bench.ran) == ("Failed", 12, [])
        assert f"the stored file {file.name[:36]}… is gone" in (done.error or "")
        (difference,) = await clean(reader)
        assert f"the stored file {file.name[:36]}… is gone" in difference


@pytest.mark.parametrize("name", ["a.csv", "a.jsonl"])
async def test_an_operation_whose_file_was_cut_short_before_its_rows_are_read_fails_with_the_reason(
    database_url: str, tmp_path: Path, name: str
):
    bench = Bench()
    async with two_engines(bench.kind, url=database_url, folder=tmp_path, settings=SMALL) as (reader, other):
        content = csv_of(papers(12)) if name == "a.csv" else json_lines(papers(12))
        made = await reader.create(bench.kind, content, file_name=name)
        await read_for_others(reader)
        (file,) = stored_files(tmp_path)
        file.write_bytes(content[: content.index(b"p7")])
        done = await fail(reader, other, made)
        assert (done.status, bench.ran) == ("Failed", [])
        assert "was changed after it was checked: it has" in (done.error or "")


async def test_an_operation_whose_file_is_gone_when_a_chunk_is_read_again_fails_with_the_reason(
    database_url: str, tmp_path: Path
):
    bench = Bench()
    rows = papers(12)
    rows[5]["desk"] = "wall"
    async with two_engines(bench.kind, url=database_url, folder=tmp_path, settings=SMALL) as (reader, other):
        made = await reader.create(bench.kind, csv_of(rows), file_name="a.csv")
        await read_for_others(reader)
        await at_wall(bench.wall, other.work_until_idle())
        await other.crash()
        (file,) = stored_files(tmp_path)
        file.unlink()
        done = await fail(reader, other, made)
        assert (done.status, done.cancelled_rows, bench.ran) == ("Failed", 12, [])
        assert f"the stored file {file.name[:36]}… is gone" in (done.error or "")
        assert len(await clean(reader)) == 1


async def test_a_worker_that_cannot_read_a_file_as_it_was_read_before_goes_on_and_tries_again(
    database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    bench, refusals = Bench(), [FileRejected("row 5 is not UTF-8")]
    pieces = chunk_runner.pieces

    def overwritten(reader: Reader, owned: OwnedChunk) -> Iterator[Batch]:
        """As when the bytes of the file are replaced after it was opened."""
        if refusals:
            raise refusals.pop()
        yield from pieces(reader, owned)

    monkeypatch.setattr(chunk_runner, "pieces", overwritten)
    async with two_engines(bench.kind, url=database_url, folder=tmp_path, settings=SMALL) as (reader, other):
        made = await reader.create(bench.kind, csv_of(papers(12)), file_name="a.csv")
        await read_for_others(reader)
        await other.work_until_idle()
        assert refusals == []
        await other.advance(2)
        await other.worker.look_round()
        await other.work_until_idle()
        done = await reader.operations.get(made.id)
        assert (done.status, done.successful_rows, done.trouble) == ("Completed", 12, None)
        assert await clean(other) == []
