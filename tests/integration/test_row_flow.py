"""Where the rows of an operation are, how many ended when, and how many operations there are."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import BaseModel

from penstock import Context, Pipeline, StepFailed, operation, step
from penstock.errors import InvalidInput
from penstock.operations.model import StepFlow
from penstock.testing import engine


class Item(BaseModel):
    id: int


@operation("orders")
class Orders(Pipeline[Item]):
    @step
    async def check(self, row: Item, ctx: Context) -> None:
        if row.id == 4:
            raise StepFailed("no")

    @step.signal(key="order-{row.id}", timeout=60)
    async def approve(self, row: Item, ctx: Context) -> None: ...

    @step
    async def ship(self, row: Item, ctx: Context) -> None: ...


ROWS = [{"id": 1}, {"id": 2}, {"id": 3}, {"id": 4}, {"id": "five"}]


async def test_every_row_is_counted_where_it_stands(database_url: str, tmp_path: Path):
    async with engine([Orders], url=database_url, tmp_path=tmp_path) as e:
        made = await e.create(Orders, ROWS)
        assert (await e.operations.flow(made.id)).rows == 0
        assert await e.operations.throughput(made.id) is None
        await e.work_until_idle()
        await e.penstock.signals.complete(made.id, "order-1")
        await e.work_until_idle()

        flow = await e.operations.flow(made.id)
        assert (flow.rows, flow.is_exact) == (5, True)
        assert flow.steps == (
            StepFlow(-1, "validation", 4, failed=1),
            StepFlow(0, "check", 3, failed=1),
            StepFlow(1, "approve", 1, waiting=2),
            StepFlow(2, "ship", 1),
        )
        assert [step.here for step in flow.steps] == [1, 1, 2, 0]
        workload = await e.operations.workload()
        assert (workload.chunks_open, workload.chunks_owned, workload.chunks_due) == (1, 0, 0)
        assert (workload.chunks_parked, workload.oldest_due_s) == (1, None)
        (worker,) = workload.workers
        assert worker.lease_s > 0
        throughput = await e.operations.throughput(made.id, spans=4)
        assert throughput is not None
        assert (sum(throughput.rows), throughput.is_sample) == (2, False)
        with pytest.raises(InvalidInput, match="at least 1"):
            await e.operations.throughput(made.id, spans=0)

        await e.operations.cancel(made.id)
        await e.work_until_idle()
        after = {step.name: step for step in (await e.operations.flow(made.id)).steps}
        assert (after["approve"].cancelled, after["approve"].waiting, after["ship"].passed) == (2, 0, 1)
        assert await e.operations.count_by_status() == {"Cancelled": 1}
