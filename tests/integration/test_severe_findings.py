"""What went wrong in the system that the two guides describe, one test each: none of it can happen here."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from approvals import Calls, Paper, Wall, a_moment, approvals, at_wall, clean, failures, papers, states, two_engines
from stored import stored_files

from penstock import Context, Pipeline, StepFailed, failpoints, operation, step
from penstock.errors import Unavailable
from penstock.operations.model import Operation
from penstock.operations.running.actor import ChunkActor
from penstock.settings import Settings
from penstock.testing import Engine, engine

SMALL = Settings(chunk_rows=2)
DONE, WAIT, FAILED = "Completed", "WaitingForCompletion", "Failed"


def second_at_first(ctx: Context, code: str) -> bool:
    return ctx.step_name == "second" and ctx.generation == 0


@pytest.fixture
def calls() -> Calls:
    return Calls()


@pytest.fixture
async def e(database_url: str, tmp_path: Path, calls: Calls) -> AsyncIterator[Engine]:
    kinds = [approvals(calls), failures(calls, broken=second_at_first)]
    async with engine(kinds, url=database_url, tmp_path=tmp_path, settings=SMALL) as opened:
        yield opened
        assert await clean(opened) == []


async def parked(e: Engine, rows: int = 1) -> Operation:
    made = await e.create("approvals", papers(rows))
    await e.work_until_idle()
    return made


@pytest.mark.covers("B2.1-1")
async def test_01_a_signal_taken_by_another_process_is_not_overwritten_by_a_timeout(database_url, tmp_path, calls):
    kind = approvals(calls)
    async with two_engines(kind, url=database_url, folder=tmp_path) as (api, worker):
        made = await api.create(kind, papers(1))
        await worker.work_until_idle()
        await api.penstock.signals.complete(made.id, "paper-p1")
        await worker.advance(120)
        await worker.work_until_idle()
        assert await states(api, made) == [DONE]


@pytest.mark.covers("B2.1-2")
async def test_02_an_acknowledged_signal_is_not_lost_between_the_look_and_the_wait(e, monkeypatch):
    flush, posted = ChunkActor._flush, []

    async def signal_beside_the_park(actor: ChunkActor, **given: bool) -> None:
        has_parked = actor.desk.has_parked
        await flush(actor, **given)
        if has_parked and not posted:
            posted.append(await e.penstock.signals.complete(made.id, "paper-p1"))

    monkeypatch.setattr(ChunkActor, "_flush", signal_beside_the_park)
    made = await e.create("approvals", papers(1))
    await e.work_until_idle()
    assert len(posted) == 1
    assert await states(e, made) == [DONE]


@pytest.mark.covers("B2.1-3")
async def test_03_a_callback_faster_than_the_call_that_asked_for_it_is_kept(e):
    made = await e.create("approvals", papers(1))
    assert (await e.penstock.signals.complete(made.id, "paper-p1")).outcome == "stored"
    await e.work_until_idle()
    assert await states(e, made) == [DONE]


@pytest.mark.covers("B2.1-4")
async def test_04_a_retry_runs_every_step_after_the_one_that_failed(e, calls):
    made = await e.run("failures", papers(1))
    await e.operations.retry(made.id)
    await e.work_until_idle()
    assert [calls[name, 1] for name in ("first", "second", "third")] == [1, 2, 1]


@pytest.mark.covers("B2.1-5")
async def test_05_retried_rows_end_with_a_verdict_in_a_real_database(e):
    made = await e.run("failures", papers(5))
    await e.operations.retry(made.id)
    await e.work_until_idle()
    assert await states(e, made) == [DONE] * 5


@pytest.mark.covers("B2.1-6")
async def test_06_invalid_rows_still_count_after_a_retry(e):
    made = await e.run("failures", [{"code": "x1"}, {"code": "p2"}])
    await e.operations.retry(made.id)
    await e.work_until_idle()
    done = await e.operations.get(made.id)
    assert (done.status, done.successful_rows, done.failed_rows) == ("CompletedWithErrors", 1, 1)


@pytest.mark.covers("B2.1-7")
async def test_07_a_retry_asked_for_in_one_process_runs_in_another(database_url, tmp_path, calls):
    kind = failures(calls, broken=second_at_first)
    async with two_engines(kind, url=database_url, folder=tmp_path) as (api, worker):
        made = await worker.run(kind, papers(2))
        await api.operations.retry(made.id)
        await worker.work_until_idle()
        assert (await api.operations.get(made.id)).status == "Completed"


@pytest.mark.covers("B2.1-8")
@pytest.mark.parametrize("point", ["retry:before", "retry:after", "settle:before", "settle:after"])
async def test_08_a_crash_inside_a_retry_never_blocks_the_next_one(e, point):
    made = await e.run("failures", papers(1))

    class Died(Exception):
        pass

    def die(at: str) -> None:
        if at == point:
            raise Died

    async def retry_and_work() -> None:
        await e.operations.retry(made.id)
        await e.work_until_idle()

    with failpoints.armed(die), pytest.raises(Died):
        await retry_and_work()
    await e.crash()
    if (await e.operations.get(made.id)).status != "Retrying":
        await asyncio.gather(e.operations.retry(made.id), return_exceptions=True)
    await e.work_until_idle()
    assert await states(e, made) == [DONE]


@pytest.mark.covers("B2.1-9")
@pytest.mark.databases("sqlite")
async def test_09_all_failed_rows_are_retried_also_behind_a_thousand_invalid_ones(database_url, tmp_path):
    @operation("mixed")
    async def mixed(paper: Paper, ctx: Context) -> None:
        if ctx.generation == 0:
            raise StepFailed("at first")

    async with engine([mixed], url=database_url, tmp_path=tmp_path) as e:
        rows = [{"desk": "no code"}] * 1100 + papers(1100)
        made = await e.run(mixed, rows)
        assert (made.invalid_rows, made.failed_rows) == (1100, 2200)
        assert (await e.operations.can_retry(made.id)).rows == 1100
        assert (await e.operations.retry(made.id)).submitted == 1100
        await e.work_until_idle()
        assert (await e.operations.get(made.id)).successful_rows == 1100


@pytest.mark.covers("B2.1-10")
async def test_10_a_crash_while_validating_is_recovered_and_validating_can_be_cancelled(database_url, tmp_path):
    wall = Wall()

    @operation("check")
    class Check(Pipeline[Paper]):
        async def validate_row(self, paper: Paper, meta: None) -> None:
            if paper.code == "p5":
                await wall.stop()

        @step
        async def work(self, paper: Paper, ctx: Context) -> None: ...

    async with engine([Check], url=database_url, tmp_path=tmp_path, settings=SMALL) as e:
        stopped, made = await e.create(Check, papers(5)), await e.create(Check, papers(5))
        await at_wall(wall, e.work_until_idle())
        assert (await e.operations.get(stopped.id)).status == "Validating"
        await e.crash()
        assert (await e.operations.cancel(stopped.id)).status == "Cancelled"
        wall.gone.set()
        await e.work_until_idle()
        assert (await e.operations.get(made.id)).status == "Completed"
        assert await clean(e) == []


@pytest.mark.covers("B2.1-11")
async def test_11_a_crash_while_running_resumes_and_repeats_no_recorded_row(database_url, tmp_path):
    wall, runs = Wall(), []

    @operation("long", max_row_concurrency=1)
    async def long(paper: Paper, ctx: Context) -> None:
        runs.append(ctx.row_number)
        if ctx.row_number == 3 and runs.count(3) == 1:
            await wall.stop()

    async with engine([long], url=database_url, tmp_path=tmp_path, settings=Settings(chunk_rows=2)) as e:
        made = await e.create(long, papers(4))
        await at_wall(wall, e.work_until_idle())
        while (await e.operations.get(made.id)).successful_rows < 2:
            await a_moment()
        await e.crash()
        await e.work_until_idle()
        assert (await e.operations.get(made.id)).status == "Completed"
        assert (runs.count(1), runs.count(2), runs.count(3)) == (1, 1, 2)


@pytest.mark.covers("B2.1-12")
async def test_12_two_workers_never_both_read_or_run_the_same_rows(database_url, tmp_path, calls):
    kind = failures(calls, broken=lambda ctx, code: False)
    async with two_engines(kind, url=database_url, folder=tmp_path, settings=SMALL) as (one, other):
        made = await one.create(kind, papers(12))
        await asyncio.gather(one.work_until_idle(), other.work_until_idle())
        for e in (one, other):
            await e.work_until_idle()
        done = await one.operations.get(made.id)
        assert (done.status, done.total_rows, set(calls.values())) == ("Completed", 12, {1})
        assert await clean(one) == []


@pytest.mark.covers("B2.1-13")
async def test_13_an_operation_of_any_length_is_left_alone_while_its_worker_lives(database_url, tmp_path):
    wall = Wall()

    @operation("week-long")
    async def week_long(paper: Paper, ctx: Context) -> None:
        await wall.stop()

    async with two_engines(week_long, url=database_url, folder=tmp_path) as (one, other):
        made = await one.create(week_long, papers(1))
        await at_wall(wall, one.work_until_idle())
        for _ in range(50):
            await one.advance(8)
            await other.work_until_idle()
        await other.restart()
        await other.work_until_idle()
        assert (await other.operations.get(made.id)).status == "Running"
        wall.gone.set()
        await one.work_until_idle()
        assert (await other.operations.get(made.id)).status == "Completed"


@pytest.mark.covers("B2.1-14")
async def test_14_no_operation_is_visible_before_its_file_is_stored(e, tmp_path):
    def die(at: str) -> None:
        if at == "create:before":
            assert stored_files(tmp_path), "the file comes first"
            raise ConnectionError

    with failpoints.armed(die), pytest.raises(ConnectionError):
        await e.create("failures", papers(1))
    assert (await e.operations.list()).items == []


@pytest.mark.covers("B2.1-15")
async def test_15_a_shutdown_that_takes_too_long_cancels_nothing(database_url, tmp_path):
    wall = Wall()

    @operation("endless")
    async def endless(paper: Paper, ctx: Context) -> None:
        await wall.stop()

    async with engine([endless], url=database_url, tmp_path=tmp_path, settings=Settings(shutdown_s=0)) as e:
        made = await e.create(endless, papers(2))
        await at_wall(wall, e.work_until_idle())
        await e.restart()
        assert (await e.operations.get(made.id)).status == "Running"
        wall.gone.set()
        await e.work_until_idle()
        assert (await e.operations.get(made.id)).status == "Completed"


@pytest.mark.covers("B2.1-16")
async def test_16_a_cancel_stops_the_worker_of_another_process_and_is_not_undone_by_its_flush(database_url, tmp_path):
    wall, begun = Wall(), []

    @operation("queue", max_row_concurrency=1)
    async def queue(paper: Paper, ctx: Context) -> None:
        begun.append(ctx.row_number)
        await wall.stop()

    quick = Settings(chunk_rows=2, cancel_grace_s=0)
    async with two_engines(queue, url=database_url, folder=tmp_path, settings=quick) as (api, worker):
        made = await api.create(queue, papers(6))
        await at_wall(wall, worker.work_until_idle())
        await api.operations.cancel(made.id)
        await worker.worker.look_round()
        await worker.work_until_idle()
        assert ((await api.operations.get(made.id)).status, begun) == ("Cancelled", [1])


@pytest.mark.covers("B2.1-17")
@pytest.mark.parametrize(
    "file, name",
    [
        (b"code,pages\np1,1\np2,many\np3,3\n", "papers.csv"),
        (b'{"code":"p1","pages":1}\n{"code":"p2","pages":"many"}\n{"code":"p3","pages":3}\n', "papers.jsonl"),
    ],
)
async def test_17_one_malformed_cell_costs_one_row(database_url, tmp_path, file, name):
    class Sheet(Paper):
        pages: int

    @operation("sheets")
    async def sheets(sheet: Sheet, ctx: Context) -> None: ...

    async with engine([sheets], url=database_url, tmp_path=tmp_path) as e:
        made = await e.run(sheets, file, file_name=name)
        assert await states(e, made) == [DONE, "Invalid", DONE]


@pytest.mark.covers("B2.1-18")
async def test_18_everything_survives_the_process_that_stored_it(database_url, tmp_path, calls):
    kind = failures(calls, broken=lambda ctx, code: False)
    async with engine([kind], url=database_url, tmp_path=tmp_path) as before:
        made = await before.create(kind, papers(3))
    async with engine([kind], url=database_url, tmp_path=tmp_path) as after:
        await after.work_until_idle()
        assert (await after.operations.get(made.id)).successful_rows == 3


@pytest.mark.covers("B2.1-19")
@pytest.mark.parametrize("point", ["append:before", "seal:before", "flush:before", "close:before"])
async def test_19_a_database_that_is_away_for_a_moment_hangs_nothing(e, point, calls):
    away = [point]

    def be_away(at: str) -> None:
        if away and at == away[0]:
            away.clear()
            raise Unavailable("the database is away")

    with failpoints.armed(be_away):
        made = await e.create("approvals", papers(3))
        for n in (1, 2, 3):
            await e.penstock.signals.complete(made.id, f"paper-p{n}")
        await e.work_until_idle()
    assert not away, "it was away"
    assert await states(e, made) == [DONE] * 3
    assert calls["file", 1] == 1


@pytest.mark.covers("B2.1-20")
async def test_20_a_message_of_any_length_is_recorded_and_its_cut_is_marked(database_url, tmp_path):
    @operation("wordy")
    async def wordy(paper: Paper, ctx: Context) -> None:
        raise StepFailed("long " * 2000 + "\x00")

    async with engine([wordy], url=database_url, tmp_path=tmp_path) as e:
        made = await e.run(wordy, papers(2))
        errors = (await e.operations.errors(made.id)).items
        assert [error.row for error in errors] == [1, 2]
        assert all(len(error.message) <= 2000 and error.message.endswith("characters)") for error in errors)
