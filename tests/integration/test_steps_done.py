"""Progress while rows are under way: how many steps of all rows are done."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from patience import HANG_S
from pydantic import BaseModel

from penstock import Context, Pipeline, StepFailed, operation, resources, step
from penstock.settings import Settings
from penstock.testing import engine


class Item(BaseModel):
    id: int


def items(*ids: Any) -> list[dict[str, Any]]:
    return [{"id": given} for given in ids]


@operation("orders")
class Orders(Pipeline[Item]):
    @step
    async def check(self, row: Item, ctx: Context) -> None:
        if row.id == 4:
            raise StepFailed("no")

    @step
    async def reserve(self, row: Item, ctx: Context) -> None: ...

    @step.signal(key="order-{row.id}", timeout=60)
    async def approve(self, row: Item, ctx: Context) -> None: ...

    @step
    async def ship(self, row: Item, ctx: Context) -> None: ...


async def test_steps_count_while_rows_wait_and_a_failed_row_has_none_left(database_url: str, tmp_path: Path):
    async with engine([Orders], url=database_url, tmp_path=tmp_path) as e:
        made = await e.create(Orders, items(1, 2, 3, 4, "five"))
        assert (made.steps_done, made.steps_total) == (0, 0)
        await e.work_until_idle()
        waiting = await e.operations.get(made.id)
        assert (waiting.steps_done, waiting.steps_total) == (3 * 2 + 2 * 4, 5 * 4)
        document = resources.operation(waiting)
        assert (document["stepsDone"], document["stepsTotal"], document["progress"]) == (14, 20, 70.0)
        await e.penstock.signals.complete(made.id, "order-1")
        await e.work_until_idle()
        assert (await e.operations.get(made.id)).steps_done == 16
        done = await e.run(Orders, items(4))
        assert (done.steps_done, done.steps_total) == (4, 4)
        (listed, _) = (await e.operations.list()).items
        assert listed.steps_done == 4


async def test_rows_that_were_cancelled_are_not_done(database_url: str, tmp_path: Path):
    async with engine([Orders], url=database_url, tmp_path=tmp_path) as e:
        made = await e.create(Orders, items(1, 2, 4))
        await e.work_until_idle()
        await e.operations.cancel(made.id)
        await e.work_until_idle()
        done = await e.operations.get(made.id)
    assert (done.status, done.steps_done, done.steps_total) == ("Cancelled", 4, 12)


async def test_steps_are_counted_before_any_row_has_ended(database_url: str, tmp_path: Path):
    go_on = asyncio.Event()

    @operation("slow")
    class Slow(Pipeline[Item]):
        @step
        async def first(self, row: Item, ctx: Context) -> None: ...

        @step
        async def second(self, row: Item, ctx: Context) -> None:
            await go_on.wait()

    async with engine([Slow], url=database_url, tmp_path=tmp_path, settings=Settings(flush_s=0.01)) as e:
        made = await e.create(Slow, items(1, 2))
        working = asyncio.create_task(e.work_until_idle())
        async with asyncio.timeout(HANG_S):
            while (await e.operations.get(made.id)).steps_done < 2:  # noqa: ASYNC110
                await asyncio.sleep(0)
        go_on.set()
        await working
        assert (await e.operations.get(made.id)).steps_done == 4
