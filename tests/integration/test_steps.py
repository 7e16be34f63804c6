"""Steps: in order, typed outputs between them, conditions, threads, and whatever a step may raise."""

from __future__ import annotations

import asyncio
import threading
from contextlib import suppress
from datetime import date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from patience import HANG_S
from pydantic import BaseModel
from stored import records_of, rows_of

from penstock import BatchContext, Context, Done, Pipeline, StepFailed, operation, step
from penstock.clock import from_micros
from penstock.pipeline import StepObject
from penstock.pipeline.backoff import DURATION_MAX
from penstock.settings import Settings
from penstock.testing import engine

SMALL = Settings(chunk_rows=3, flush_rows=2)


class Item(BaseModel):
    id: int


class Invoice(BaseModel):
    number: str
    due: date
    total: Decimal


def items(count: int) -> list[dict[str, int]]:
    return [{"id": n} for n in range(1, count + 1)]


@pytest.mark.covers("SM-024", "SM-054", "SM-015", "I-05")
async def test_steps_run_in_order_and_see_the_typed_outputs_of_earlier_ones(database_url: str, tmp_path: Path):
    seen: list[Invoice] = []

    @operation("invoices")
    class Invoices(Pipeline[Item]):
        @step
        async def book(self, row: Item, ctx: Context) -> Invoice:
            return Invoice(number=f"I-{row.id}", due=date(2031, 1, row.id), total=Decimal("1.10"))

        @step
        def note(self, row: Item, ctx: Context) -> None:
            seen.append(ctx.output_of(Invoices.book))

        @step(barrier=True)
        async def send(self, row: Item, ctx: Context) -> int:
            return len(ctx.outputs["book"].number) + ("note" in ctx.outputs)

    async with engine([Invoices], url=database_url, tmp_path=tmp_path, settings=SMALL) as e:
        done = await e.run(Invoices, items(4))
        stored = await rows_of(e.penstock.db, done.id)
    assert done.status == "Completed"
    assert sorted(seen, key=lambda i: i.number) == [
        Invoice(number=f"I-{n}", due=date(2031, 1, n), total=Decimal("1.10")) for n in range(1, 5)
    ]
    assert stored[0].outputs == [{"number": "I-1", "due": "2031-01-01", "total": "1.10"}, None, 3]
    assert all(row.states == ["Completed"] * 3 and row.attempts == [1, 1, 1] for row in stored)


async def test_a_mixed_pipeline_takes_every_row_through_every_manner(database_url: str, tmp_path: Path):
    ran: list[tuple[str, int]] = []

    @operation("mixed")
    class Mixed(Pipeline[Item]):
        @step
        async def one(self, row: Item, ctx: Context) -> int:
            ran.append(("one", row.id))
            return row.id

        @step
        def two(self, row: Item, ctx: Context) -> int:
            ran.append(("two", row.id))
            return ctx.output_of(Mixed.one) * 10

        @step
        async def three(self, row: Item, ctx: Context) -> int:
            ran.append(("three", row.id))
            return ctx.output_of(Mixed.two) * 10

        @step.batch(size=2)
        def four(self, rows: list[Item], ctx: BatchContext) -> list[int]:
            ran.extend(("four", row.id) for row in rows)
            return [row.output_of(Mixed.three) * 10 for row in ctx.rows]

        @step(delivery="at_most_once")
        def five(self, row: Item, ctx: Context) -> int:
            ran.append(("five", row.id))
            return ctx.output_of(Mixed.four) * 10

    async with engine([Mixed], url=database_url, tmp_path=tmp_path, settings=SMALL) as e:
        done = await e.run(Mixed, items(7))
        stored = await rows_of(e.penstock.db, done.id)
    assert done.successful_rows == 7
    assert [row.outputs for row in stored] == [[n * 10**k for k in range(5)] for n in range(1, 8)]
    for n in range(1, 8):
        assert [name for name, row in ran if row == n] == ["one", "two", "three", "four", "five"]


