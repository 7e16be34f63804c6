"""Failed rows, and only they, run again from the step that failed; what is left out comes back with its reason."""

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
    clean,
    failures,
    history,
    papers,
    requests_of,
    states,
    two_engines,
)
from stored import rows_of

from penstock import Context, Pipeline, StepFailed, failpoints, operation, step
from penstock.db.database import Database
from penstock.errors import Conflict, InvalidInput, NotFound
from penstock.operations.retrying import NothingToRetry
from penstock.settings import Settings
from penstock.testing import Engine, engine

SMALL = Settings(chunk_rows=3)
DONE, FAILED = "Completed", "Failed"


def second_fails_at_first(ctx: Context, code: str) -> bool:
    return ctx.step_name == "second" and ctx.generation == 0 and ctx.row_number % 3 == 0


@pytest.fixture
def calls() -> Calls:
    return Calls()


@pytest.fixture
async def e(database_url: str, tmp_path: Path, calls: Calls) -> AsyncIterator[Engine]:
    kinds = [failures(calls, broken=second_fails_at_first), approvals(calls)]
    async with engine(kinds, url=database_url, tmp_path=tmp_path, settings=SMALL) as opened:
        yield opened
        assert await clean(opened) == []


def mixed() -> list[dict[str, str]]:
    """Seven papers of which the fourth is invalid; the third and the sixth fail once."""
    rows = papers(7)
    rows[3] = {"code": "x4"}
    return rows


@pytest.mark.covers("SM-044", "SM-047", "SM-063", "SM-080", "SM-082", "SM-010", "SM-011", "SM-022", "SM-098", "SM-087")
async def test_a_retry_runs_failed_rows_from_the_step_that_failed_and_every_step_after_it(e, calls):
    made = await e.run("failures", mixed())
    assert (made.status, made.successful_rows, made.failed_rows, made.invalid_rows) == ("CompletedWithErrors", 4, 3, 1)
    retry = await e.operations.retry(made.id)
    assert (retry.submitted, retry.skipped) == (2, 1)
    assert retry.reasons == {4: "it failed validation; correct its data first"}
    assert (await e.operations.get(made.id)).status == "Retrying"
    await e.work_until_idle()
    done = await e.operations.get(made.id)
    assert (done.status, done.successful_rows, done.failed_rows, done.total_rows) == ("CompletedWithErrors", 6, 1, 7)
    for row in (3, 6):
        assert [calls[name, row] for name in ("first", "second", "third")] == [1, 2, 1]
    for row in (1, 2, 5, 7):
        assert [calls[name, row] for name in ("first", "second", "third")] == [1, 1, 1]
    stored = {row.number: row for row in await rows_of(e.penstock.db, made.id)}
    assert stored[3].states == [DONE] * 3
    assert stored[3].outputs == ["first p3", "second p3", "third p3"]
    events = [event.event for event in await e.operations.events(made.id)]
    assert events[-3:] == ["retry_requested", "resumed", "finished_with_errors"]


@pytest.mark.covers("SM-078", "SM-046", "SM-077", "SM-083")
async def test_a_retry_counts_and_each_row_goes_into_its_next_generation(e):
    made = await e.run("failures", papers(3))
    assert (made.retry_count, made.generation) == (0, 0)
    await e.operations.retry(made.id)
    asked = await e.operations.get(made.id)
    assert (asked.retry_count, asked.generation) == (1, 1)
    await e.work_until_idle()
    rows = (await e.operations.rows(made.id)).items
    assert [row.generation for row in rows] == [0, 0, 1]
    third = await e.operations.row(made.id, 3)
    assert all(s.error_type is None and s.message is None for s in third.steps)
    assert (await e.operations.get(made.id)).status == "Completed"


