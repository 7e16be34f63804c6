"""Attempts: retried with backoff, put off without cost, cut off by a timeout, and all of it recorded."""

from __future__ import annotations

import asyncio
import re
import threading
from datetime import timedelta
from pathlib import Path

import pytest
from approvals import clean
from patience import HANG_S
from pydantic import BaseModel
from stored import history_of, records_of, rows_of

from penstock import Backoff, Context, Pipeline, RetryLater, StepFailed, operation, step
from penstock.operations.chunk.records import StepRecord
from penstock.operations.running import chunk_progress
from penstock.testing import Engine, engine


class Item(BaseModel):
    id: int


ONE = [{"id": 1}]
FIVE_S = Backoff.constant(5)


async def attempts_of(e: Engine, operation_id: str) -> list[list[int]]:
    return [row.attempts for row in await rows_of(e.penstock.db, operation_id)]


@pytest.mark.covers("SM-029", "SM-055", "I-08", "I-10")
async def test_a_step_is_tried_again_after_its_backoff_and_not_before(database_url: str, tmp_path: Path):
    tried: list[int] = []

    @operation("flaky")
    class Flaky(Pipeline[Item]):
        @step(retries=2, backoff=FIVE_S)
        async def call(self, row: Item, ctx: Context) -> str:
            tried.append(ctx.attempt)
            if ctx.attempt < 3:
                raise OSError(f"down {ctx.attempt}")
            return "up"

    async with engine([Flaky], url=database_url, tmp_path=tmp_path) as e:
        made = await e.create(Flaky, ONE)
        await e.work_until_idle()
        assert tried == [1]
        await e.advance(4.9)
        await e.work_until_idle()
        assert tried == [1]
        await e.advance(0.1)
        await e.work_until_idle()
        assert tried == [1, 2]
        [record] = await records_of(e.penstock.db, made.id)
        assert (record.state, record.attempt, record.errors, record.message) == ("Pending", 2, 2, "OSError: down 2")
        assert record.due_at == e.clock.now_us() + 5_000_000
        await e.advance(5)
        await e.work_until_idle()
        done = await e.operations.get(made.id)
        [row] = await rows_of(e.penstock.db, made.id)
        [record] = await records_of(e.penstock.db, made.id)
        lines = await history_of(e.penstock.db, made.id)
    assert (done.status, done.successful_rows) == ("Completed", 1)
    assert (row.attempts, row.outputs) == ([3], ["up"])
    assert (record.state, record.attempt, record.error_type, record.message) == ("Completed", 3, None, None)
    assert record.due_at is None
    assert [(line.row, line.step, line.attempt, line.event, line.message) for line in lines] == [
        (1, 0, 1, "postponed", "OSError: down 1"),
        (1, 0, 2, "postponed", "OSError: down 2"),
    ]


@pytest.mark.covers("SM-029", "SM-056")
@pytest.mark.parametrize("retries", [0, 1, 3])
async def test_when_retries_are_used_up_the_row_fails_with_the_last_error(
    database_url: str, tmp_path: Path, retries: int
):
    @operation("down")
    class Down(Pipeline[Item]):
        @step(retries=retries, backoff=1)
        def call(self, row: Item, ctx: Context) -> None:
            raise OSError(f"attempt {ctx.attempt}")

    async with engine([Down], url=database_url, tmp_path=tmp_path) as e:
        done = await e.run(Down, ONE)
        [record] = await records_of(e.penstock.db, done.id)
        lines = await history_of(e.penstock.db, done.id)
    assert (done.status, done.failed_rows) == ("CompletedWithErrors", 1)
    assert (record.state, record.attempt, record.message) == ("Failed", retries + 1, f"OSError: attempt {retries + 1}")
    assert [line.attempt for line in lines if line.event == "postponed"] == list(range(1, retries + 1))


async def test_a_row_in_its_backoff_holds_up_no_other(database_url: str, tmp_path: Path):
    @operation("mixed")
    class Mixed(Pipeline[Item]):
        @step(retries=1, backoff=FIVE_S)
        async def call(self, row: Item, ctx: Context) -> None:
            if row.id == 2 and ctx.attempt == 1:
                raise OSError("down")

        @step
        async def after(self, row: Item, ctx: Context) -> None: ...

    async with engine([Mixed], url=database_url, tmp_path=tmp_path) as e:
        made = await e.create(Mixed, [{"id": n} for n in range(1, 4)])
        await e.work_until_idle()
        now = await e.operations.get(made.id)
        assert (now.status, now.successful_rows, now.processed_rows) == ("Running", 2, 2)
        await e.advance(5)
        await e.work_until_idle()
        assert (await e.operations.get(made.id)).status == "Completed"
        assert await attempts_of(e, made.id) == [[1, 1], [2, 1], [1, 1]]


