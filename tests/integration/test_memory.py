"""What a worker keeps in memory: nothing of a chunk that it has given up."""

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