@pytest.mark.covers("SM-074", "SM-075", "SM-076", "SM-088", "SM-090", "SM-045", "I-08")
async def test_the_history_keeps_every_failure_with_its_time_and_data_across_generations(database_url, tmp_path, calls):
    kind = failures(calls, broken=lambda ctx, code: ctx.step_name == "second" and ctx.generation < 2)
    async with engine([kind], url=database_url, tmp_path=tmp_path) as e:
        made = await e.run(kind, papers(1))
        failed_at = [(await e.operations.errors(made.id)).items[0].at]
        for _ in range(2):
            await e.advance(10)
            await e.operations.retry(made.id)
            await e.advance(10)
            await e.work_until_idle()
            failed_at += [error.at for error in (await e.operations.errors(made.id)).items]
        lines = await history(e, made)
        assert [(h.row, h.step, h.step_name, h.generation, h.attempt, h.event, h.error_type) for h in lines] == [
            (1, 1, "second", 0, 1, "retried", "StepFailure"),
            (1, 1, "second", 1, 1, "retried", "StepFailure"),
        ]
        assert [h.message for h in lines] == [f"second fails p1 in generation {n}" for n in (0, 1)]
        assert [h.at for h in lines] == failed_at
        assert [h.data for h in lines] == [{"code": "p1", "desk": "front"}] * 2
        assert (await e.operations.get(made.id)).status == "Completed"
        assert await clean(e) == []


@pytest.mark.covers("SM-072", "SM-098")
async def test_named_rows_run_again_and_the_others_stay_as_they_are(e, calls):
    made = await e.run("failures", papers(9))
    retry = await e.operations.retry(made.id, rows=[6])
    assert (retry.submitted, retry.skipped) == (1, 0)
    await e.work_until_idle()
    assert [n for n, state in enumerate(await states(e, made), 1) if state == FAILED] == [3, 9]
    assert (calls["second", 6], calls["second", 3]) == (2, 1)


@pytest.mark.covers("I-12")
async def test_rows_that_cannot_run_again_come_back_with_the_reason(e):
    made = await e.run("failures", mixed())
    retry = await e.operations.retry(made.id, rows=[1, 3, 4])
    assert (retry.submitted, retry.skipped) == (1, 2)
    assert retry.reasons == {1: "it has succeeded", 4: "it failed validation; correct its data first"}
    await e.work_until_idle()


async def test_when_none_of_the_named_rows_can_run_again_nothing_changes(e):
    made = await e.run("failures", mixed())
    with pytest.raises(NothingToRetry, match="row 1: it has succeeded"):
        await e.operations.retry(made.id, rows=[1, 4])
    now = await e.operations.get(made.id)
    assert (now.status, now.retry_count, await requests_of(e, made)) == ("CompletedWithErrors", 0, [])


async def test_an_empty_list_of_rows_is_refused_and_so_is_a_row_that_does_not_exist(e):
    made = await e.run("failures", papers(3))
    with pytest.raises(InvalidInput):
        await e.operations.retry(made.id, rows=[])
    with pytest.raises(NotFound, match="no row 99"):
        await e.operations.retry(made.id, rows=[99])
    assert (await e.operations.get(made.id)).status == "CompletedWithErrors"


@pytest.mark.covers("SM-071", "SM-066", "SM-070")
async def test_eligibility_says_how_many_rows_and_every_reason_against(e):
    good = await e.run("failures", mixed())
    can = await e.operations.can_retry(good.id)
    assert (can.is_eligible, can.reasons, can.rows) == (True, (), 2)
    clean_run = await e.run("failures", papers(2))
    can = await e.operations.can_retry(clean_run.id)
    assert (can.is_eligible, can.rows) == (False, 0)
    assert len(can.reasons) == 2
    invalid = await e.run("failures", [{"code": "x1"}])
    can = await e.operations.can_retry(invalid.id)
    assert not can.is_eligible
    assert can.reasons == ("no failed row can be run again, 1 cannot be: it failed validation; correct its data first",)
    waiting = await e.create("approvals", papers(1))
    await e.work_until_idle()
    can = await e.operations.can_retry(waiting.id)
    assert "the operation is Running" in can.reasons[0]


