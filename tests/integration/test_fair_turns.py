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
from penstock.testing import Engine, engine

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


@operation("other", row_key="name", max_row_concurrency=1)
class Other(Pipeline[Item]):
    may_end: ClassVar[asyncio.Event]

    @step
    async def pass_on(self, row: Item, ctx: Context) -> None:
        await self.may_end.wait()


@operation("checked", row_key="name")
class Checked(Pipeline[Item]):
    """To validate its rows takes as long as the test likes."""

    begun: ClassVar[asyncio.Semaphore]
    may_end: ClassVar[asyncio.Event]

    async def validate_row(self, row: Item, _: None) -> None:
        self.begun.release()
        await self.may_end.wait()

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
    return Penstock.open(settings=settings, operations=[Slow, Quick, Other, Approved])


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


async def test_chunks_of_a_quick_operation_run_side_by_side_beside_slow_rows(database_url, tmp_path):
    Slow.started, Slow.may_end = asyncio.Event(), asyncio.Event()
    async with asyncio.timeout(HANG_S), opened(database_url, tmp_path) as penstock, penstock.working() as worker:
        await penstock.operations.create(Slow, file=rows_file(tmp_path))
        await Slow.started.wait()
        await until(lambda: owns_all(worker))
        Other.may_end = asyncio.Event()
        other = await penstock.operations.create(Other, file=rows_file(tmp_path))
        await until(lambda: owns_more(worker, OWNED + 2))  # one that runs, and others that are fetched meanwhile
        Other.may_end.set()
        assert (await penstock.operations.wait(other.id)).status == "Completed"
        Slow.may_end.set()


async def test_a_file_is_read_though_two_others_take_long_to_validate(database_url, tmp_path):
    async with engine([Checked, Quick], url=database_url, tmp_path=tmp_path, settings=SETTINGS) as e:
        Checked.begun, Checked.may_end = asyncio.Semaphore(0), asyncio.Event()
        slow = [await e.create(Checked, ROWS[:1]) for _ in range(2)]
        async with asyncio.timeout(HANG_S), asyncio.TaskGroup() as group, e.penstock.worker() as worker:
            stop = asyncio.Event()
            group.create_task(worker.run(stop))
            for _ in slow:
                await Checked.begun.acquire()
            quick = await e.create(Quick, ROWS)
            await until(lambda: is_over(e, quick.id))
            Checked.may_end.set()
            for each in slow:
                await until(lambda id=each.id: is_over(e, id))
            stop.set()


async def is_over(e: Engine, operation: str) -> bool:
    e.clock.advance(1)
    return (await e.operations.get(operation)).is_settled


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
    return await owns_more(worker, OWNED)


async def owns_more(worker: Worker, many: int) -> bool:
    return len(worker.actors) >= many


async def is_completed(penstock: Penstock, operation: str) -> bool:
    return (await penstock.operations.row(operation, 1)).state == "Completed"


def rows_file(tmp_path):
    path = tmp_path / "rows.csv"
    path.write_text("name\n" + "".join(f"{row['name']}\n" for row in ROWS))
    return path