@pytest.mark.covers("SM-064", "SM-028")
async def test_a_failed_step_fails_the_row_and_the_rest_of_its_steps_do_not_run(database_url: str, tmp_path: Path):
    ran: list[int] = []

    @operation("chain")
    class Chain(Pipeline[Item]):
        @step
        async def check(self, row: Item, ctx: Context) -> None:
            if row.id == 2:
                raise StepFailed("no such customer")

        @step
        async def book(self, row: Item, ctx: Context) -> None:
            ran.append(row.id)

    async with engine([Chain], url=database_url, tmp_path=tmp_path) as e:
        done = await e.run(Chain, items(3))
        stored = await rows_of(e.penstock.db, done.id)
        [record] = await records_of(e.penstock.db, done.id)
    assert (done.status, done.successful_rows, done.failed_rows, done.invalid_rows) == ("CompletedWithErrors", 2, 1, 0)
    assert stored[1].states == ["Failed"]
    assert (record.step, record.error_type, record.message) == (0, "StepFailure", "no such customer")
    assert ran == [1, 3]


@pytest.mark.parametrize("is_async", [True, False], ids=["async", "sync"])
@pytest.mark.parametrize("body_is_async", [True, False], ids=["async-step", "sync-step"])
async def test_a_false_condition_skips_the_step_and_the_row_goes_on(
    database_url: str, tmp_path: Path, is_async: bool, body_is_async: bool
):
    ran: list[int] = []

    def body(self: Any, row: Item, ctx: Context) -> None:
        ran.append(row.id)

    async def async_body(self: Any, row: Item, ctx: Context) -> None:
        ran.append(row.id)

    def is_odd(self: Any, row: Item, ctx: Context) -> bool:
        return row.id % 2 == 1

    async def async_is_odd(self: Any, row: Item, ctx: Context) -> bool:
        return row.id % 2 == 1

    @operation("some")
    class Some(Pipeline[Item]):
        gift = step(async_body if body_is_async else body)
        wanted = gift.when(async_is_odd if is_async else is_odd)

        @step
        async def last(self, row: Item, ctx: Context) -> None: ...

    async with engine([Some], url=database_url, tmp_path=tmp_path) as e:
        done = await e.run(Some, items(4))
        stored = await rows_of(e.penstock.db, done.id)
    assert (done.status, done.successful_rows) == ("Completed", 4)
    assert sorted(ran) == [1, 3]  # rows have no order on threads
    assert [row.states[0] for row in stored] == ["Completed", "Skipped"] * 2
    assert {row.states[1] for row in stored} == {"Completed"}


@pytest.mark.covers("SM-097")
async def test_a_row_whose_last_step_was_skipped_is_a_success(database_url: str, tmp_path: Path):
    @operation("skip")
    class Skip(Pipeline[Item]):
        @step
        async def only(self, row: Item, ctx: Context) -> None: ...

        @only.when
        def never(self, row: Item, ctx: Context) -> bool:
            return False

    async with engine([Skip], url=database_url, tmp_path=tmp_path) as e:
        done = await e.run(Skip, items(2))
    assert (done.status, done.successful_rows) == ("Completed", 2)


async def test_a_condition_that_raises_is_an_error_of_the_step(database_url: str, tmp_path: Path):
    @operation("ask")
    class Ask(Pipeline[Item]):
        @step
        async def only(self, row: Item, ctx: Context) -> None: ...

        @only.when
        def broken(self, row: Item, ctx: Context) -> bool:
            raise LookupError("who knows")

    async with engine([Ask], url=database_url, tmp_path=tmp_path) as e:
        done = await e.run(Ask, items(1))
        [record] = await records_of(e.penstock.db, done.id)
    assert (done.failed_rows, record.message) == (1, "LookupError: who knows")


class Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError("cannot say")