@pytest.mark.covers("SM-017", "SM-067", "SM-069")
async def test_an_operation_that_is_not_retryable_or_was_retried_too_often_is_refused(database_url, tmp_path, calls):
    def always(ctx: Context, code: str) -> bool:
        return True

    never = failures(calls, broken=always, retryable=False)
    async with engine([never], url=database_url, tmp_path=tmp_path) as e:
        made = await e.run(never, papers(1))
        assert "not retryable" in (await e.operations.can_retry(made.id)).reasons[0]
        for rows in (None, [1]):
            with pytest.raises(Conflict, match="not retryable"):
                await e.operations.retry(made.id, rows=rows)
    twice = failures(calls, broken=always, max_retry_attempts=2)
    async with engine([twice], url=database_url, tmp_path=tmp_path) as e:
        made = await e.run(twice, papers(1))
        for _ in range(2):
            await e.advance(1)
            await e.operations.retry(made.id)
            await e.work_until_idle()
        can = await e.operations.can_retry(made.id)
        assert can.reasons == ("it was retried 2 times; max_retry_attempts is 2",)
        with pytest.raises(Conflict, match="max_retry_attempts is 2"):
            await e.operations.retry(made.id)
        with pytest.raises(Conflict, match="max_retry_attempts is 2"):
            await e.operations.retry(made.id, rows=[1])
        assert (await e.operations.get(made.id)).retry_count == 2


@pytest.mark.covers("SM-073")
async def test_a_step_that_does_not_allow_it_keeps_its_failed_rows_out(database_url, tmp_path):
    @operation("guarded")
    class Guarded(Pipeline[Paper]):
        @step(allow_operation_retry=False)
        async def charge(self, paper: Paper, ctx: Context) -> None:
            if ctx.row_number == 1:
                raise StepFailed("declined")

        @step
        async def ship(self, paper: Paper, ctx: Context) -> None:
            if ctx.generation == 0:
                raise StepFailed("no truck")

    async with engine([Guarded], url=database_url, tmp_path=tmp_path) as e:
        made = await e.run(Guarded, papers(3))
        retry = await e.operations.retry(made.id)
        assert (retry.submitted, retry.reasons) == (2, {1: "step 'charge' does not allow a retry"})
        await e.work_until_idle()
        assert await states(e, made) == [FAILED, DONE, DONE]
        with pytest.raises(NothingToRetry, match="does not allow a retry"):
            await e.operations.retry(made.id, rows=[1])
        assert await clean(e) == []


@pytest.mark.covers("SM-044")
async def test_a_row_in_doubt_runs_again_only_when_named_and_confirmed(database_url, tmp_path):
    calls: list[int] = []
    deadly = [True]

    @operation("once")
    class Once(Pipeline[Paper]):
        @step(delivery="at_most_once")
        async def pay(self, paper: Paper, ctx: Context) -> None:
            calls.append(ctx.row_number)
            if deadly[0]:
                await asyncio.Event().wait()

    async with engine([Once], url=database_url, tmp_path=tmp_path, settings=Settings(shutdown_s=0)) as e:
        made = await e.create(Once, papers(1))
        await e.worker.tick()
        while not calls:
            await e.worker.tick()
            await asyncio.sleep(0)
        await e.crash()
        deadly[0] = False
        await e.work_until_idle()
        (error,) = (await e.operations.errors(made.id)).items
        assert (error.error_type, error.state) == ("InDoubt", "Failed")
        assert not (await e.operations.can_retry(made.id)).is_eligible
        for given in ({}, {"rows": [1]}, {"confirm_doubt": True}):
            with pytest.raises(NothingToRetry):
                await e.operations.retry(made.id, **given)
        assert (await e.operations.retry(made.id, rows=[1], confirm_doubt=True)).submitted == 1
        await e.work_until_idle()
        assert (await e.operations.get(made.id)).status == "Completed"
        assert calls == [1, 1]
        assert await clean(e) == []