async def test_retries_are_counted_for_each_step_on_its_own(database_url: str, tmp_path: Path):
    @operation("two")
    class Two(Pipeline[Item]):
        @step(retries=1, backoff=1)
        async def one(self, row: Item, ctx: Context) -> None:
            if ctx.attempt == 1:
                raise OSError("one")

        @step(retries=1, backoff=1)
        def two(self, row: Item, ctx: Context) -> None:
            if ctx.attempt == 1:
                raise OSError("two")

    async with engine([Two], url=database_url, tmp_path=tmp_path) as e:
        done = await e.run(Two, ONE)
        assert done.status == "Completed"
        assert await attempts_of(e, done.id) == [[2, 2]]
        records = await records_of(e.penstock.db, done.id)
    assert [(r.step, r.state, r.message) for r in records] == [(0, "Completed", None), (1, "Completed", None)]


async def test_retry_later_puts_a_row_off_without_spending_a_retry(database_url: str, tmp_path: Path):
    @operation("busy")
    class Busy(Pipeline[Item]):
        @step(retries=1, backoff=1)
        async def call(self, row: Item, ctx: Context) -> None:
            if ctx.attempt <= 3:
                raise RetryLater("busy", after=60)
            if ctx.attempt == 4:
                raise OSError("once")

    async with engine([Busy], url=database_url, tmp_path=tmp_path) as e:
        made = await e.create(Busy, ONE)
        for _ in range(3):
            await e.work_until_idle()
            [record] = await records_of(e.penstock.db, made.id)
            assert (record.errors, record.due_at) == (0, e.clock.now_us() + 60_000_000)
            await e.advance(59)
            await e.work_until_idle()
            await e.advance(1)
        await e.work_until_idle()
        await e.advance(2)
        await e.work_until_idle()
        assert (await e.operations.get(made.id)).status == "Completed"
        assert await attempts_of(e, made.id) == [[5]]


async def test_retry_later_ends_after_a_day(database_url: str, tmp_path: Path):
    @operation("never")
    class Never(Pipeline[Item]):
        @step
        async def call(self, row: Item, ctx: Context) -> None:
            raise RetryLater("busy", after=6 * 3600)

    async with engine([Never], url=database_url, tmp_path=tmp_path) as e:
        done = await e.run(Never, ONE)
        [record] = await records_of(e.penstock.db, done.id)
        assert await attempts_of(e, done.id) == [[5]]
    assert (done.failed_rows, record.state, record.error_type) == (1, "Failed", "Timeout")


def told(*messages: str, last: str | None = None) -> type:
    """A step that is put off with each of these messages in turn, and then fails with the last one, or ends well."""

    @operation("told")
    class Told(Pipeline[Item]):
        @step
        async def call(self, row: Item, ctx: Context) -> None:
            if ctx.attempt <= len(messages):
                raise RetryLater(messages[ctx.attempt - 1], after=3)
            if last is not None:
                raise StepFailed(last)

    return Told


async def run_told(kind: type, database_url: str, tmp_path: Path) -> tuple[StepRecord, list[tuple[int, str]]]:
    """The record of its only row at the end, and the attempts and messages of its history."""
    async with engine([kind], url=database_url, tmp_path=tmp_path) as e:
        done = await e.run(kind, ONE)
        assert await clean(e) == []
        [record] = await records_of(e.penstock.db, done.id)
        return record, [(line.attempt, line.message) for line in await history_of(e.penstock.db, done.id)]


@pytest.mark.parametrize("last, state", [(None, "Completed"), ("gone", "Failed")])
async def test_a_row_that_is_put_off_again_for_the_same_reason_leaves_one_line(
    database_url: str, tmp_path: Path, last: str | None, state: str
):
    busy = [f"busy, {number} are before you" for number in range(40)]
    record, lines = await run_told(told(*busy, last=last), database_url, tmp_path)
    assert lines == [(1, busy[0])]
    assert (record.state, record.attempt, record.errors, record.message) == (state, 41, int(last is not None), last)


async def test_a_row_that_is_put_off_for_another_reason_leaves_a_line_for_each(database_url: str, tmp_path: Path):
    _, lines = await run_told(told("busy", "busy", "closed", "closed", "busy"), database_url, tmp_path)
    assert lines == [(1, "busy"), (3, "closed"), (5, "busy")]


