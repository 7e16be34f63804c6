"""A step that may run at most once, and of which nobody knows what became: it is in doubt, whatever cut it off."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from approvals import clean, states
from patience import HANG_S
from pydantic import BaseModel, Field
from stored import records_of

from penstock import BatchContext, Context, Pipeline, StepFailed, operation, step
from penstock.operations.model import Operation
from penstock.operations.retrying import NothingToRetry
from penstock.settings import Settings
from penstock.testing import Engine, engine

DONE, FAILED = "Completed", "Failed"
DOUBT = "so it may or may not have taken effect"
IN_DOUBT = "it is in doubt; name it and confirm that it may run twice"


class Item(BaseModel):
    id: int


def items(count: int) -> list[dict[str, int]]:
    return [{"id": n} for n in range(1, count + 1)]


class Once:
    """A step that may run at most once, in one of three manners; row 2 meets its fate in the first generation."""

    def __init__(self, manner: str, *, hang: bool = False, error: type[BaseException] | None = None) -> None:
        self.calls: list[int] = []
        self.over = threading.Event()
        once = self

        def meets(row: int, ctx: Context) -> bool:
            once.calls.append(row)
            return row == 2 and ctx.generation == 0

        async def awaited(self: Any, row: Item, ctx: Context) -> None:
            if meets(row.id, ctx):
                if hang:
                    await asyncio.Event().wait()
                if error is not None:
                    raise error("out")

        def threaded(self: Any, row: Item, ctx: Context) -> None:
            if meets(row.id, ctx):
                if hang:
                    once.over.wait(HANG_S)
                if error is not None:
                    raise error("out")

        async def batched(self: Any, rows: list[Item], ctx: BatchContext) -> None:
            for row, its in zip(rows, ctx.rows, strict=True):
                await awaited(self, row, its)

        options: dict[str, Any] = {"delivery": "at_most_once", "timeout": 0.5 if hang else None}
        made: dict[str, Callable[[], Any]] = {
            "await": lambda: step(**options)(awaited),
            "thread": lambda: step(**options)(threaded),
            "batch": lambda: step.batch(size=1, **options)(batched),
        }

        @operation("once")
        class Kind(Pipeline[Item]):
            pay = made[manner]()

        self.kind = Kind


manners = pytest.mark.parametrize("manner", ["await", "thread", "batch"])


async def runs_again_only_when_confirmed(e: Engine, made: Operation, row: int) -> None:
    """A retry of all leaves the row out and says why; named and confirmed, it runs again."""
    assert (await e.operations.can_retry(made.id)).reasons == (
        f"no failed row can be run again, 1 cannot be: {IN_DOUBT}",
    )
    for given in ({}, {"rows": [row]}, {"confirm_doubt": True}):
        with pytest.raises(NothingToRetry) as caught:
            await e.operations.retry(made.id, **given)
        assert caught.value.retry.reasons == {row: IN_DOUBT}
    assert (await e.operations.retry(made.id, rows=[row], confirm_doubt=True)).submitted == 1
    await e.work_until_idle()


@manners
async def test_a_call_that_timed_out_is_in_doubt(database_url: str, tmp_path: Path, manner: str):
    once = Once(manner, hang=True)
    async with engine([once.kind], url=database_url, tmp_path=tmp_path) as e:
        done = await e.run(once.kind, items(3))
        once.over.set()
        (error,) = (await e.operations.errors(done.id)).items
        assert (done.failed_rows, done.timed_out_rows) == (1, 0)
        assert (error.row, error.state, error.error_type) == (2, FAILED, "InDoubt")
        assert error.message == f"no answer within 0.5 s, {DOUBT}"
        await runs_again_only_when_confirmed(e, done, 2)
        assert await states(e, done) == [DONE] * 3
        assert await clean(e) == []
    assert sorted(once.calls) == [1, 2, 2, 3]


@manners
@pytest.mark.parametrize("error", [asyncio.CancelledError, KeyboardInterrupt, GeneratorExit], ids=lambda e: e.__name__)
async def test_a_call_that_was_cut_off_by_something_else_is_in_doubt(
    database_url: str, tmp_path: Path, manner: str, error: type[BaseException]
):
    once = Once(manner, error=error)
    async with engine([once.kind], url=database_url, tmp_path=tmp_path) as e:
        done = await e.run(once.kind, items(3))
        (found,) = (await e.operations.errors(done.id)).items
        assert (found.row, found.error_type) == (2, "InDoubt")
        assert found.message == f"the call was cut off ({error.__name__}: out), {DOUBT}"
        await runs_again_only_when_confirmed(e, done, 2)
        assert await states(e, done) == [DONE] * 3


@manners
@pytest.mark.parametrize("error", [OSError, TimeoutError, StepFailed, SystemExit], ids=lambda e: e.__name__)
async def test_a_call_that_raised_by_itself_has_failed_and_is_retried_with_the_others(
    database_url: str, tmp_path: Path, manner: str, error: type[BaseException]
):
    once = Once(manner, error=error)
    async with engine([once.kind], url=database_url, tmp_path=tmp_path) as e:
        done = await e.run(once.kind, items(3))
        (found,) = (await e.operations.errors(done.id)).items
        assert (found.row, found.error_type) == (2, "StepFailure")
        assert (await e.operations.retry(done.id)).submitted == 1
        await e.work_until_idle()
        assert await states(e, done) == [DONE] * 3


async def test_a_batch_that_timed_out_leaves_all_its_rows_in_doubt(database_url: str, tmp_path: Path):
    calls: list[list[int]] = []

    @operation("together")
    class Together(Pipeline[Item]):
        @step.batch(size=2, delivery="at_most_once", timeout=0.02)
        async def pay(self, rows: list[Item], ctx: BatchContext) -> None:
            calls.append([row.id for row in rows])
            if rows[0].id == 1:
                await asyncio.Event().wait()

    async with engine([Together], url=database_url, tmp_path=tmp_path) as e:
        done = await e.run(Together, items(4))
        assert [(r.row, r.error_type) for r in await records_of(e.penstock.db, done.id)] == [
            (1, "InDoubt"),
            (2, "InDoubt"),
        ]
        assert await states(e, done) == [FAILED, FAILED, DONE, DONE]
    assert calls == [[1, 2], [3, 4]]


async def test_an_answer_of_a_batch_that_was_cut_off_leaves_its_row_in_doubt(database_url: str, tmp_path: Path):
    """As `asyncio.gather(…, return_exceptions=True)` gives it."""

    @operation("gathered")
    class Gathered(Pipeline[Item]):
        @step.batch(delivery="at_most_once")
        async def pay(self, rows: list[Item], ctx: BatchContext) -> list[BaseException | None]:
            answers: dict[int, BaseException] = {1: OSError("no"), 2: asyncio.CancelledError()}
            return [answers.get(row.id) for row in rows]

    async with engine([Gathered], url=database_url, tmp_path=tmp_path) as e:
        done = await e.run(Gathered, items(3))
        found = [(r.row, r.error_type) for r in await records_of(e.penstock.db, done.id)]
    assert found == [(1, "StepFailure"), (2, "InDoubt")]


async def test_a_batch_that_does_not_say_what_became_of_its_rows_leaves_them_in_doubt(
    database_url: str, tmp_path: Path
):
    @operation("short")
    class Short(Pipeline[Item]):
        @step.batch(delivery="at_most_once")
        async def pay(self, rows: list[Item], ctx: BatchContext) -> list[int]:
            return [1]

    async with engine([Short], url=database_url, tmp_path=tmp_path) as e:
        done = await e.run(Short, items(2))
        records = await records_of(e.penstock.db, done.id)
    assert {(r.error_type, r.message) for r in records} == {
        ("InDoubt", f"the batch step returned 1 answers for 2 rows, {DOUBT}")
    }


@manners
async def test_a_call_whose_output_cannot_be_stored_is_not_repeated_with_the_others(
    database_url: str, tmp_path: Path, manner: str
):
    """It has come to its end: to take it for a failure would repeat its effect."""

    async def awaited(self: Any, row: Item, ctx: Context) -> Any:
        return "x" * 200

    def threaded(self: Any, row: Item, ctx: Context) -> Any:
        return "x" * 200

    async def batched(self: Any, rows: list[Item], ctx: BatchContext) -> list[Any]:
        return ["x" * 200 for _ in rows]

    @operation("heavy")
    class Heavy(Pipeline[Item]):
        pay = {
            "await": step(delivery="at_most_once")(awaited),
            "thread": step(delivery="at_most_once")(threaded),
            "batch": step.batch(delivery="at_most_once")(batched),
        }[manner]

    async with engine([Heavy], url=database_url, tmp_path=tmp_path, settings=Settings(output_bytes_max=100)) as e:
        done = await e.run(Heavy, items(1))
        (error,) = (await e.operations.errors(done.id)).items
        assert error.error_type == "InDoubt"
        assert error.message == f"ValueError: the output has 202 bytes; at most 100 can be stored, {DOUBT}"
        with pytest.raises(NothingToRetry):
            await e.operations.retry(done.id)


class Payment(BaseModel):
    reference: str = Field(alias="Payment Reference")


# Whoever drains an operation needs none of its code, nor its file; so untracked rows are not known to it.
@pytest.mark.parametrize(
    "how, tracked",
    [
        *((how, tracked) for how in ("killed", "shut down", "cancelled") for tracked in (True, False)),
        ("killed and cancelled", True),
    ],
)
async def test_a_row_whose_call_was_cut_off_keeps_its_key(database_url: str, tmp_path: Path, how: str, tracked: bool):
    paying = asyncio.Event()

    @operation("pay", row_key="reference", track_row_data=tracked)
    class Pay(Pipeline[Payment]):
        @step(delivery="at_most_once")
        async def pay(self, row: Payment, ctx: Context) -> None:
            paying.set()
            await asyncio.Event().wait()

    settings = Settings(shutdown_s=0, cancel_grace_s=0)
    async with engine([Pay], url=database_url, tmp_path=tmp_path, settings=settings) as e:
        made = await e.create(Pay, b"Payment Reference\nA-1\n", file_name="payments.csv")
        at_work = asyncio.create_task(e.work_until_idle())
        async with asyncio.timeout(HANG_S):
            await paying.wait()
        if how == "cancelled":
            await e.operations.cancel(made.id)
            await e.worker.look_round()
            await at_work
        else:
            at_work.cancel()
            await (e.restart() if how == "shut down" else e.crash())
        if how == "killed and cancelled":
            await e.operations.cancel(made.id)
        await e.work_until_idle()
        (error,) = (await e.operations.errors(made.id)).items
        assert error.error_type == "InDoubt"
        assert error.row_key == "A-1"
        assert [found.row for found in (await e.operations.errors(made.id, row_key="A-1")).items] == [1]
        assert [row.number for row in (await e.operations.rows(made.id, row_key="A-1")).items] == [1]
        assert await clean(e) == []
