"""Several workers validate one file: the reader leaves chunks to the others, and the verdicts are the same."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from approvals import at_wall, clean, papers, states, two_engines
from left_chunks import SMALL, Bench, left_rows, mixed, raw_chunks, read_for_others

from penstock import failpoints
from penstock.operations.operation_ids import number_of
from penstock.testing import engine

DONE = "Completed"


@pytest.mark.covers("SM-015")
async def test_chunks_left_by_the_reader_are_validated_by_another_worker(database_url: str, tmp_path: Path):
    bench = Bench()
    async with two_engines(bench.kind, url=database_url, folder=tmp_path, settings=SMALL) as (reader, other):
        made = await reader.create(bench.kind, mixed(30))
        await read_for_others(reader)
        assert (await reader.operations.get(made.id)).status == "Validating"
        left = await left_rows(reader, made)
        assert len(left) >= 20
        assert sorted(left + [int(code[1:]) for code in bench.checked]) == list(range(1, 31))
        assert (bench.ran, await clean(reader)) == ([], [])
        await other.work_until_idle()
        done = await other.operations.get(made.id)
        errors = (await other.operations.errors(made.id, limit=100)).items
        assert (done.status, done.successful_rows, done.failed_rows) == ("CompletedWithErrors", 24, 6)
        assert [(e.row, e.row_key, e.error_type) for e in errors] == [
            (n, f"p{n}", "Validation") for n in range(3, 31, 5)
        ]
        assert {str(e.faults[0]) for e in errors} == {"desk: not a desk"}
        assert sorted(bench.checked) == sorted(row["code"] for row in papers(30))
        assert await clean(other) == []


async def test_no_row_runs_before_the_last_one_is_validated(database_url: str, tmp_path: Path):
    bench = Bench()
    async with two_engines(bench.kind, url=database_url, folder=tmp_path, settings=SMALL) as (reader, other):
        rows = papers(12)
        rows[10]["desk"] = "wall"
        made = await reader.create(bench.kind, rows)
        await read_for_others(reader)
        work = asyncio.create_task(other.work_until_idle())
        await bench.wall.reached.wait()
        assert ((await other.operations.get(made.id)).status, bench.ran) == ("Validating", [])
        bench.wall.gone.set()
        await work
        assert ((await other.operations.get(made.id)).status, len(bench.ran)) == ("Completed", 12)


async def test_the_reader_validates_by_itself_what_limits_and_lone_workers_demand(database_url: str, tmp_path: Path):
    limited = Bench(max_errors=3)
    async with two_engines(limited.kind, url=database_url, folder=tmp_path, settings=SMALL) as (reader, _):
        made = await reader.create(limited.kind, mixed(30))
        await read_for_others(reader)
        done = await reader.operations.get(made.id)
        assert (done.status, limited.ran) == ("Failed", [])
        assert "max_errors is 3" in (done.error or "")


@pytest.mark.covers("I-25")
async def test_a_row_that_kills_its_validators_is_invalid_and_its_neighbours_run(database_url: str, tmp_path: Path):
    bench = Bench()
    async with engine([bench.kind], url=database_url, tmp_path=tmp_path, settings=SMALL) as e:
        async with engine([bench.kind], url=database_url, tmp_path=tmp_path, settings=SMALL, clock=e.clock):
            rows = papers(8)
            rows[5]["desk"] = "wall"
            made = await e.create(bench.kind, rows)
            await read_for_others(e)
        for _ in range(4):
            bench.wall.reached.clear()
            await at_wall(bench.wall, e.work_until_idle())
            await e.crash()
        await e.work_until_idle()
        assert await states(e, made) == [DONE] * 5 + ["Invalid"] + [DONE] * 2
        (error,) = (await e.operations.errors(made.id)).items
        assert (error.row, error.error_type) == (6, "Poison")
        assert await clean(e) == []


@pytest.mark.covers("SM-009")
async def test_cancelling_gives_rows_that_nobody_has_looked_at_their_verdict(database_url: str, tmp_path: Path):
    bench = Bench()
    async with two_engines(bench.kind, url=database_url, folder=tmp_path, settings=SMALL) as (reader, _):
        rows = papers(10)
        rows[6]["desk"] = rows[9]["desk"] = "bad"
        made = await reader.create(bench.kind, rows)
        await read_for_others(reader)
        assert set(await left_rows(reader, made)) >= {7, 10}
        done = await reader.operations.cancel(made.id)
        assert (done.status, done.cancelled_rows, await raw_chunks(reader, made)) == ("Cancelled", 10, 0)
        assert await clean(reader) == []
        await reader.operations.retry(made.id)
        await reader.work_until_idle()
        again = await reader.operations.get(made.id)
        assert (again.status, again.successful_rows, again.failed_rows) == ("CompletedWithErrors", 8, 2)
        assert await clean(reader) == []


async def test_a_paused_operation_goes_on_being_validated_when_it_is_resumed(database_url: str, tmp_path: Path):
    bench = Bench()
    async with two_engines(bench.kind, url=database_url, folder=tmp_path, settings=SMALL) as (reader, other):
        made = await reader.create(bench.kind, papers(10))
        await read_for_others(reader)
        await reader.operations.pause(made.id)
        checked = bench.checked[:]
        await other.work_until_idle()
        assert ((await other.operations.get(made.id)).status, bench.checked) == ("Paused", checked)
        assert await raw_chunks(reader, made)
        await reader.operations.resume(made.id)
        await other.work_until_idle()
        assert (await other.operations.get(made.id)).status == "Completed"
        assert await clean(other) == []


async def test_a_worker_that_stops_before_it_has_validated_leaves_the_rows_unvalidated(
    database_url: str, tmp_path: Path
):
    bench = Bench()
    async with two_engines(bench.kind, url=database_url, folder=tmp_path, settings=SMALL) as (reader, other):
        made = await reader.create(bench.kind, mixed(8))
        await read_for_others(reader)
        checked = bench.checked[:]
        async with other.penstock.db.read() as tx:
            number = await number_of(tx, made.id)

        def hear(point: str) -> None:
            if point == "claim:after":
                other.worker.stopped = {number: "Paused"}

        with failpoints.armed(hear):  # while it claims: it gives the chunk back untouched
            await other.worker.tick()
        while other.worker.is_busy:
            other.worker.wake.clear()
            await other.worker.wake.wait()
        assert bench.checked == checked
        assert await raw_chunks(reader, made)
        await other.work_until_idle()
        done = await reader.operations.get(made.id)
        assert (done.status, done.successful_rows, done.failed_rows) == ("CompletedWithErrors", 6, 2)
        assert await clean(other) == []
