"""Limits: how many at once, how many a second, and how many errors are too many."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from patience import HANG_S
from pydantic import BaseModel
from stored import count_of, rows_of

from penstock import BatchContext, Context, Pipeline, operation, step
from penstock.operations.rows import gates
from penstock.settings import Settings
from penstock.testing import engine


class Item(BaseModel):
    id: int


def items(count: int, bad: int = 0) -> list[dict[str, Any]]:
    return [{"id": "bad" if n <= bad else n} for n in range(1, count + 1)]


class Meter:
    """Holds everyone who enters until `expected` are inside, and remembers the most that ever were."""

    def __init__(self, expected: int) -> None:
        self.expected, self.inside, self.peak = expected, 0, 0
        self.full = asyncio.Event()

    async def __call__(self) -> None:
        self.inside += 1
        self.peak = max(self.peak, self.inside)
        if self.inside >= self.expected:
            self.full.set()
        async with asyncio.timeout(HANG_S):
            await self.full.wait()
        for _ in range(20):  # one too many would get in now
            await asyncio.sleep(0)
        self.inside -= 1


@pytest.mark.parametrize("chunk_rows", [2, 100])
async def test_at_most_max_row_concurrency_rows_are_under_way(database_url: str, tmp_path: Path, chunk_rows: int):
    meter = Meter(5)

    @operation("rows", max_row_concurrency=5)
    class Rows(Pipeline[Item]):
        @step
        async def call(self, row: Item, ctx: Context) -> None:
            await meter()

    settings = Settings(chunk_rows=chunk_rows)
    async with engine([Rows], url=database_url, tmp_path=tmp_path, settings=settings) as e:
        done = await e.run(Rows, items(30))
    assert (done.successful_rows, meter.peak) == (30, 5)


async def test_at_most_concurrency_calls_of_a_step_are_under_way(database_url: str, tmp_path: Path):
    meter = Meter(2)

    @operation("step", max_row_concurrency=8)
    class Step(Pipeline[Item]):
        @step(concurrency=2)
        async def call(self, row: Item, ctx: Context) -> None:
            await meter()

    async with engine([Step], url=database_url, tmp_path=tmp_path, settings=Settings(chunk_rows=4)) as e:
        done = await e.run(Step, items(20))
    assert (done.successful_rows, meter.peak) == (20, 2)


@pytest.fixture
def waited(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """How long each call waited for its turn; the waits are over at once."""
    waits: list[float] = []

    async def happens_within(event: asyncio.Event, seconds: float) -> bool:
        waits.append(seconds)
        return False

    monkeypatch.setattr(gates, "happens_within", happens_within)
    return waits


async def test_a_batch_takes_one_place_however_many_rows_it_has(database_url: str, tmp_path: Path, waited: list[float]):
    """A rate is of calls: many rows in one call are what batches are for."""

    @operation("batched")
    class Batched(Pipeline[Item]):
        @step.batch(size=4, rate="20/s")
        async def call(self, rows: list[Item], ctx: BatchContext) -> None: ...

    async with engine([Batched], url=database_url, tmp_path=tmp_path) as e:
        done = await e.run(Batched, items(12))
    assert done.successful_rows == 12
    assert waited == pytest.approx([0.05] * 3, abs=1e-5)


async def test_a_rate_limited_step_waits_its_turn(database_url: str, tmp_path: Path, waited: list[float]):
    @operation("paced")
    class Paced(Pipeline[Item]):
        @step(rate="20/s")
        async def call(self, row: Item, ctx: Context) -> None: ...

    async with engine([Paced], url=database_url, tmp_path=tmp_path) as e:
        done = await e.run(Paced, items(5))
    assert done.successful_rows == 5
    assert waited == pytest.approx([0.05] * 5, abs=1e-5)


@pytest.mark.covers("SM-008")
@pytest.mark.parametrize("bad, status", [(2, "CompletedWithErrors"), (3, "Failed")])
async def test_too_many_invalid_rows_reject_the_file_before_anything_ran(
    database_url: str, tmp_path: Path, bad: int, status: str
):
    ran: list[int] = []

    @operation("strict", max_errors=2)
    class Strict(Pipeline[Item]):
        @step
        async def call(self, row: Item, ctx: Context) -> None:
            ran.append(row.id)

    async with engine([Strict], url=database_url, tmp_path=tmp_path, settings=Settings(chunk_rows=2)) as e:
        done = await e.run(Strict, items(12, bad=bad))
        counts = await count_of(e.penstock.db)
        events = await e.operations.events(done.id)
    assert done.status == status
    if status == "Failed":
        assert done.error == "stopped while validating: 3 rows failed, max_errors is 2"
        assert (ran, counts["chunks"], counts["records"]) == ([], 0, 0)
        assert events[-1].event == "rejected"
    else:
        assert (len(ran), done.failed_rows) == (10, 2)


@pytest.mark.covers("SM-008")
async def test_too_many_failures_stop_a_running_operation_and_every_row_has_a_verdict(
    database_url: str, tmp_path: Path
):
    ran: list[int] = []

    @operation("fragile", max_errors=2, max_row_concurrency=1)
    class Fragile(Pipeline[Item]):
        @step
        async def call(self, row: Item, ctx: Context) -> None:
            ran.append(row.id)
            raise OSError("down")

    async with engine([Fragile], url=database_url, tmp_path=tmp_path, settings=Settings(chunk_rows=2)) as e:
        done = await e.run(Fragile, items(40))
        stored = await rows_of(e.penstock.db, done.id)
        events = await e.operations.events(done.id)
    assert done.status == "Failed"
    assert "max_errors is 2" in (done.error or "")
    assert [m.event for m in events][-2:] == ["broke", "failed"]
    assert events[-2].cause == done.error
    assert 2 < done.failed_rows == len(ran) < 40
    assert done.cancelled_rows == 40 - len(ran)
    assert {row.verdict for row in stored} == {"Failed", "Cancelled"}
    assert not any(row.in_flight for row in stored)


@pytest.mark.parametrize("count, status", [(99, "CompletedWithErrors"), (100, "Failed")])
async def test_an_error_rate_counts_from_a_hundred_rows_on(database_url: str, tmp_path: Path, count: int, status: str):
    @operation("rate", max_error_rate=0.5)
    class Rate(Pipeline[Item]):
        @step
        async def call(self, row: Item, ctx: Context) -> None: ...

    async with engine([Rate], url=database_url, tmp_path=tmp_path, settings=Settings(chunk_rows=10)) as e:
        done = await e.run(Rate, items(count, bad=count))
    assert done.status == status


async def test_an_error_rate_is_passed_only_when_it_is_exceeded(database_url: str, tmp_path: Path):
    @operation("rate", max_error_rate=0.5)
    class Rate(Pipeline[Item]):
        @step
        async def call(self, row: Item, ctx: Context) -> None:
            if row.id % 2:
                raise OSError("down")

    async with engine([Rate], url=database_url, tmp_path=tmp_path, settings=Settings(chunk_rows=10)) as e:
        done = await e.run(Rate, items(200))
    assert (done.status, done.failed_rows) == ("CompletedWithErrors", 100)


async def test_an_error_rate_stops_a_running_operation(database_url: str, tmp_path: Path):
    @operation("rate", max_error_rate=0.5)
    class Rate(Pipeline[Item]):
        @step
        async def call(self, row: Item, ctx: Context) -> None:
            if row.id <= 76:
                raise OSError("down")
            if row.id > 100:
                await stopped()

    async def stopped() -> None:
        async with asyncio.timeout(HANG_S):
            while (await e.operations.get(made.id)).status == "Running":  # noqa: ASYNC110
                await asyncio.sleep(0)

    async with engine([Rate], url=database_url, tmp_path=tmp_path, settings=Settings(chunk_rows=100)) as e:
        made = await e.create(Rate, items(150))
        await e.work_until_idle()
        done = await e.operations.get(made.id)
    assert done.status == "Failed"
    assert done.error == "76 of 150 rows begun have failed (50.7%), max_error_rate is 50.0%"


async def test_rows_under_way_are_not_taken_for_failed_ones_by_an_error_rate(database_url: str, tmp_path: Path):
    """Rows fail at the first step while none has come through the second."""

    @operation("two-steps", max_error_rate=0.5)
    class TwoSteps(Pipeline[Item]):
        @step
        async def check(self, row: Item, ctx: Context) -> None:
            if row.id % 5 == 0:
                raise OSError("down")

        @step(barrier=True)
        async def send(self, row: Item, ctx: Context) -> None: ...

    async with engine([TwoSteps], url=database_url, tmp_path=tmp_path, settings=Settings(chunk_rows=1000)) as e:
        done = await e.run(TwoSteps, items(1000))
    assert (done.status, done.failed_rows, done.successful_rows) == ("CompletedWithErrors", 200, 800)


async def test_invalid_rows_that_come_late_in_the_file_do_not_weigh_more_in_an_error_rate(
    database_url: str, tmp_path: Path
):
    @operation("rate", max_error_rate=0.5)
    class Rate(Pipeline[Item]):
        @step
        async def call(self, row: Item, ctx: Context) -> None:
            if row.id == 1:
                raise OSError("down")

    rows = [*items(1200), *items(600, bad=600)]
    async with engine([Rate], url=database_url, tmp_path=tmp_path, settings=Settings(chunk_rows=100)) as e:
        done = await e.run(Rate, rows)
    assert (done.status, done.failed_rows, done.successful_rows) == ("CompletedWithErrors", 601, 1199)


async def test_invalid_and_failed_rows_count_together_in_an_error_rate(database_url: str, tmp_path: Path):
    @operation("rate", max_error_rate=0.5)
    class Rate(Pipeline[Item]):
        @step
        async def call(self, row: Item, ctx: Context) -> None:
            raise OSError("down")

    rows = [*items(160), *items(40, bad=40)]
    async with engine([Rate], url=database_url, tmp_path=tmp_path, settings=Settings(chunk_rows=200)) as e:
        done = await e.run(Rate, rows)
    assert done.status == "Failed"
    assert done.error == (
        "160 of 160 rows begun have failed and 40 of 200 are invalid (100.0%), max_error_rate is 50.0%"
    )
