"""Validating: every row is judged before any row runs, and an invalid row never runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import pytest
from pydantic import BaseModel, Field
from stored import count_of, records_of, rows_of

from penstock import Context, Pipeline, RowInvalid, operation, step
from penstock.errors import MetadataInvalid
from penstock.settings import Settings
from penstock.testing import engine

SMALL = Settings(chunk_rows=3)


class Order(BaseModel):
    id: int
    email: str = "a@b"
    amount: int = Field(1, ge=0)


class Budget(BaseModel):
    limit: int


class Recorder(Pipeline[Order]):
    """Remembers the rows that ran."""

    ran: ClassVar[list[int]]

    @step
    async def book(self, row: Order, ctx: Context) -> None:
        self.ran.append(row.id)


@pytest.mark.covers("SM-013", "SM-023", "SM-025", "SM-038", "SM-041", "SM-094")
async def test_every_fault_of_a_row_is_reported_by_field_and_the_row_never_runs(database_url: str, tmp_path: Path):
    @operation("orders", row_key="id")
    class Orders(Recorder):
        ran: ClassVar[list[int]] = []

    rows = [{"id": 1}, {"id": "x", "email": 5, "amount": -1}, {"id": 3}]
    async with engine([Orders], url=database_url, tmp_path=tmp_path) as e:
        done = await e.run(Orders, rows)
        [record] = await records_of(e.penstock.db, done.id)
        stored = await rows_of(e.penstock.db, done.id)
    assert (done.status, done.total_rows) == ("CompletedWithErrors", 3)
    assert (done.successful_rows, done.failed_rows, done.invalid_rows, done.processed_rows) == (2, 1, 1, 3)
    assert (record.row, record.step, record.state, record.error_type) == (2, -1, "Failed", "Validation")
    assert [field for field, _ in record.faults] == ["id", "email", "amount"]
    assert [row.verdict for row in stored] == ["Completed", "Invalid", "Completed"]
    assert stored[1].steps == ()
    assert Orders.ran == [1, 3]


@pytest.mark.covers("SM-040")
async def test_the_key_of_an_invalid_row_is_kept_where_it_can_be_read(database_url: str, tmp_path: Path):
    @operation("orders", row_key="email")
    class Orders(Recorder):
        ran: ClassVar[list[int]] = []

    async with engine([Orders], url=database_url, tmp_path=tmp_path) as e:
        done = await e.run(Orders, b"id,email\nx,ana@b\n7,bob@b\ny,\n", file_name="orders.csv")
        records = await records_of(e.penstock.db, done.id)
    assert [(r.row, r.row_key) for r in records] == [(1, "ana@b"), (3, None)]


@pytest.mark.covers("SM-051")
async def test_the_model_then_validators_in_order_then_validate_row(database_url: str, tmp_path: Path):
    asked: list[tuple[str, int]] = []

    def first(row: Order, meta: None) -> None:
        asked.append(("first", row.id))
        if row.id == 2:
            raise RowInvalid("no twos", field="id")

    async def second(row: Order, meta: None) -> None:
        asked.append(("second", row.id))
        if row.id == 3:
            raise ValueError("no threes")

    @operation("orders", validators=[first, second])
    class Orders(Recorder):
        ran: ClassVar[list[int]] = []

        async def validate_row(self, row: Order, meta: None) -> None:
            asked.append(("own", row.id))
            if row.id == 4:
                raise AssertionError("no fours")

    async with engine([Orders], url=database_url, tmp_path=tmp_path) as e:
        done = await e.run(Orders, [{"id": "x"}, {"id": 2}, {"id": 3}, {"id": 4}, {"id": 5}])
        records = await records_of(e.penstock.db, done.id)
    order = ["first", "second", "own"]
    assert [[name for name, row in asked if row == n] for n in (2, 3, 4, 5)] == [order[:1], order[:2], order, order]
    assert [[row for name, row in asked if name == n] for n in order] == [[2, 3, 4, 5], [3, 4, 5], [4, 5]]
    assert [r.error_type for r in records] == ["Validation"] * 4
    assert [r.message for r in records[1:]] == ["id: no twos", "no threes", "no fours"]
    assert Orders.ran == [5]


async def test_a_validator_may_report_several_faults(database_url: str, tmp_path: Path):
    @operation("orders")
    class Orders(Recorder):
        ran: ClassVar[list[int]] = []

        def validate_row(self, row: Order, meta: None) -> None:
            raise RowInvalid(faults={"id": "taken", "email": "unknown"})

    async with engine([Orders], url=database_url, tmp_path=tmp_path) as e:
        done = await e.run(Orders, [{"id": 1}])
        [record] = await records_of(e.penstock.db, done.id)
    assert record.faults == [["id", "taken"], ["email", "unknown"]]
    assert record.message == "id: taken; email: unknown"


VERDICTS = [RowInvalid("no"), ValueError("no"), UnicodeError("no"), AssertionError("no")]
TROUBLE = [ConnectionError("no"), KeyError("no"), TypeError("no"), RuntimeError("no")]


@pytest.mark.covers("SM-052")
@pytest.mark.parametrize(
    "error, kind",
    [*((error, "Validation") for error in VERDICTS), *((error, "Processing") for error in TROUBLE)],
    ids=lambda value: value if isinstance(value, str) else type(value).__name__,
)
async def test_only_a_validators_verdict_is_the_rows_fault_and_not_its_trouble(
    database_url: str, tmp_path: Path, error: Exception, kind: str
):
    @operation("orders")
    class Orders(Recorder):
        ran: ClassVar[list[int]] = []

        async def validate_row(self, row: Order, meta: None) -> None:
            if row.id == 2:
                raise error

    async with engine([Orders], url=database_url, tmp_path=tmp_path) as e:
        done = await e.run(Orders, [{"id": 1}, {"id": 2}])
        [record] = await records_of(e.penstock.db, done.id)
    assert (record.step, record.state, record.error_type) == (-1, "Failed", kind)
    assert record.message == "no" if kind == "Validation" else type(error).__name__ in record.message
    assert (done.failed_rows, done.invalid_rows) == (1, int(kind == "Validation"))
    assert Orders.ran == [1]


@pytest.mark.covers("I-11", "SM-004")
async def test_no_step_starts_before_the_last_row_is_judged(database_url: str, tmp_path: Path):
    seen: list[str] = []

    @operation("orders")
    class Orders(Pipeline[Order]):
        def validate_row(self, row: Order, meta: None) -> None:
            seen.append("validate")

        @step
        async def book(self, row: Order, ctx: Context) -> None:
            seen.append("book")

    async with engine([Orders], url=database_url, tmp_path=tmp_path, settings=SMALL) as e:
        await e.run(Orders, [{"id": n} for n in range(10)])
    assert seen == ["validate"] * 10 + ["book"] * 10


@pytest.mark.covers("SM-021")
async def test_a_file_of_invalid_rows_ends_with_errors_and_runs_nothing(database_url: str, tmp_path: Path):
    @operation("orders")
    class Orders(Recorder):
        ran: ClassVar[list[int]] = []

    async with engine([Orders], url=database_url, tmp_path=tmp_path, settings=SMALL) as e:
        done = await e.run(Orders, [{"id": "x"}] * 7)
    assert (done.status, done.total_rows, done.failed_rows, done.invalid_rows) == ("CompletedWithErrors", 7, 7, 7)
    assert Orders.ran == []


@pytest.mark.covers("SM-005", "SM-018")
@pytest.mark.parametrize("metadata", [None, {}, {"limit": "much"}, {"limit": -1}], ids=str)
async def test_bad_metadata_is_refused_and_nothing_is_stored(database_url: str, tmp_path: Path, metadata: Any):
    @operation("orders")
    class Orders(Pipeline[Order, Budget]):
        def validate_metadata(self, budget: Budget) -> None:
            if budget.limit < 0:
                raise ValueError("limit must not be negative")

        @step
        async def book(self, row: Order, ctx: Context[Budget]) -> None: ...

    async with engine([Orders], url=database_url, tmp_path=tmp_path) as e:
        with pytest.raises(MetadataInvalid, match="limit"):
            await e.create(Orders, [{"id": 1}], metadata=metadata)
        assert set((await count_of(e.penstock.db)).values()) == {0}
        assert await e.operations.events() == []
    assert not list((tmp_path / "files").glob("*"))


async def test_validators_and_steps_see_the_metadata_as_its_model(database_url: str, tmp_path: Path):
    seen: list[Budget] = []

    @operation("orders")
    class Orders(Pipeline[Order, Budget]):
        def validate_row(self, row: Order, budget: Budget) -> None:
            seen.append(budget)

        @step
        async def book(self, row: Order, ctx: Context[Budget]) -> None:
            seen.append(ctx.meta)

    async with engine([Orders], url=database_url, tmp_path=tmp_path) as e:
        done = await e.run(Orders, [{"id": 1}], metadata={"limit": 9})
    assert seen == [Budget(limit=9)] * 2
    assert done.metadata == {"limit": 9}
