"""Which chunks a worker is offered: those that are free and due, of operations it has the code of, and not again."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from parcels import parcels_csv, run, shop
from sqlalchemy import select, update

from penstock.db.connection import Connection
from penstock.db.database import Database
from penstock.operations.chunk import store
from penstock.operations.tables import chunks, operations

CHUNKS = 20


@pytest.fixture
async def db(database_url, tmp_path) -> AsyncIterator[Database]:
    """A database with an operation of twenty chunks, all of them to be had."""
    async with shop(database_url, tmp_path) as penstock:
        await run(penstock, parcels_csv(CHUNKS * 10))

        async def reopen(tx: Connection) -> None:
            await tx.execute(update(operations).values(state="Running", finished_at=None, open_chunks=CHUNKS))
            await tx.execute(update(chunks).values(is_open=1, due_at=0))

        await penstock.db.transaction(reopen)
        yield penstock.db


async def ids_of(db: Database) -> list[int]:
    async with db.read() as tx:
        return list(await tx.scalars(select(chunks.c.id).order_by(chunks.c.id)))


async def offered(db: Database, **given: Any) -> list[int]:
    asked = {"names": ["parcels"], "limit": 100, **given}
    return [held.id for held in await db.look(lambda tx: store.candidates(db, tx, **asked))]


@pytest.mark.parametrize("many", [0, 1, 7, 8, 9, 16, 19, 20])
async def test_chunks_that_we_have_already_are_not_offered_again(db, many):
    ids = await ids_of(db)
    assert await offered(db, skip=ids[:many]) == ids[many:]
    assert await offered(db, skip=ids[:many], limit=3) == ids[many:][:3]


async def test_only_chunks_of_operations_that_we_know_are_offered(db):
    ids = await ids_of(db)
    assert await offered(db, names=["letters"]) == []
    assert await offered(db, names=["letters", "parcels", "pallets"]) == ids
    assert await offered(db, names=[]) == []


async def test_anybody_is_offered_the_chunks_of_an_operation_that_stops(db):
    ids = await ids_of(db)
    await db.transaction(lambda tx: tx.execute(update(operations).values(state="Stopping", stop_outcome="Cancelled")))
    assert await offered(db, names=[], skip=ids[:9]) == ids[9:]
    async with db.read() as tx:
        number = await tx.scalar(select(operations.c.number))
    assert await offered(db, names=[], operation=number) == ids
    assert await offered(db, names=[], operation=number + 1) == []


@pytest.mark.parametrize("many", [1, 7, 8, 9])
async def test_chunks_of_operations_that_are_set_aside_are_not_offered_unless_they_stop(db, many):
    ids = await ids_of(db)
    async with db.read() as tx:
        number = await tx.scalar(select(operations.c.number))
    others = range(number + 1, number + many)
    assert await offered(db, aside=[*others]) == ids
    assert await offered(db, aside=[*others, number]) == []
    assert await offered(db, aside=[*others, number], rank=0, workers=3) == []
    await db.transaction(lambda tx: tx.execute(update(operations).values(state="Stopping", stop_outcome="Cancelled")))
    assert await offered(db, aside=[*others, number]) == ids


async def test_several_workers_look_at_different_chunks_first(db):
    ids = await ids_of(db)
    parts = [await offered(db, rank=rank, workers=3) for rank in range(3)]
    assert sorted(parts[0] + parts[1] + parts[2]) == ids
    assert await offered(db, rank=0, workers=3, skip=parts[0]) == sorted(parts[1] + parts[2])