async def test_reasons_that_take_turns_leave_no_line_for_each_attempt(
    database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(chunk_progress, "PUT_OFF_NOTED_MAX", 3)
    record, lines = await run_told(told(*["busy", "closed"] * 4), database_url, tmp_path)
    assert (len(lines), record.attempt) == (3, 9)


async def test_the_next_owner_leaves_no_line_again(database_url: str, tmp_path: Path):
    kind = told("busy", "busy", "busy")
    async with engine([kind], url=database_url, tmp_path=tmp_path) as e:
        made = await e.create(kind, ONE)
        await e.work_until_idle()
        await e.restart()
        while not (done := await e.operations.get(made.id)).is_settled:
            await e.skip_wait(done)
            await e.work_until_idle()
        assert [line.attempt for line in await history_of(e.penstock.db, made.id)] == [1]


@pytest.mark.parametrize("after", [0, 0.001, timedelta(0)])
async def test_a_row_that_asks_to_run_again_at_once_is_put_off_for_a_moment(
    database_url: str, tmp_path: Path, after: float | timedelta
):
    @operation("hasty")
    class Hasty(Pipeline[Item]):
        @step
        async def call(self, row: Item, ctx: Context) -> None:
            if ctx.attempt == 1:
                raise RetryLater("busy", after=after)

    async with engine([Hasty], url=database_url, tmp_path=tmp_path) as e:
        made = await e.create(Hasty, ONE)
        await e.work_until_idle()
        [record] = await records_of(e.penstock.db, made.id)
        assert (record.attempt, record.due_at) == (1, e.clock.now_us() + 100_000)


@pytest.mark.parametrize(
    "after, shown",
    [(-1, "-1"), (float("nan"), "nan"), (float("inf"), "inf"), (timedelta(seconds=-3), "-3")],
)
def test_retry_later_refuses_a_time_that_is_none(after: float | timedelta, shown: str):
    wrong = f"RetryLater(after={shown}) cannot work: it needs a finite number of seconds, 0 or more"
    with pytest.raises(ValueError, match=f"^{re.escape(wrong)}$"):
        RetryLater("busy", after=after)


@pytest.mark.parametrize("error, attempts", [(StepFailed("no"), 1), (KeyError("x"), 1), (ConnectionError("x"), 3)])
async def test_only_what_retry_on_names_is_retried_and_never_a_step_failed(
    database_url: str, tmp_path: Path, error: Exception, attempts: int
):
    @operation("choosy")
    class Choosy(Pipeline[Item]):
        @step(retries=2, backoff=1, retry_on=(OSError, StepFailed))
        async def call(self, row: Item, ctx: Context) -> None:
            raise error

    async with engine([Choosy], url=database_url, tmp_path=tmp_path) as e:
        done = await e.run(Choosy, ONE)
        assert await attempts_of(e, done.id) == [[attempts]]
    assert done.failed_rows == 1


@pytest.mark.covers("SM-030")
async def test_a_timeout_is_a_failed_attempt_and_the_last_one_ends_timed_out(database_url: str, tmp_path: Path):
    @operation("slow")
    class Slow(Pipeline[Item]):
        @step(timeout=0.02, retries=1, backoff=1)
        async def call(self, row: Item, ctx: Context) -> None:
            await asyncio.Event().wait()

    async with engine([Slow], url=database_url, tmp_path=tmp_path) as e:
        done = await e.run(Slow, ONE)
        [row] = await rows_of(e.penstock.db, done.id)
        [record] = await records_of(e.penstock.db, done.id)
    assert (done.status, done.failed_rows, done.timed_out_rows) == ("CompletedWithErrors", 1, 1)
    assert (row.verdict, row.attempts) == ("TimedOut", [2])
    assert (record.error_type, record.message) == ("Timeout", "no answer within 0.02 s")


async def test_a_sync_step_can_time_out_too(database_url: str, tmp_path: Path):
    release = threading.Event()

    @operation("stuck")
    class Stuck(Pipeline[Item]):
        @step(timeout=0.02)
        def call(self, row: Item, ctx: Context) -> None:
            release.wait(HANG_S)

    async with engine([Stuck], url=database_url, tmp_path=tmp_path) as e:
        done = await e.run(Stuck, [{"id": 1}, {"id": 2}])
        release.set()
    assert (done.timed_out_rows, done.successful_rows) == (2, 0)


async def test_a_timeout_error_of_the_steps_own_is_an_ordinary_error(database_url: str, tmp_path: Path):
    @operation("own")
    class Own(Pipeline[Item]):
        @step(timeout=30)
        async def call(self, row: Item, ctx: Context) -> None:
            raise TimeoutError("the other side")

    async with engine([Own], url=database_url, tmp_path=tmp_path) as e:
        done = await e.run(Own, ONE)
        [record] = await records_of(e.penstock.db, done.id)
    assert (done.timed_out_rows, record.state, record.error_type) == (0, "Failed", "StepFailure")
    assert record.message == "TimeoutError: the other side"
