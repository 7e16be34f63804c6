"""Cancel: no row begins any more, every row gets a verdict, and the end is Cancelled, whatever state it began in."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from approvals import (
    Calls,
    Paper,
    Wall,
    a_moment,
    approvals,
    at_wall,
    chunks_of,
    clean,
    history,
    on_withdraw,
    papers,
    states,
    two_engines,
)

from penstock import Context, Pipeline, operation, step
from penstock.errors import IllegalMove
from penstock.operations import control, draining
from penstock.operations.inbox import settling
from penstock.operations.model import Operation
from penstock.operations.operation_ids import number_of
from penstock.settings import Settings
from penstock.testing import Engine, engine

DONE, WAIT, CANCELLED = "Completed", "WaitingForCompletion", "Cancelled"
SMALL = Settings(chunk_rows=2, cancel_grace_s=0)


class Office:
    """A pipeline whose steps and validation stop at walls, for rows named after them."""

    def __init__(self, *, delivery: Any = "at_least_once") -> None:
        self.wall, self.reading = Wall(), Wall()
        self.begun: list[int] = []
        self.asked_to_stop: list[bool] = []
        office = self

        @operation("office", row_key="code", max_row_concurrency=1)
        class Kind(Pipeline[Paper]):
            async def validate_row(self, paper: Paper, meta: None) -> None:
                if paper.desk == "reading":
                    await office.reading.stop()

            @step(delivery=delivery)
            async def work(self, paper: Paper, ctx: Context) -> None:
                office.begun.append(ctx.row_number)
                if paper.desk == "wall":
                    await office.wall.stop()
                    office.asked_to_stop.append(ctx.cancelled)

        self.kind = Kind


async def test_a_row_that_is_retried_after_a_cancel_is_not_asked_to_stop(database_url, tmp_path):
    wall, asked_to_stop = Wall(), []

    @operation("again", max_row_concurrency=1)
    class Again(Pipeline[Paper]):
        @step
        async def work(self, paper: Paper, ctx: Context) -> None:
            if not asked_to_stop:
                await wall.stop()
            asked_to_stop.append(ctx.cancelled)

    async with engine([Again], url=database_url, tmp_path=tmp_path, settings=SMALL) as e:
        made = await e.create(Again, papers(2))
        await at_wall(wall, e.work_until_idle())
        async with e.penstock.db.read() as tx:
            number = await number_of(tx, made.id)
        await control.cancel(e.penstock.db, number, actor="ana")
        await e.worker.look_round()
        wall.gone.set()
        await e.work_until_idle()
        assert ((await e.operations.get(made.id)).status, asked_to_stop) == ("Cancelled", [True])
        await e.operations.retry(made.id)
        await e.work_until_idle()
        assert ((await e.operations.get(made.id)).status, asked_to_stop) == ("Completed", [True, False])


@pytest.fixture
def calls() -> Calls:
    return Calls()


@pytest.fixture
async def e(database_url: str, tmp_path: Path, calls: Calls) -> AsyncIterator[Engine]:
    async with engine([approvals(calls)], url=database_url, tmp_path=tmp_path, settings=SMALL) as opened:
        yield opened
        assert await clean(opened) == []


async def moves(e: Engine, made: Operation) -> list[str]:
    return [event.target for event in await e.operations.events(made.id)]


@pytest.mark.covers("SM-009")
async def test_a_pending_operation_is_cancelled_at_once(e):
    made = await e.create("approvals", papers(3))
    done = await e.operations.cancel(made.id, cause="a mistake", actor="ana")
    assert (done.status, done.total_rows) == ("Cancelled", 0)
    assert await moves(e, made) == ["Pending", "Cancelled"]
    last = (await e.operations.events(made.id))[-1]
    assert (last.actor, last.cause) == ("ana", "a mistake")
    await e.work_until_idle()
    assert await chunks_of(e, made) == []


@pytest.mark.covers("SM-009", "I-26")
async def test_an_operation_that_only_waits_is_drained_by_the_caller(e, calls):
    made = await e.create("approvals", papers(5))
    await e.work_until_idle()
    await e.penstock.signals.complete(made.id, "paper-p2")
    await e.work_until_idle()
    done = await e.operations.cancel(made.id)
    assert (done.status, done.successful_rows, done.cancelled_rows, done.waiting_rows) == ("Cancelled", 1, 4, 0)
    assert await states(e, made) == [CANCELLED, DONE, CANCELLED, CANCELLED, CANCELLED]
    assert (await moves(e, made))[-2:] == ["Stopping", "Cancelled"]


@pytest.mark.covers("I-22")
async def test_a_signal_stored_before_the_cancel_still_decides_its_row(e):
    made = await e.create("approvals", papers(2))
    await e.work_until_idle()
    await e.penstock.signals.complete(made.id, "paper-p1")
    await e.penstock.signals.fail(made.id, "paper-p2", "no")
    done = await e.operations.cancel(made.id)
    assert done.status == "Cancelled"
    rows = (await e.operations.rows(made.id)).items
    assert rows[0].steps[2].state == DONE
    assert rows[1].state == "Failed"
    assert await e.penstock.signals.unclaimed(made.id) == []


@pytest.mark.covers("I-26")
async def test_cancelling_twice_is_cancelling_once(e):
    made = await e.create("approvals", papers(2))
    await e.work_until_idle()
    first = await e.operations.cancel(made.id)
    assert await e.operations.cancel(made.id) == first
    assert (await moves(e, made)).count("Cancelled") == 1


async def test_an_operation_that_has_ended_cannot_be_cancelled(e):
    made = await e.create("approvals", [], options={"allow_empty": True})
    await e.work_until_idle()
    with pytest.raises(IllegalMove, match="is Completed, and 'cancel_requested' is not possible"):
        await e.operations.cancel(made.id)


@pytest.mark.covers("I-25", "SM-009")
async def test_no_row_begins_after_a_cancel_and_the_running_one_keeps_a_result_that_comes_in_time(
    database_url, tmp_path, monkeypatch
):
    office, heard = Office(), on_withdraw(monkeypatch)
    patient = Settings(cancel_grace_s=20)  # all rows in one chunk: the wall and who is heard are the same one's
    async with engine([office.kind], url=database_url, tmp_path=tmp_path, settings=patient) as e:
        rows = papers(6)
        rows[1]["desk"] = "wall"
        made = await e.create(office.kind, rows)
        await at_wall(office.wall, e.work_until_idle())
        assert (await e.operations.cancel(made.id)).status == "Stopping"
        await e.worker.look_round()
        await heard.wait()
        office.wall.gone.set()
        await e.work_until_idle()
        assert await states(e, made) == [DONE, DONE] + [CANCELLED] * 4
        assert (await e.operations.get(made.id)).status == "Cancelled"
        assert office.begun == [1, 2]
        assert await clean(e) == []
    assert office.asked_to_stop == [True], "the running call was asked to stop"


@pytest.mark.covers("I-25")
async def test_a_call_that_does_not_stop_is_cut_off_after_its_grace(database_url, tmp_path):
    office = Office()
    async with engine([office.kind], url=database_url, tmp_path=tmp_path, settings=SMALL) as e:
        made = await e.create(office.kind, papers(3, desk="wall"))
        await at_wall(office.wall, e.work_until_idle())
        await e.operations.cancel(made.id)
        await e.worker.look_round()
        await e.work_until_idle()
        assert await states(e, made) == [CANCELLED] * 3
        assert (office.begun, office.asked_to_stop) == ([1], [])
        assert await clean(e) == []


async def test_a_row_cut_off_behind_a_step_that_was_tried_again_shows_no_error_of_that_step(database_url, tmp_path):
    wall = Wall()

    @operation("twice")
    class Twice(Pipeline[Paper]):
        @step(retries=1, backoff=0)
        async def first(self, paper: Paper, ctx: Context) -> None:
            if ctx.attempt == 1:
                raise OSError("not now")

        @step
        async def second(self, paper: Paper, ctx: Context) -> None:
            await wall.stop()

    async with engine([Twice], url=database_url, tmp_path=tmp_path, settings=SMALL) as e:
        made = await e.create(Twice, papers(1))
        working = asyncio.create_task(e.work_until_idle())
        await wall.reached.wait()
        await e.operations.cancel(made.id)
        await e.worker.look_round()
        await working
        steps = (await e.operations.row(made.id, 1)).steps
        assert [(each.state, each.attempt, each.message) for each in steps if each.index >= 0] == [
            (DONE, 2, None),
            (CANCELLED, 1, None),
        ]
        assert await clean(e) == []


async def test_an_at_most_once_call_that_was_cut_off_is_in_doubt(database_url, tmp_path):
    office = Office(delivery="at_most_once")
    one_chunk = Settings(cancel_grace_s=0)
    async with engine([office.kind], url=database_url, tmp_path=tmp_path, settings=one_chunk) as e:
        made = await e.create(office.kind, papers(3, desk="wall"))
        await at_wall(office.wall, e.work_until_idle())
        await e.operations.cancel(made.id)
        await e.worker.look_round()
        await e.work_until_idle()
        assert (await e.operations.get(made.id)).status == "Cancelled"
        assert await states(e, made) == ["Failed", CANCELLED, CANCELLED]
        assert [error.error_type for error in (await e.operations.errors(made.id)).items] == ["InDoubt"]
        assert await clean(e) == []


@pytest.mark.covers("SM-009")
async def test_an_operation_that_is_being_read_is_stopped_and_says_what_it_has(database_url, tmp_path):
    office = Office()
    async with engine([office.kind], url=database_url, tmp_path=tmp_path, settings=SMALL) as e:
        rows = papers(9)
        rows[4]["desk"] = "reading"
        made = await e.create(office.kind, rows)
        await at_wall(office.reading, e.work_until_idle())
        stopping = await e.operations.cancel(made.id)
        assert stopping.status == "Stopping"
        await e.worker.look_round()
        office.reading.gone.set()
        await e.work_until_idle()
        done = await e.operations.get(made.id)
        assert (done.status, office.begun) == ("Cancelled", [])
        assert done.total_rows == done.rows_read == done.cancelled_rows
        assert await clean(e) == []


async def test_a_reading_whose_worker_died_is_given_up_by_the_caller(database_url, tmp_path):
    office = Office()
    async with engine([office.kind], url=database_url, tmp_path=tmp_path, settings=SMALL) as e:
        rows = papers(9)
        rows[4]["desk"] = "reading"
        made = await e.create(office.kind, rows)
        await at_wall(office.reading, e.work_until_idle())
        await e.crash()
        done = await e.operations.cancel(made.id)
        assert (done.status, office.begun) == ("Cancelled", [])
        assert await clean(e) == []


@pytest.mark.covers("I-25", "I-26")
async def test_an_operation_with_no_worker_alive_is_drained_by_the_caller(database_url, tmp_path):
    office = Office()
    async with engine([office.kind], url=database_url, tmp_path=tmp_path, settings=SMALL) as e:
        made = await e.create(office.kind, papers(5, desk="wall"))
        await at_wall(office.wall, e.work_until_idle())
        await e.crash()
        in_flight = (await states(e, made)).count("Running")
        done = await e.operations.cancel(made.id)
        assert (done.status, done.cancelled_rows) == ("Cancelled", 5)
        assert in_flight
        assert [h.event for h in await history(e, made)] == ["owner_lost"] * in_flight
        assert await clean(e) == []


async def test_an_operation_being_retried_is_cancelled_like_any_other(e):
    made = await e.create("approvals", papers(3))
    await e.work_until_idle()
    await e.penstock.signals.fail(made.id, "paper-p1", "no")
    await e.advance(61)
    await e.work_until_idle()
    assert (await e.operations.get(made.id)).status == "CompletedWithErrors"
    await e.operations.retry(made.id)
    await e.work_until_idle()
    done = await e.operations.cancel(made.id)
    assert (done.status, done.cancelled_rows) == ("Cancelled", 3)
    assert "Stopping" in await moves(e, made)


async def test_a_paused_operation_can_be_cancelled(e):
    made = await e.create("approvals", papers(3))
    await e.work_until_idle()
    await e.operations.pause(made.id)
    done = await e.operations.cancel(made.id)
    assert (done.status, await states(e, made)) == ("Cancelled", [CANCELLED] * 3)


@pytest.mark.covers("I-25")
async def test_a_worker_in_another_process_stops_what_it_runs(database_url, tmp_path):
    office = Office()
    async with two_engines(office.kind, url=database_url, folder=tmp_path, settings=SMALL) as (api, worker):
        made = await api.create(office.kind, papers(5, desk="wall"))
        await at_wall(office.wall, worker.work_until_idle())
        stopping = await api.operations.cancel(made.id)
        assert stopping.status == "Stopping"
        assert await api.worker.tick() is False, "a live owner drains itself"
        await worker.worker.look_round()
        await worker.work_until_idle()
        assert (await api.operations.get(made.id)).status == "Cancelled"
        assert await states(api, made) == [CANCELLED] * 5
        assert office.begun == [1]
        assert await clean(api) == []


@pytest.mark.covers("I-03")
async def test_the_end_is_cancelled_also_when_every_row_had_finished_by_itself(database_url, tmp_path):
    office = Office()
    patient = Settings(cancel_grace_s=20)
    async with engine([office.kind], url=database_url, tmp_path=tmp_path, settings=patient) as e:
        made = await e.create(office.kind, papers(1, desk="wall"))
        await at_wall(office.wall, e.work_until_idle())
        await e.operations.cancel(made.id)
        office.wall.gone.set()
        await e.work_until_idle()
        done = await e.operations.get(made.id)
        assert (done.status, done.successful_rows) == ("Cancelled", 1)
        assert await clean(e) == []


@pytest.mark.covers("I-14", "I-26")
async def test_a_result_that_comes_after_the_cut_changes_nothing(database_url, tmp_path):
    @operation("thread")
    class OnThread(Pipeline[Paper]):
        @step
        def work(self, paper: Paper, ctx: Context) -> str:
            asyncio.run_coroutine_threadsafe(wall.stop(), loop).result(20)
            return "too late"

    loop, wall = asyncio.get_running_loop(), Wall()
    async with engine([OnThread], url=database_url, tmp_path=tmp_path, settings=SMALL) as e:
        made = await e.create(OnThread, papers(1))
        await at_wall(wall, e.work_until_idle())
        await e.operations.cancel(made.id)
        await e.worker.look_round()
        await e.work_until_idle()
        wall.gone.set()
        await a_moment()
        assert await states(e, made) == [CANCELLED]
        assert await clean(e) == []


@pytest.mark.parametrize("by", ["caller", "worker"])
async def test_a_drain_that_another_owner_overtakes_is_made_again(e, monkeypatch, by):
    """Another chunk's owner takes the signal that we meant to take, between our look and our write."""
    made = await e.create("approvals", papers(2))
    await e.work_until_idle()
    await e.penstock.signals.complete(made.id, "paper-p1")
    consume, times = settling._consume, []

    async def overtaken_once(*args: Any) -> None:
        times.append(len(times))
        if len(times) == 1:
            raise settling.Overtaken
        await consume(*args)

    monkeypatch.setattr(settling, "_consume", overtaken_once)
    if by == "worker":
        monkeypatch.setattr(draining, "drain", _leave_it_to_the_worker)
    await e.operations.cancel(made.id)
    await e.work_until_idle()
    assert (await e.operations.get(made.id)).status == "Cancelled"


async def _leave_it_to_the_worker(*_: Any, **__: Any) -> None: ...