@pytest.mark.covers("SM-035", "SM-066", "SM-009")
async def test_a_cancelled_operation_goes_on_where_it_was_stopped(e, calls):
    made = await e.create("approvals", papers(4))
    await e.work_until_idle()
    await e.penstock.signals.complete(made.id, "paper-p1")
    await e.work_until_idle()
    cancelled = await e.operations.cancel(made.id)
    assert (cancelled.status, cancelled.cancelled_rows) == ("Cancelled", 3)
    await e.advance(1)
    retry = await e.operations.retry(made.id)
    assert retry.submitted == 3
    await e.work_until_idle()
    assert await states(e, made) == [DONE] + ["WaitingForCompletion"] * 3
    assert [calls["submit", n] for n in (1, 2, 3, 4)] == [1, 1, 1, 1]
    for n in (2, 3, 4):
        await e.penstock.signals.complete(made.id, f"paper-p{n}")
    await e.work_until_idle()
    assert (await e.operations.get(made.id)).status == "Completed"


@pytest.mark.covers("SM-008", "SM-066")
async def test_an_operation_that_broke_can_be_retried_with_the_rows_it_did_not_begin(database_url, tmp_path, calls):
    kind = failures(calls, broken=lambda ctx, code: ctx.generation == 0 and ctx.step_name == "first", max_errors=2)
    async with engine([kind], url=database_url, tmp_path=tmp_path, settings=SMALL) as e:
        made = await e.run(kind, papers(12))
        assert made.status == "Failed"
        assert made.failed_rows + made.cancelled_rows == 12
        assert (await e.operations.retry(made.id)).submitted == 12
        await e.work_until_idle()
        done = await e.operations.get(made.id)
        assert (done.status, done.successful_rows, done.failed_rows, done.error) == ("Completed", 12, 0, None)
        assert await clean(e) == []


@pytest.mark.covers("SM-043", "SM-042")
async def test_an_operation_whose_reading_was_stopped_cannot_be_retried(e):
    made = await e.create("failures", papers(3))
    await e.operations.cancel(made.id)
    assert (await e.operations.can_retry(made.id)).reasons[0].startswith("its file was not read to the end")
    with pytest.raises(Conflict, match="create it again"):
        await e.operations.retry(made.id)


@pytest.mark.covers("SM-044")
async def test_a_named_row_is_retried_while_others_still_wait(e, calls):
    made = await e.create("approvals", papers(4))
    await e.work_until_idle()
    await e.penstock.signals.fail(made.id, "paper-p2", "no")
    await e.work_until_idle()
    await e.advance(1)
    with pytest.raises(Conflict, match="is Running"):
        await e.operations.retry(made.id)
    retry = await e.operations.retry(made.id, rows=[1, 2])
    assert (retry.submitted, retry.reasons) == (1, {1: "it is still on its way"})
    assert (await e.operations.get(made.id)).status == "Running"
    await e.work_until_idle()
    assert await states(e, made) == ["WaitingForCompletion"] * 4
    assert calls["approval", 2] == 2


@pytest.mark.covers("I-12")
async def test_of_concurrent_retries_one_wins(database_url, tmp_path, calls):
    kind = failures(calls, broken=second_fails_at_first)
    async with two_engines(kind, url=database_url, folder=tmp_path, settings=SMALL) as (one, other):
        made = await one.run(kind, papers(9))
        asked = await asyncio.gather(*(e.operations.retry(made.id) for e in (one, other) * 3), return_exceptions=True)
        assert sum(not isinstance(answer, Exception) for answer in asked) == 1
        assert all(isinstance(answer, Conflict) for answer in asked if isinstance(answer, Exception))
        await one.work_until_idle()
        await other.work_until_idle()
        done = await one.operations.get(made.id)
        assert (done.status, done.retry_count, done.generation) == ("Completed", 1, 1)
        assert {calls["second", row] for row in (3, 6, 9)} == {2}
        assert await clean(one) == []