@pytest.mark.parametrize("manner", ["await", "thread", "batch"])
@pytest.mark.parametrize(
    "error",
    [SystemExit, KeyboardInterrupt, asyncio.CancelledError, GeneratorExit, MemoryError, Mute],
    ids=lambda error: error.__name__,
)
async def test_whatever_a_step_raises_is_its_rows_alone(
    database_url: str, tmp_path: Path, error: type[BaseException], manner: str
):
    async def awaited(self: Any, row: Item, ctx: Context) -> None:
        if row.id == 2:
            raise error("out")

    def threaded(self: Any, row: Item, ctx: Context) -> None:
        if row.id == 2:
            raise error("out")

    async def batched(self: Any, rows: list[Item], ctx: BatchContext) -> None:
        if any(row.id == 2 for row in rows):
            raise error("out")

    @operation("wild")
    class Wild(Pipeline[Item]):
        only = {"await": step(awaited), "thread": step(threaded), "batch": step.batch(size=1)(batched)}[manner]

    async with engine([Wild], url=database_url, tmp_path=tmp_path) as e:
        async with asyncio.timeout(HANG_S):
            done = await e.run(Wild, items(3))
        [record] = await records_of(e.penstock.db, done.id)
    assert (done.status, done.successful_rows, done.failed_rows) == ("CompletedWithErrors", 2, 1)
    assert (record.row, record.error_type) == (2, "StepFailure")
    assert error.__name__ in record.message


@pytest.mark.parametrize("manner", ["await", "check", "batch", "validator"])
async def test_a_step_that_cancels_the_task_it_runs_in_fails_its_row_alone(
    database_url: str, tmp_path: Path, manner: str
):
    async def cancel_own_task(row: Item) -> None:
        if row.id == 2:
            task = asyncio.current_task()
            assert task is not None
            task.cancel()
            await asyncio.sleep(0)

    @operation("wild")
    class Wild(Pipeline[Item]):
        async def validate_row(self, row: Item, meta: None, /) -> None:
            if manner == "validator":
                await cancel_own_task(row)

        @step
        async def first(self, row: Item, ctx: Context) -> None:
            if manner == "await":
                await cancel_own_task(row)

        @step.batch(size=1)
        async def second(self, rows: list[Item], ctx: BatchContext) -> None:
            if manner == "batch":
                await cancel_own_task(rows[0])

        @step.poll(every=1, timeout=10)
        async def third(self, row: Item, ctx: Context) -> None: ...

        @third.check
        async def is_there(self, row: Item, ctx: Context) -> bool:
            if manner == "check":
                await cancel_own_task(row)
            return True

    async with engine([Wild], url=database_url, tmp_path=tmp_path) as e:
        async with asyncio.timeout(HANG_S):
            done = await e.run(Wild, items(3))
        [record] = [record for record in await records_of(e.penstock.db, done.id) if record.row == 2]
    assert (done.status, done.successful_rows) == ("CompletedWithErrors", 2)
    # A check that raises is asked again, until the wait is over.
    assert ("nobody answered" if manner == "check" else "raise an exception instead") in record.message


async def test_a_step_may_cancel_what_it_has_started_itself(database_url: str, tmp_path: Path):
    async def fail() -> None:
        raise LookupError("no")

    @operation("careful")
    class Careful(Pipeline[Item]):
        @step
        async def only(self, row: Item, ctx: Context) -> str:
            other = asyncio.create_task(asyncio.sleep(HANG_S))
            other.cancel()
            with suppress(TimeoutError):
                async with asyncio.timeout(0):
                    await asyncio.sleep(HANG_S)
            with suppress(ExceptionGroup):
                async with asyncio.TaskGroup() as group:
                    group.create_task(fail())
                    await asyncio.sleep(HANG_S)
            with suppress(TimeoutError):
                await asyncio.wait_for(asyncio.sleep(HANG_S), 0)
            return "through"

    async with engine([Careful], url=database_url, tmp_path=tmp_path) as e:
        done = await e.run(Careful, items(3))
    assert (done.status, done.successful_rows) == ("Completed", 3)


