"""What a worker keeps in memory: nothing of a chunk that it has given up, nor of an operation that only waits."""

from __future__ import annotations

import gc

from pydantic import BaseModel

from penstock import Context, Pipeline, operation, step
from penstock.operations.running.chunk_progress import ChunkProgress
from penstock.testing import engine


class Item(BaseModel):
    name: str


@operation("plain", row_key="name")
class Plain(Pipeline[Item]):
    @step
    async def pass_on(self, row: Item, ctx: Context) -> None: ...


class Order(BaseModel):
    note: str


@operation("approved", row_key="name")
class Approved(Pipeline[Item, Order]):
    @step.signal(key="{row.name}", timeout=3600)
    async def approval(self, row: Item, ctx: Context[Order]) -> None: ...

    @step
    async def pass_on(self, row: Item, ctx: Context[Order]) -> str:
        return ctx.meta.note


def orders_in_memory(note: str) -> int:
    gc.collect()
    return sum(isinstance(each, Order) and each.note == note for each in gc.get_objects())


def chunks_in_memory() -> list[ChunkProgress]:
    return [each for each in gc.get_objects() if isinstance(each, ChunkProgress)]


async def test_the_rows_of_a_chunk_are_freed_without_the_garbage_collector(database_url, tmp_path):
    async with engine([Plain], url=database_url, tmp_path=tmp_path) as e:
        gc.collect()
        before = chunks_in_memory()  # of engines of other tests, which a traceback may still hold
        gc.disable()  # workers let it look for cycles seldom
        try:
            made = await e.create(Plain, [{"name": "a"}, {"name": "b"}])
            await e.work_until_idle()
            assert (await e.operations.get(made.id)).status == "Completed"
            others = {id(each) for each in before}
            assert [each for each in chunks_in_memory() if id(each) not in others] == []
        finally:
            gc.enable()


async def test_an_operation_that_only_waits_is_forgotten_and_goes_on_all_the_same(database_url, tmp_path):
    async with engine([Approved], url=database_url, tmp_path=tmp_path) as e:
        forgetting = next(each for each in e.worker.services if each.name == "idle operations")
        made = await e.create(Approved, [{"name": "a"}], metadata={"note": "of the one that waits"})
        await e.work_until_idle()
        await forgetting.tick()
        assert orders_in_memory("of the one that waits") == 1, "it was in work since the worker began"
        await forgetting.tick()
        assert orders_in_memory("of the one that waits") == 0
        await e.penstock.signals.complete(made.id, "a")
        await e.work_until_idle()
        assert (await e.operations.get(made.id)).status == "Completed"
        row = await e.operations.row(made.id, 1)
        assert row.steps[-1].output == "of the one that waits"