@pytest.mark.covers("I-12")
async def test_of_concurrent_retries_of_one_row_one_wins(database_url, tmp_path, calls):
    kind = failures(calls, broken=second_fails_at_first)
    async with two_engines(kind, url=database_url, folder=tmp_path, settings=SMALL) as (one, other):
        made = await one.run(kind, papers(9))
        asked = await asyncio.gather(
            *(e.operations.retry(made.id, rows=[3]) for e in (one, other) * 2), return_exceptions=True
        )
        assert sum(not isinstance(answer, Exception) for answer in asked) == 1
        assert all(isinstance(answer, Conflict) for answer in asked if isinstance(answer, Exception))
        await other.work_until_idle()
        assert (calls["second", 3], len(await requests_of(one, made))) == (2, 1)
        assert await clean(one) == []


@pytest.mark.covers("SM-020", "SM-079")
@pytest.mark.parametrize("named", [None, [3]])
async def test_a_retry_accepted_before_a_crash_is_picked_up_after_it(e, calls, named):
    made = await e.run("failures", papers(3))
    await e.operations.retry(made.id, rows=named)
    await e.crash()
    assert (await e.operations.get(made.id)).status == "Retrying"
    await e.work_until_idle()
    assert (await e.operations.get(made.id)).status == "Completed"
    assert calls["second", 3] == 2


@pytest.mark.parametrize("point", ["retry:before", "retry_rows:before"])
async def test_a_retry_that_dies_before_its_commit_leaves_nothing(e, point):
    made = await e.run("failures", papers(3))

    def die(at: str) -> None:
        if at == point:
            raise ConnectionError

    with failpoints.armed(die), pytest.raises(ConnectionError):
        await e.operations.retry(made.id, rows=None if point == "retry:before" else [3])
    now = await e.operations.get(made.id)
    assert (now.status, now.retry_count, await requests_of(e, made)) == ("CompletedWithErrors", 0, [])
    assert (await e.operations.retry(made.id)).submitted == 1
    await e.work_until_idle()


@pytest.mark.covers("SM-044", "I-48")
@pytest.mark.databases("sqlite")
async def test_more_failed_rows_than_any_page_holds_are_all_retried(database_url, tmp_path):
    @operation("wide")
    async def wide(paper: Paper, ctx: Context) -> None:
        if ctx.generation == 0:
            raise StepFailed("at first")

    async with engine([wide], url=database_url, tmp_path=tmp_path) as e:
        made = await e.run(wide, papers(2500))
        assert made.failed_rows == 2500
        assert (await e.operations.can_retry(made.id)).rows == 2500
        assert (await e.operations.retry(made.id)).submitted == 2500
        await e.work_until_idle()
        done = await e.operations.get(made.id)
        assert (done.status, done.successful_rows, done.failed_rows) == ("Completed", 2500, 0)
        assert await clean(e) == []


@pytest.mark.covers("SM-084", "SM-055")
async def test_in_step_retries_work_in_a_later_generation_as_in_the_first(database_url, tmp_path):
    attempts: list[tuple[int, int]] = []

    @operation("stubborn")
    class Stubborn(Pipeline[Paper]):
        @step(retries=2, backoff=1)
        async def push(self, paper: Paper, ctx: Context) -> None:
            attempts.append((ctx.generation, ctx.attempt))
            if ctx.generation == 0 or ctx.attempt < 3:
                raise ConnectionError("down")

    async with engine([Stubborn], url=database_url, tmp_path=tmp_path) as e:
        made = await e.run(Stubborn, papers(1))
        assert made.failed_rows == 1
        await e.operations.retry(made.id)
        await e.work_until_idle()
        while not (done := await e.operations.get(made.id)).is_settled:
            await e.skip_wait(done)
            await e.work_until_idle()
        assert done.status == "Completed"
        assert attempts == [(0, 1), (0, 2), (0, 3), (1, 1), (1, 2), (1, 3)]
        events = [(h.generation, h.attempt, h.event) for h in await history(e, made)]
        assert events == [
            (0, 1, "postponed"), (0, 2, "postponed"), (0, 3, "retried"), (1, 1, "postponed"), (1, 2, "postponed"),
        ]  # fmt: skip
        assert await clean(e) == []


