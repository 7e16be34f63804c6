"""Single statements that come at once share a commit, and none pays for another."""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest
from sqlalchemy import Column, Integer, MetaData, Table, bindparam, insert, select, update
from sqlalchemy.exc import IntegrityError

from penstock.db.database import CommitUnknown, Database
from penstock.db.schema import table_options
from penstock.failpoints import armed

pytestmark = pytest.mark.databases("sqlite")

slips = Table("slip", MetaData(), Column("id", Integer, primary_key=True), **table_options(is_numbered=False))
ADD = insert(slips)


@pytest.fixture
async def db(database: Database) -> Database:
    async with database.connection() as connection:
        await connection.run_sync(slips.create)
    return database


async def ids(db: Database) -> list[int]:
    async with db.read() as tx:
        return list((await tx.scalars(select(slips.c.id).order_by(slips.c.id))).all())


async def test_statements_that_come_at_once_are_few_commits(db: Database):
    hits: Counter[str] = Counter()
    with armed(lambda point: hits.update([point])):
        await asyncio.gather(*(db.single(ADD, {"id": number}, "add") for number in range(100)))
    assert await ids(db) == list(range(100))
    assert hits["add:after"] == 2  # the first alone, then all that had come meanwhile


async def test_a_statement_that_is_refused_is_its_own_callers_error(db: Database):
    answers = await asyncio.gather(
        *(db.single(ADD, {"id": number}) for number in (1, 2, 2, 3, 1, 4)), return_exceptions=True
    )
    assert [type(answer) is IntegrityError for answer in answers] == [False, False, True, False, True, False]
    assert await ids(db) == [1, 2, 3, 4]


async def test_what_is_sent_together_is_carried_out_in_its_order(db: Database):
    await db.single(ADD, {"id": 1})
    move = update(slips).where(slips.c.id == bindparam("source")).values(id=bindparam("target"))
    moved = await asyncio.gather(*(db.single(move, {"source": n, "target": n + 1}) for n in (1, 2, 3, 7)))
    assert [answer.matched for answer in moved] == [1, 1, 1, 0]
    assert await ids(db) == [4]


async def test_a_caller_that_is_cancelled_takes_only_its_own_statement_back(db: Database):
    unit = db.unit()

    async def hold() -> None:
        await unit.begin()

    # In a context of its own: the callers below are not inside it. Nobody else writes while it is open.
    await asyncio.get_running_loop().create_task(hold())
    calls = [asyncio.create_task(db.single(ADD, {"id": number})) for number in range(4)]
    await asyncio.sleep(0)
    calls[0].cancel()
    calls[2].cancel()
    await asyncio.sleep(0)
    await unit.roll_back()
    answers = await asyncio.gather(*calls, return_exceptions=True)
    assert [isinstance(answer, asyncio.CancelledError) for answer in answers] == [True, False, True, False]
    assert await ids(db) == [1, 3]


async def test_all_of_a_lost_commit_are_told_that_nobody_knows(db: Database):
    def lose(point: str) -> None:
        if point == "add:after":
            raise CommitUnknown("the connection died at COMMIT")

    with armed(lose):
        answers = await asyncio.gather(
            *(db.single(ADD, {"id": number}, "add") for number in range(5)), return_exceptions=True
        )
    assert [type(answer) for answer in answers] == [CommitUnknown] * 5
    assert await ids(db) == list(range(5))
