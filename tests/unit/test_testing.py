"""What users need to test their own pipelines, used as they would use it."""

from __future__ import annotations

import logging

import pytest
from pydantic import BaseModel

from penstock import BatchContext, Context, Pipeline, operation, step, testing
from penstock.errors import MetadataInvalid


class Order(BaseModel):
    id: int


class Carrier(BaseModel):
    name: str = "acme"


class Booking(BaseModel):
    number: str


@operation("orders", row_key="id")
class Orders(Pipeline[Order, Carrier]):
    @step
    async def book(self, row: Order, ctx: Context[Carrier]) -> Booking:
        return Booking(number=f"{ctx.meta.name}-{row.id}-{ctx.attempt}")

    @step.batch(size=10)
    def send(self, rows: list[Order], ctx: BatchContext[Carrier]) -> list[str]:
        return [f"{c.output_of(Orders.book).number} for row {c.row_number}" for c in ctx.rows]


async def test_a_step_is_tested_by_calling_it_with_a_context():
    ctx = testing.context(Orders, metadata={"name": "best"}, attempt=2)
    assert await Orders().book(Order(id=7), ctx) == Booking(number="best-7-2")
    assert (ctx.operation_name, ctx.step_name, ctx.row_number) == ("orders", "book", 1)
    assert ctx.effect_key == f"{testing.OPERATION_ID}:1:book"


def test_a_batch_step_is_tested_with_a_batch_context():
    ctx = testing.batch_context(Orders, "send", size=2, outputs={"book": Booking(number="B")}, row_number=5)
    assert Orders().send([Order(id=1), Order(id=2)], ctx) == ["B for row 5", "B for row 6"]


def test_a_context_takes_what_the_engine_would_give():
    ctx = testing.context(
        Orders,
        Orders.send,
        row_key="7",
        generation=3,
        signal_key="k",
        public_url="https://example.org",
        is_cancelled=True,
        outputs={"book": Booking(number="B")},
    )
    assert (ctx.row_key, ctx.generation, ctx.step_name, ctx.cancelled) == ("7", 3, "send", True)
    assert (ctx.signal_url or "").startswith("https://example.org/api/signals/")
    assert ctx.outputs["book"] == Booking(number="B")
    ctx.heartbeat()


def test_a_context_logs_where_it_is(caplog: pytest.LogCaptureFixture):
    with caplog.at_level(logging.INFO):
        testing.context(Orders, row_number=4).logger.info("here")
    [line] = caplog.records
    assert (line.row_number, line.step_name, line.attempt) == (4, "book", 1)  # type: ignore[attr-defined]


def test_what_does_not_fit_the_operation_is_refused():
    with pytest.raises(ValueError, match="has no step 'ship'; it has: book, send"):
        testing.context(Orders, "ship")
    with pytest.raises(MetadataInvalid):
        testing.context(Orders, metadata={"name": ["no"]})
    with pytest.raises(ValueError, match="at least one row"):
        testing.batch_context(Orders, "send", size=0)


async def test_an_engine_runs_whole_operations_in_a_folder_that_goes_with_it():
    async with testing.engine([Orders]) as engine:
        done = await engine.run(Orders, [{"id": 1}, {"id": "x"}], metadata=Carrier())
        assert (done.status, done.successful_rows, done.invalid_rows) == ("CompletedWithErrors", 1, 1)
        row = await engine.operations.row(done.id, 1)
    assert [s.output for s in row.steps if s.index >= 0] == [{"number": "acme-1-1"}, "acme-1-1 for row 1"]


async def test_an_engine_that_cannot_go_on_says_so():
    @operation("elsewhere")
    async def elsewhere(row: Order, ctx: Context) -> None: ...

    async with testing.engine([elsewhere]) as engine:
        made = await engine.create(elsewhere, b'{"id": 1}\n', file_name="a.jsonl")
        with pytest.raises(AssertionError, match="is Pending, and this engine cannot go on"):
            await engine.skip_wait(made)