@pytest.mark.covers("SM-068", "SM-081")
async def test_rows_whose_data_is_not_kept_are_read_again_from_the_file(database_url, tmp_path, calls):
    kind = failures(calls, broken=second_fails_at_first, track_row_data=False)
    async with engine([kind], url=database_url, tmp_path=tmp_path, settings=SMALL) as e:
        made = await e.run(kind, papers(9))
        assert (await e.operations.retry(made.id)).submitted == 3
        await e.work_until_idle()
        done = await e.operations.get(made.id)
        assert (done.status, done.successful_rows) == ("Completed", 9)
        assert await clean(e) == []


async def test_a_named_row_refused_by_a_cancel_can_be_named_again(e, calls):
    """The request was refused, so the row is where it was; asking again is a new request."""
    made = await e.run("failures", papers(3))
    await e.operations.retry(made.id, rows=[3])
    cancelled = await e.operations.cancel(made.id)
    assert cancelled.status == "Cancelled"
    assert await states(e, made) == [DONE, DONE, FAILED]
    assert [r.outcome for r in await requests_of(e, made)] == ["refused: the operation was stopped"]
    assert (await e.operations.retry(made.id, rows=[3])).submitted == 1
    await e.work_until_idle()
    assert await states(e, made) == [DONE] * 3


@pytest.mark.covers("SM-020")
async def test_a_retry_cancelled_before_its_pick_up_leaves_the_rows_in_their_generation(e, calls):
    made = await e.run("failures", papers(3))
    await e.operations.retry(made.id)
    assert (await e.operations.cancel(made.id)).status == "Cancelled"
    assert (await e.operations.row(made.id, 3)).generation == 0
    assert calls["second", 3] == 1
    assert (await e.operations.retry(made.id)).submitted == 1
    await e.work_until_idle()
    assert await states(e, made) == [DONE] * 3


@pytest.mark.covers("SM-085", "I-04")
async def test_counters_are_true_at_every_step_of_a_retry(e):
    made = await e.run("failures", papers(9))

    async def counted() -> tuple[int, int, int]:
        assert await clean(e) == []
        now = await e.operations.get(made.id)
        return now.successful_rows, now.failed_rows, now.processed_rows

    assert await counted() == (6, 3, 9)
    await e.operations.retry(made.id)
    assert await counted() == (6, 3, 9)
    await e.work_until_idle()
    assert await counted() == (9, 0, 9)


@pytest.mark.covers("I-08")
async def test_no_line_of_history_is_lost_when_mail_is_settled_while_rows_run(database_url, tmp_path, monkeypatch):
    """A row is put off while the settling transaction is under way: its line is written with the next commit."""
    wall, transaction = Wall(), Database.transaction

    @operation("busy")
    class Busy(Pipeline[Paper]):
        @step.signal(key="{row.code}", timeout=600)
        async def ask(self, paper: Paper, ctx: Context) -> None: ...

        @step(retries=1, backoff=1)
        async def work(self, paper: Paper, ctx: Context) -> None:
            if paper.code == "p1" and ctx.attempt == 1:
                await wall.stop()
                raise ConnectionError("refused")

    async def fail_meanwhile(db: Database, work: Any, point: str = "") -> Any:
        if point == "settle" and wall.reached.is_set():
            wall.gone.set()
            await a_moment()
        return await transaction(db, work, point)

    monkeypatch.setattr(Database, "transaction", fail_meanwhile)
    async with engine([Busy], url=database_url, tmp_path=tmp_path) as e:
        made = await e.create(Busy, papers(2))
        await e.penstock.signals.complete(made.id, "p1")
        await at_wall(wall, e.work_until_idle())
        await e.penstock.signals.complete(made.id, "p2")
        await e.worker.look_round()
        await e.work_until_idle()
        await e.skip_wait(made)
        await e.work_until_idle()
        assert (await e.operations.get(made.id)).status == "Completed"
        assert [(h.row, h.event) for h in await history(e, made)] == [(1, "postponed")]
