"""Pause and graceful stop: nothing begins, what runs may end, and nothing is Cancelled or Failed because of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from approvals import (
    Calls,
    Paper,
    Wall,
    approvals,
    at_wall,
    chunks_of,
    clean,
    failures,
    history,
    on_withdraw,
    papers,
    states,
)
from stored import rows_of

from penstock import Context, Pipeline, operation, step
from penstock.errors import IllegalMove
from penstock.settings import Settings
from penstock.testing import Engine, engine

DONE, WAIT = "Completed", "WaitingForCompletion"
SMALL = Settings(chunk_rows=2)


@pytest.fixture
def calls() -> Calls:
    return Calls()


@pytest.fixture
async def e(database_url: str, tmp_path: Path, calls: Calls) -> AsyncIterator[Engine]:
    kinds = [approvals(calls), failures(calls, broken=lambda ctx, code: ctx.generation == 0)]
    async with engine(kinds, url=database_url, tmp_path=tmp_path, settings=SMALL) as opened:
        yield opened
        assert await clean(opened) == []


async def test_a_paused_operation_takes_signals_and_applies_them_on_resume_before_any_deadline(e, calls):
    made = await e.create("approvals", papers(3))
    await e.work_until_idle()
    assert (await e.operations.pause(made.id)).status == "Paused"
    await e.penstock.signals.complete(made.id, "paper-p1")
    await e.advance(120)
    await e.work_until_idle()
    assert await states(e, made) == [WAIT] * 3
    assert (await e.operations.resume(made.id)).status == "Running"
    await e.work_until_idle()
    assert await states(e, made) == [DONE, "TimedOut", "TimedOut"]
    assert calls["file", 1] == 1


async def test_a_paused_operation_takes_a_retry_of_a_named_row_and_applies_it_on_resume(e):
    made = await e.create("approvals", papers(2))
    await e.work_until_idle()
    await e.penstock.signals.fail(made.id, "paper-p1", "no")
    await e.work_until_idle()
    await e.operations.pause(made.id)
    await e.advance(1)
    assert (await e.operations.retry(made.id, rows=[1])).submitted == 1
    await e.work_until_idle()
    assert (await states(e, made))[0] == "Failed"
    await e.operations.resume(made.id)
    await e.work_until_idle()
    assert await states(e, made) == [WAIT, WAIT]


async def test_pausing_or_resuming_twice_is_once_and_an_ended_operation_refuses_both(e):
    made = await e.create("approvals", papers(1))
    await e.work_until_idle()
    for _ in range(2):
        assert (await e.operations.pause(made.id)).status == "Paused"
    for _ in range(2):
        assert (await e.operations.resume(made.id)).status == "Running"
    await e.penstock.signals.complete(made.id, "paper-p1")
    await e.work_until_idle()
    for verb in (e.operations.pause, e.operations.resume):
        with pytest.raises(IllegalMove):
            await verb(made.id)


async def test_a_pending_operation_cannot_be_paused(e):
    made = await e.create("approvals", papers(1))
    with pytest.raises(IllegalMove, match="is Pending, and 'paused' is not possible"):
        await e.operations.pause(made.id)


async def test_a_retry_can_be_paused_before_it_is_picked_up(e, calls):
    made = await e.run("failures", papers(2))
    await e.operations.retry(made.id)
    assert (await e.operations.pause(made.id)).status == "Paused"
    await e.work_until_idle()
    assert calls["first", 1] == 1
    await e.operations.resume(made.id)
    await e.work_until_idle()
    assert (await e.operations.get(made.id)).status == "Completed"


@pytest.mark.covers("I-48")
@pytest.mark.parametrize("how", ["paused", "stopped"])
async def test_what_runs_may_end_and_is_recorded_and_the_rest_has_not_begun(database_url, tmp_path, monkeypatch, how):
    wall, begun, heard = Wall(), [], on_withdraw(monkeypatch)

    @operation("linger", max_row_concurrency=1)
    class Linger(Pipeline[Paper]):
        @step
        async def linger(self, paper: Paper, ctx: Context) -> None:
            begun.append((ctx.row_number, ctx.attempt))
            if ctx.row_number == 2:
                await wall.stop()

    async with engine([Linger], url=database_url, tmp_path=tmp_path) as e:
        made = await e.create(Linger, papers(4))
        await at_wall(wall, e.work_until_idle())
        if how == "paused":
            await e.operations.pause(made.id)
            await e.worker.look_round()
            await heard.wait()
            wall.gone.set()
            await e.work_until_idle()
        else:
            stopping = asyncio.create_task(e.restart())
            await heard.wait()
            wall.gone.set()
            await stopping
        (chunk,) = await chunks_of(e, made)
        assert (chunk.owner, chunk.is_open) == (None, 1)
        assert await states(e, made) == [DONE, DONE, "Pending", "Pending"]
        assert (await history(e, made), begun) == ([], [(1, 1), (2, 1)])
        assert await clean(e) == []
        if how == "paused":
            await e.operations.resume(made.id)
        await e.work_until_idle()
        done = await e.operations.get(made.id)
        assert (done.status, begun) == ("Completed", [(1, 1), (2, 1), (3, 1), (4, 1)])
        assert [row.lost for row in await rows_of(e.penstock.db, made.id)] == [0] * 4


async def test_a_paused_operation_whose_last_row_ends_is_finished(database_url, tmp_path):
    wall = Wall()

    @operation("last")
    async def last(paper: Paper, ctx: Context) -> None:
        await wall.stop()

    async with engine([last], url=database_url, tmp_path=tmp_path) as e:
        made = await e.create(last, papers(1))
        await at_wall(wall, e.work_until_idle())
        await e.operations.pause(made.id)
        wall.gone.set()
        await e.work_until_idle()
        assert (await e.operations.get(made.id)).status == "Completed"
        assert await clean(e) == []


async def test_a_paused_operation_whose_last_row_ended_is_finished_though_its_owner_knew_of_the_pause(
    database_url, tmp_path
):
    wall = Wall()

    @operation("last")
    async def last(paper: Paper, ctx: Context) -> None:
        await wall.stop()

    async with engine([last], url=database_url, tmp_path=tmp_path) as e:
        made = await e.create(last, papers(1))
        await at_wall(wall, e.work_until_idle())
        await e.operations.pause(made.id)
        await e.worker.look_round()
        wall.gone.set()
        await e.work_until_idle()
        assert (await e.operations.get(made.id)).status == "Completed"
        assert await clean(e) == []


async def test_reading_is_paused_and_goes_on_where_it_stopped(database_url, tmp_path):
    wall, judged = Wall(), []

    @operation("read")
    class Read(Pipeline[Paper]):
        async def validate_row(self, paper: Paper, meta: None) -> None:
            judged.append(paper.code)
            if paper.code == "p5":
                await wall.stop()

        @step
        async def work(self, paper: Paper, ctx: Context) -> None: ...

    async with engine([Read], url=database_url, tmp_path=tmp_path, settings=SMALL) as e:
        made = await e.create(Read, papers(9))
        await at_wall(wall, e.work_until_idle())
        await e.operations.pause(made.id)
        await e.worker.look_round()
        wall.gone.set()
        await e.work_until_idle()
        paused = await e.operations.get(made.id)
        assert (paused.status, paused.total_rows) == ("Paused", 0)
        assert await clean(e) == []
        assert (await e.operations.resume(made.id)).status == "Validating"
        await e.work_until_idle()
        done = await e.operations.get(made.id)
        assert (done.status, done.total_rows, done.successful_rows) == ("Completed", 9, 9)
        assert await clean(e) == []


async def test_a_pause_between_two_kinds_of_step_does_not_count_an_attempt(database_url, tmp_path):
    """An awaited step and one on a thread are under one intent; the second has not begun when the first is paused."""
    wall, attempts = Wall(), []

    @operation("mixed")
    class Mixed(Pipeline[Paper]):
        @step
        async def awaited(self, paper: Paper, ctx: Context) -> None:
            await wall.stop()

        @step
        def threaded(self, paper: Paper, ctx: Context) -> None:
            attempts.append(ctx.attempt)

    async with engine([Mixed], url=database_url, tmp_path=tmp_path) as e:
        made = await e.create(Mixed, papers(1))
        await at_wall(wall, e.work_until_idle())
        await e.operations.pause(made.id)
        await e.worker.look_round()
        wall.gone.set()
        await e.work_until_idle()
        assert await clean(e) == []
        await e.operations.resume(made.id)
        await e.work_until_idle()
        assert attempts == [1]
        assert await history(e, made) == []


@pytest.mark.covers("SM-019", "I-48")
async def test_a_worker_that_is_stopped_cuts_off_what_does_not_end_and_nothing_counts_as_lost(database_url, tmp_path):
    wall, begun = Wall(), []

    @operation("stuck")
    class Stuck(Pipeline[Paper]):
        @step
        async def work(self, paper: Paper, ctx: Context) -> None:
            begun.append(ctx.row_number)
            if len(begun) == 1:
                await wall.stop()

    async with engine([Stuck], url=database_url, tmp_path=tmp_path, settings=Settings(shutdown_s=0)) as e:
        made = await e.create(Stuck, papers(1))
        await at_wall(wall, e.work_until_idle())
        await e.restart()
        assert (await e.operations.get(made.id)).status == "Running"
        await e.work_until_idle()
        assert (await e.operations.get(made.id)).status == "Completed"
        assert [(h.event, h.error_type) for h in await history(e, made)] == [("interrupted", None)]
        assert [row.lost for row in await rows_of(e.penstock.db, made.id)] == [0]
        assert await clean(e) == []


async def test_a_worker_that_is_stopped_waits_no_longer_because_the_operation_is_paused_too(database_url, tmp_path):
    """A pause lets rows end however long they take; the end of the worker does not."""
    wall = Wall()

    @operation("stuck")
    class Stuck(Pipeline[Paper]):
        @step
        async def work(self, paper: Paper, ctx: Context) -> None:
            await wall.stop()

    async with engine([Stuck], url=database_url, tmp_path=tmp_path, settings=Settings(shutdown_s=0.2)) as e:
        made = await e.create(Stuck, papers(1))
        await at_wall(wall, e.work_until_idle())
        await e.operations.pause(made.id)
        stopping = asyncio.create_task(e.worker.stop())
        await asyncio.sleep(0)
        await e.worker.look_round()
        await stopping
        assert [(h.event, h.error_type) for h in await history(e, made)] == [("interrupted", None)]
        assert [(row.lost, row.in_flight) for row in await rows_of(e.penstock.db, made.id)] == [(0, 0)]


async def test_a_stopped_worker_leaves_waits_as_they_are(e):
    made = await e.create("approvals", papers(2))
    await e.work_until_idle()
    await e.restart()
    assert await states(e, made) == [WAIT, WAIT]
    await e.penstock.signals.complete(made.id, "paper-p2")
    await e.work_until_idle()
    assert await states(e, made) == [WAIT, DONE]
