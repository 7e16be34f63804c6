"""Tasks that somebody else cancels: a row fails, nothing else; code that swallows its cancel holds up nobody."""

from __future__ import annotations

import asyncio
import logging
import threading
from pathlib import Path

import pytest
from patience import HANG_S
from pydantic import BaseModel
from sqlalchemy import func, select
from stored import records_of

from penstock import BatchContext, Context, Pipeline, operation, step
from penstock.operations.tables import limit_shares, workers
from penstock.operations.worker import tasks
from penstock.settings import Settings
from penstock.testing import engine


class Item(BaseModel):
    id: int


def items(count: int) -> list[dict[str, int]]:
    return [{"id": n} for n in range(1, count + 1)]


def own_task() -> asyncio.Task[object]:
    task = asyncio.current_task()
    assert task is not None
    return task


async def cancelled_by(who: str) -> None:
    """Wait, and be cancelled meanwhile."""
    mine = own_task()

    async def cancel() -> None:
        mine.cancel()

    if who == "callback":
        asyncio.get_running_loop().call_soon(mine.cancel)
        await asyncio.sleep(HANG_S)
    child = asyncio.create_task(cancel())
    await asyncio.sleep(HANG_S)
    await child


@pytest.mark.parametrize("who", ["callback", "child"])
@pytest.mark.parametrize("manner", ["await", "check", "batch", "validator"])
async def test_a_step_whose_task_is_cancelled_by_something_it_started_fails_its_row_alone(
    database_url: str, tmp_path: Path, manner: str, who: str
):
    async def fail(at: str, row: Item) -> None:
        if at == manner and row.id == 2:
            await cancelled_by(who)

    @operation("wild")
    class Wild(Pipeline[Item]):
        async def validate_row(self, row: Item, meta: None, /) -> None:
            await fail("validator", row)

        @step
        async def first(self, row: Item, ctx: Context) -> None:
            await fail("await", row)

        @step.batch(size=1)
        async def second(self, rows: list[Item], ctx: BatchContext) -> None:
            await fail("batch", rows[0])

        @step.poll(every=1, timeout=10)
        async def third(self, row: Item, ctx: Context) -> None: ...

        @third.check
        async def is_there(self, row: Item, ctx: Context) -> bool:
            await fail("check", row)
            return True

    async with engine([Wild], url=database_url, tmp_path=tmp_path) as e:
        async with asyncio.timeout(HANG_S):
            done = await e.run(Wild, items(3))
        [record] = [record for record in await records_of(e.penstock.db, done.id) if record.row == 2]
    assert (done.status, done.successful_rows) == ("CompletedWithErrors", 2)
    # A check that raises is asked again, until the wait is over.
    assert manner == "check" or "CancelledError" in record.message


async def test_a_cancel_that_meets_no_call_of_a_step_any_more_ends_nothing(database_url: str, tmp_path: Path):
    """A home-made timeout is not taken back, and goes off while the next row's thread runs: that row runs again."""
    used: set[asyncio.Task[object]] = set()
    runs: list[int] = []

    @operation("late")
    class Late(Pipeline[Item]):
        @step
        async def first(self, row: Item, ctx: Context) -> None:
            loop, task = asyncio.get_running_loop(), own_task()
            used.add(task)
            if row.id == 3:
                loop.call_soon(task.cancel)

        @step
        def second(self, row: Item, ctx: Context) -> None:
            runs.append(row.id)
            if len(runs) == 1:
                is_cancelled = threading.Event()
                self.loop.call_soon_threadsafe(self.cancel_all, is_cancelled)
                is_cancelled.wait(HANG_S)

        def __init__(self) -> None:
            self.loop = asyncio.get_running_loop()

        def cancel_all(self, is_cancelled: threading.Event) -> None:
            for task in asyncio.all_tasks():
                if "TaskPool" in repr(task):
                    task.cancel()
            is_cancelled.set()

    async with engine([Late], url=database_url, tmp_path=tmp_path) as e:
        async with asyncio.timeout(HANG_S):
            done = await e.run(Late, items(5))
        assert (done.status, done.successful_rows) == ("Completed", 5)
        assert list(map(str, (await e.operations.verify(deep=True)).differences)) == []
    assert set(runs) == {1, 2, 3, 4, 5}


async def test_a_worker_leaves_though_a_step_swallows_every_cancel(
    database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    monkeypatch.setattr(tasks, "ENDING_S", 0.01, raising=False)
    begun, gone = asyncio.Event(), asyncio.Event()

    @operation("stubborn")
    class Stubborn(Pipeline[Item]):
        @step(concurrency=3)
        async def only(self, row: Item, ctx: Context) -> None:
            begun.set()
            while not gone.is_set():
                try:
                    await gone.wait()
                except asyncio.CancelledError:
                    continue

    settings = Settings(shutdown_s=0)
    async with engine([Stubborn], url=database_url, tmp_path=tmp_path, settings=settings) as e:
        made = await e.create(Stubborn, items(1))
        work = asyncio.create_task(e.work_until_idle())
        await asyncio.wait_for(begun.wait(), HANG_S)
        work.cancel()
        await asyncio.gather(work, return_exceptions=True)
        try:
            with caplog.at_level(logging.ERROR, "penstock.worker"):
                await asyncio.wait_for(asyncio.shield(asyncio.ensure_future(e.worker.stop())), HANG_S / 2)
            async with e.penstock.db.connection() as tx:
                assert (await tx.execute(select(func.count()).select_from(workers))).scalar_one() == 0
                assert (await tx.execute(select(func.count()).select_from(limit_shares))).scalar_one() == 0
            assert "swallows" in caplog.text
        finally:
            gone.set()
        await e.restart()
        await e.work_until_idle()
        assert (await e.operations.get(made.id)).status == "Completed"
