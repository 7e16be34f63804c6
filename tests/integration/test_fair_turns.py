"""Slow rows hold up neither other operations nor waits that end, though a worker owns only a few chunks at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import ClassVar

from patience import HANG_S
from pydantic import BaseModel

from penstock import Context, Done, Penstock, Pipeline, operation, step
from penstock.operations.worker.worker import Worker
from penstock.settings import Settings

SETTINGS = Settings(chunk_rows=1)
OWNED = 4  # chunks of one operation that a worker has at a time, with one row each and one row at a time
ROWS = [{"name": str(n)} for n in range(10)]


class Item(BaseModel):
    name: str


@operation("slow", row_key="name", max_row_concurrency=1)
class Slow(Pipeline[Item]):
    """Its rows take as long as the test likes."""

    started: ClassVar[asyncio.Event]
    may_end: ClassVar[asyncio.Event]

    @step
    async def hold(self, row: Item, ctx: Context) -> None:
        self.started.set()
        await self.may_end.wait()


@operation("quick", row_key="name", max_row_concurrency=1)
class Quick(Pipeline[Item]):
    @step
    async def pass_on(self, row: Item, ctx: Context) -> None: ...


@operation("approved", row_key="name", max_row_concurrency=1)
class Approved(Pipeline[Item]):
    """The first row waits for an approval; to look after the others takes long once the test says so."""

    is_slow: ClassVar[asyncio.Event]
    may_end: ClassVar[asyncio.Event]

    @step.poll(every=0.05, timeout=3600)
    async def prepare(self, row: Item, ctx: Context) -> Done[None] | None:
        return Done(None) if row.name == "0" else None

    @prepare.check
    async def is_prepared(self, row: Item, ctx: Context) -> bool:
        if self.is_slow.is_set():
            await self.may_end.wait()
        return False

    @step.signal(key="ok-{row.name}", timeout=3600)
    async def approve(self, row: Item, ctx: Context) -> None: ...


def opened(url: str, tmp_path):
    settings = SETTINGS.model_copy(update={"database_url": url, "storage_url": str(tmp_path / "files")})
    return Penstock.open(settings=settings, operations=[Slow, Quick, Approved])


async def test_an_operation_does_not_wait_for_the_slow_rows_of_another(database_url, tmp_path):
    Slow.started, Slow.may_end = asyncio.Event(), asyncio.Event()
    async with asyncio.timeout(HANG_S), opened(database_url, tmp_path) as penstock, penstock.working() as worker:
        slow = await penstock.operations.create(Slow, file=rows_file(tmp_path))
        await Slow.started.wait()
        await until(lambda: owns_all(worker))
        quick = await penstock.operations.create(Quick, file=rows_file(tmp_path))
        assert (await penstock.operations.wait(quick.id)).status == "Completed"
        assert (await penstock.operations.get(slow.id)).status == "Running"
        Slow.may_end.set()
        assert (await penstock.operations.wait(slow.id)).status == "Completed"


async def test_a_row_that_was_approved_does_not_wait_for_the_slow_rows_of_its_operation(database_url, tmp_path):
    Approved.is_slow, Approved.may_end = asyncio.Event(), asyncio.Event()
    async with asyncio.timeout(HANG_S), opened(database_url, tmp_path) as penstock, penstock.working() as worker:
        made = await penstock.operations.create(Approved, file=rows_file(tmp_path))
        await until(lambda: penstock.signals.waiting(made.id))
        Approved.is_slow.set()
        await until(lambda: owns_all(worker))
        await penstock.signals.complete(made.id, "ok-0")
        await until(lambda: is_completed(penstock, made.id))
        Approved.may_end.set()


async def until(look: Callable[[], Awaitable[object]]) -> None:
    while not await look():  # noqa: ASYNC110  # what is waited for happens in the worker
        await asyncio.sleep(0.01)


async def owns_all(worker: Worker) -> bool:
    return len(worker.actors) >= OWNED


async def is_completed(penstock: Penstock, operation: str) -> bool:
    return (await penstock.operations.row(operation, 1)).state == "Completed"


def rows_file(tmp_path):
    path = tmp_path / "rows.csv"
    path.write_text("name\n" + "".join(f"{row['name']}\n" for row in ROWS))
    return path
