"""How a file is cut into chunks, and that every row of every chunk runs."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import BaseModel
from sqlalchemy import select
from stored import rows_of

from penstock import Context, Pipeline, operation, step
from penstock.db.database import Database
from penstock.operations.tables import chunks
from penstock.settings import Settings
from penstock.testing import engine

ROWS = 150


class Item(BaseModel):
    sku: str
    note: str = "none"


@operation("count")
class Count(Pipeline[Item]):
    @step
    async def one(self, row: Item, ctx: Context) -> None: ...

    @step
    async def two(self, row: Item, ctx: Context) -> str | None:
        return row.note if row.note != "none" else None


@operation("approve")
class Approve(Pipeline[Item]):
    @step.signal(key="{row.sku}", timeout=60)
    async def approval(self, row: Item, ctx: Context) -> None: ...


def csv(rows: int) -> bytes:
    """Every third note is empty, every fortieth line has a cell too many."""
    lines = (f"A{i},{'' if i % 3 == 0 else f'n{i}'}{',x' if i % 40 == 0 else ''}\n" for i in range(1, rows + 1))
    return b"sku,note\n" + "".join(lines).encode()


async def sizes(db: Database) -> list[int]:
    async with db.read() as tx:
        found = await tx.execute(select(chunks.c.row_count).order_by(chunks.c.first_row))
        return [int(size) for size in found.scalars()]


@pytest.mark.parametrize("flush_rows", [1, 3, 4000])
async def test_chunks_of_a_long_file_grow_and_every_row_has_its_verdict(
    database_url: str, tmp_path: Path, flush_rows: int
):
    settings = Settings(chunk_rows=2, flush_rows=flush_rows)
    async with engine([Count], url=database_url, tmp_path=tmp_path, settings=settings) as e:
        done = await e.run(Count, csv(ROWS), file_name="items.csv")
        assert await sizes(e.penstock.db) == [2] * 32 + [4] * 16 + [8] * 2 + [6]
        stored = await rows_of(e.penstock.db, done.id)
        assert not (await e.penstock.operations.verify(done.id)).differences
    assert [row.number for row in stored] == list(range(1, ROWS + 1))
    assert [row.number for row in stored if row.verdict != "Completed"] == [40, 80, 120]
    noted = [row.number for row in stored if row.verdict == "Completed" and row.outputs[1] == f"n{row.number}"]
    assert noted == [i for i in range(1, ROWS + 1) if i % 3 and i % 40]


async def test_chunks_of_rows_that_may_wait_stay_small(database_url: str, tmp_path: Path):
    async with engine([Approve], url=database_url, tmp_path=tmp_path, settings=Settings(chunk_rows=2)) as e:
        made = await e.create(Approve, csv(ROWS), file_name="items.csv")
        await e.work_until_idle()
        assert set(await sizes(e.penstock.db)) == {2}
        assert (await e.operations.get(made.id)).waiting_rows == ROWS - 3
