"""`penstock.transaction()`: the user's own statements, committed or undone as one, on every database."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from patience import HANG_S
from pydantic import BaseModel
from sqlalchemy import column, insert, select, table, text

from penstock import Context, Penstock, operation
from penstock.db.unit import UnitOfWork
from penstock.errors import Conflict, Unavailable
from penstock.testing import Engine, engine

NOTES = table("notes", column("text"))


class Item(BaseModel):
    id: int


@operation("items")
async def items(row: Item, ctx: Context) -> None: ...


@pytest.fixture
async def shop(database_url: str, tmp_path: Path) -> AsyncIterator[Engine]:
    """An engine on a database with a table of the user's own."""
    async with engine([items], url=database_url, tmp_path=tmp_path) as opened:
        db = opened.penstock.db
        async with db.connection() as connection:
            await connection.exec_driver_sql("CREATE TABLE notes (text VARCHAR(40) NOT NULL)")
        yield opened
        async with db.connection() as connection:
            await connection.exec_driver_sql("DROP TABLE notes")


async def notes(penstock: Penstock) -> list[str]:
    async with penstock.db.connection() as connection:
        return sorted((await connection.execute(select(NOTES.c.text))).scalars().all())


async def test_a_block_that_ends_well_is_committed_as_one(shop: Engine):
    async with shop.penstock.transaction() as tx:
        await tx.execute("INSERT INTO notes VALUES (:text)", {"text": "a"})
        assert await notes(shop.penstock) == []
        await asyncio.sleep(0)
        await tx.execute(insert(NOTES), [{"text": "b"}, {"text": "c"}])
        found = await tx.execute("SELECT COUNT(*) FROM notes")
        assert found.scalar_one() == 3
    assert await notes(shop.penstock) == ["a", "b", "c"]


async def test_an_error_undoes_the_block(shop: Engine):
    async def fail(tx: UnitOfWork) -> None:
        async with tx:
            await tx.execute("INSERT INTO notes VALUES (:text)", {"text": "a"})
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await fail(shop.penstock.transaction())
    assert await notes(shop.penstock) == []


async def test_a_cancelled_block_is_undone_and_holds_nobody_up(shop: Engine):
    begun = asyncio.Event()

    async def stay() -> None:
        async with shop.penstock.transaction() as tx:
            await tx.execute("INSERT INTO notes VALUES (:text)", {"text": "a"})
            begun.set()
            await asyncio.Event().wait()

    task = asyncio.create_task(stay())
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    async with shop.penstock.transaction() as tx:
        await tx.execute("INSERT INTO notes VALUES (:text)", {"text": "b"})
    assert await notes(shop.penstock) == ["b"]


async def test_a_block_may_be_ended_early_and_then_takes_nothing_more(shop: Engine):
    async with shop.penstock.transaction() as tx:
        await tx.execute("INSERT INTO notes VALUES (:text)", {"text": "a"})
        await tx.roll_back()
        with pytest.raises(Conflict, match="has ended"):
            await tx.execute("INSERT INTO notes VALUES (:text)", {"text": "b"})
        await tx.begin()
        await tx.execute("INSERT INTO notes VALUES (:text)", {"text": "c"})
    assert await notes(shop.penstock) == ["c"]


async def test_what_writes_by_itself_is_refused_inside_instead_of_waiting_for_ever(shop: Engine):
    async with shop.penstock.transaction() as tx:
        for _ in range(2):
            with pytest.raises(Conflict, match="no other is begun"):
                await shop.create(items, [{"id": 1}])
        await tx.execute("INSERT INTO notes VALUES (:text)", {"text": "a"})
    made = await shop.create(items, [{"id": 1}])
    await shop.work_until_idle()
    assert (await shop.operations.get(made.id)).status == "Completed"
    assert await notes(shop.penstock) == ["a"]


async def test_work_that_was_begun_before_a_block_waits_for_its_end_only(shop: Engine):
    entered, leave = asyncio.Event(), asyncio.Event()

    async def stay() -> None:
        async with shop.penstock.transaction() as tx:
            await tx.execute("INSERT INTO notes VALUES (:text)", {"text": "a"})
            entered.set()
            await leave.wait()

    staying = asyncio.create_task(stay())
    await entered.wait()
    creating = asyncio.create_task(shop.create(items, [{"id": 1}]))
    await asyncio.sleep(0)
    leave.set()
    await staying
    assert (await creating).status == "Pending"


async def test_a_block_that_is_open_for_too_long_is_undone(shop: Engine):
    async def stay(tx: UnitOfWork) -> None:
        async with tx:
            await tx.execute("INSERT INTO notes VALUES (:text)", {"text": "a"})
            while tx.is_open:  # noqa: ASYNC110  # a timer ends it
                await asyncio.sleep(0.01)

    with pytest.raises(Unavailable, match="the most there is"):
        await stay(shop.penstock.db.unit(limit_s=0.05))
    async with shop.penstock.transaction() as tx:
        await tx.execute("INSERT INTO notes VALUES (:text)", {"text": "b"})
    assert await notes(shop.penstock) == ["b"]


@pytest.mark.databases("postgresql", "mariadb")
@pytest.mark.parametrize("is_joined", [False, True])
async def test_a_block_that_ends_in_the_middle_of_a_statement_spoils_no_connection(
    shop: Engine, database_kind: str, is_joined: bool
):
    db = shop.penstock.db
    sleep = {"postgresql": "SELECT pg_sleep(3)", "mariadb": "SELECT SLEEP(3)"}[database_kind]

    async def stay(tx: UnitOfWork) -> None:
        async with tx:
            await tx.execute("INSERT INTO notes VALUES (:text)", {"text": "a"})
            await (tx.connection.execute(text(sleep)) if is_joined else tx.execute(sleep))

    async def ask(number: int) -> int:
        async with db.unit() as tx:
            return int((await tx.execute("SELECT CAST(:number AS DECIMAL)", {"number": number})).scalar_one())

    async with asyncio.timeout(HANG_S):
        with pytest.raises(Unavailable, match="the most there is"):
            await stay(db.unit(limit_s=0.5))
        assert asyncio.all_tasks() == {asyncio.current_task()}  # its connection has been given up
        assert await asyncio.gather(*map(ask, range(20))) == list(range(20))
    assert await notes(shop.penstock) == []