@pytest.mark.parametrize("value", [object(), "x" * 70_000], ids=["unwritable", "too large"])
async def test_an_output_that_cannot_be_stored_fails_the_row(database_url: str, tmp_path: Path, value: object):
    @operation("heavy")
    class Heavy(Pipeline[Item]):
        @step
        async def only(self, row: Item, ctx: Context) -> Any:
            return value if row.id == 1 else "fine"

    async with engine([Heavy], url=database_url, tmp_path=tmp_path) as e:
        done = await e.run(Heavy, items(2))
        stored = await rows_of(e.penstock.db, done.id)
    assert [row.verdict for row in stored] == ["Failed", "Completed"]


async def test_sync_steps_run_on_threads_and_leave_the_loop_free(database_url: str, tmp_path: Path):
    threads: set[threading.Thread] = set()

    @operation("sync")
    class Sync(Pipeline[Item]):
        @step
        def only(self, row: Item, ctx: Context) -> None:
            threads.add(threading.current_thread())

    async with engine([Sync], url=database_url, tmp_path=tmp_path) as e:
        done = await e.run(Sync, items(5))
    assert done.successful_rows == 5
    assert threading.main_thread() not in threads


@pytest.mark.parametrize("is_skipped", [False, True], ids=["after one that ran", "after one that was skipped"])
async def test_a_step_without_a_timeout_has_no_deadline_whatever_came_before(
    database_url: str, tmp_path: Path, is_skipped: bool
):
    deadlines: list[tuple[str, datetime | None]] = []

    @operation("deadlines")
    class Deadlines(Pipeline[Item]):
        @step(timeout=60)
        async def timed(self, row: Item, ctx: Context) -> None:
            deadlines.append((ctx.step_name, ctx.deadline))

        @timed.when
        async def is_wanted(self, row: Item, ctx: Context) -> bool:
            return not is_skipped

        @step
        async def bare(self, row: Item, ctx: Context) -> None:
            deadlines.append((ctx.step_name, ctx.deadline))

        @step
        async def asked(self, row: Item, ctx: Context) -> None:
            deadlines.append((ctx.step_name, ctx.deadline))

        @asked.when
        async def is_asked(self, row: Item, ctx: Context) -> bool:
            return True

    async with engine([Deadlines], url=database_url, tmp_path=tmp_path) as e:
        until = from_micros(e.clock.now_us()) + timedelta(seconds=60)
        await e.run(Deadlines, items(1))
    ran = [] if is_skipped else [("timed", until)]
    assert deadlines == [*ran, ("bare", None), ("asked", None)]


async def test_a_wait_of_a_thousand_years_can_be_stored_and_shown(database_url: str, tmp_path: Path):
    @operation("patient")
    class Patient(Pipeline[Item]):
        @step.signal(key="k", timeout=DURATION_MAX)
        async def only(self, row: Item, ctx: Context) -> None:
            assert ctx.deadline is not None

    async with engine([Patient], url=database_url, tmp_path=tmp_path) as e:
        made = await e.create(Patient, items(1))
        await e.work_until_idle()
        (wait,) = (await e.operations.rows(made.id)).items
    assert wait.state == "WaitingForCompletion"


@pytest.mark.parametrize("kind", ["plain", "thread", "poll", "batch"])
async def test_a_deadline_counts_from_the_begin_of_the_call_not_of_its_wait_for_a_limit(
    database_url: str, tmp_path: Path, kind: str
):
    left: list[float] = []

    def call(ctx: Context) -> None:
        assert ctx.deadline is not None
        left.append((ctx.deadline - from_micros(e.clock.now_us())).total_seconds())
        e.clock.advance(1)

    async def awaited(self: Any, row: Item, ctx: Context) -> Any:
        for _ in range(20):  # the others come to the limit
            await asyncio.sleep(0)
        call(ctx)
        return Done()

    def threaded(self: Any, row: Item, ctx: Context) -> None:
        call(ctx)

    async def together(self: Any, rows: list[Item], ctx: BatchContext) -> None:
        for _ in range(20):
            await asyncio.sleep(0)
        call(ctx.rows[0])

    async def is_done(self: Any, row: Item, ctx: Context) -> bool:
        return True

    polled = step.poll(every=1, timeout=60, concurrency=1)(awaited)
    polled.check(is_done)

    @operation("deadlines")
    class Deadlines(Pipeline[Item]):
        only: Any = {
            "plain": step(timeout=60, concurrency=1)(awaited),
            "thread": step(timeout=60, concurrency=1)(threaded),
            "poll": polled,
            "batch": step.batch(size=1, timeout=60, concurrency=1)(together),
        }[kind]

    settings = Settings(lease_s=3600)  # time moves while rows run
    async with engine([Deadlines], url=database_url, tmp_path=tmp_path, settings=settings) as e:
        await e.run(Deadlines, items(3))
    assert left == [60, 60, 60]


@pytest.mark.covers("SM-015")
async def test_a_plain_function_is_an_operation_of_one_step(database_url: str, tmp_path: Path):
    @operation("greet")
    async def greet(row: Item, ctx: Context) -> str:
        return f"{ctx.step_name} {row.id} of {ctx.operation_name}"

    @operation("greet-sync")
    def greet_sync(row: Item, ctx: Context) -> int:
        return row.id

    async with engine([greet, greet_sync], url=database_url, tmp_path=tmp_path) as e:
        one, two = await e.run(greet, items(2)), await e.run("greet-sync", items(2))
        outputs = [row.outputs for op in (one, two) for row in await rows_of(e.penstock.db, op.id)]
    assert (one.steps, two.status) == (("greet",), "Completed")
    assert outputs == [["greet 1 of greet"], ["greet 2 of greet"], [1], [2]]


async def test_a_step_object_takes_its_place_among_the_steps(database_url: str, tmp_path: Path):
    class Multiply(StepObject[int]):
        def __init__(self, by: int) -> None:
            self.by = by

        async def run(self, row: Item, ctx: Context) -> int:
            return row.id * self.by

    @operation("math")
    class Math(Pipeline[Item]):
        double = Multiply(2)

        @step
        async def note(self, row: Item, ctx: Context) -> int:
            return ctx.output_of(Math.double) + 1

        triple = Multiply(3)

    async with engine([Math], url=database_url, tmp_path=tmp_path) as e:
        done = await e.run(Math, items(2))
        stored = await rows_of(e.penstock.db, done.id)
    assert done.steps == ("double", "note", "triple")
    assert [row.outputs for row in stored] == [[2, 3, 3], [4, 5, 6]]


@pytest.mark.covers("I-09")
async def test_the_effect_key_is_the_same_in_every_attempt_and_differs_by_row_and_step(
    database_url: str, tmp_path: Path
):
    keys: dict[tuple[int, str], list[str]] = {}

    @operation("effects")
    class Effects(Pipeline[Item]):
        @step(retries=2, backoff=1)
        async def pay(self, row: Item, ctx: Context) -> None:
            keys.setdefault((row.id, "pay"), []).append(ctx.effect_key)
            if ctx.attempt < 3:
                raise OSError("again")

        @step
        def tell(self, row: Item, ctx: Context) -> None:
            keys.setdefault((row.id, "tell"), []).append(ctx.effect_key)

    async with engine([Effects], url=database_url, tmp_path=tmp_path) as e:
        done = await e.run(Effects, items(2))
    assert keys == {
        (n, name): [f"{done.id}:{n}:{name}"] * times for n in (1, 2) for name, times in (("pay", 3), ("tell", 1))
    }
