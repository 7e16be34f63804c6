"""What goes straight to the driver is what SQLAlchemy would have sent, read and raised."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator
from typing import Any

import pytest
from sqlalchemy import (
    BigInteger,
    Boolean,
    Column,
    Integer,
    MetaData,
    SmallInteger,
    Table,
    bindparam,
    delete,
    func,
    insert,
    literal_column,
    select,
    text,
    update,
)
from sqlalchemy.exc import DBAPIError, IntegrityError, PendingRollbackError

from penstock.clock import ManualClock
from penstock.db.connection import Connection
from penstock.db.database import Database
from penstock.db.prepared import Answer, Statements
from penstock.db.schema import Serial, table_options
from penstock.db.types import Bytes, Json, Key, LongText, NotStorable
from penstock.errors import Unavailable

things = Table(
    "thing",
    MetaData(),
    Column("id", Serial, primary_key=True, autoincrement=True),
    Column("key", Key(40), unique=True),
    Column("text", LongText),
    Column("data", Bytes),
    Column("json", Json),
    Column("big", BigInteger),
    Column("small", SmallInteger),
    Column("flag", Boolean),
    Column("count", Integer, nullable=False, default=7),
    **table_options(is_numbered=True),
)

NEW = insert(things).returning(things.c.id)
MANY = insert(things)
ONE = select(things).where(things.c.id == bindparam("number"))
SET = update(things).where(things.c.key == bindparam("the_key"))
REMOVE = delete(things).where(things.c.count == bindparam("the_count"))
WAYS = ["transaction", "write"]  # on SQLite the one works on the connection's thread, the other goes there and back


@pytest.fixture
async def db(database: Database) -> AsyncIterator[Database]:
    """A database with the table of things."""
    await create(database)
    yield database
    await drop(database)


async def create(database: Database) -> None:
    async with database.connection() as connection:
        await connection.run_sync(things.create)


async def drop(database: Database) -> None:
    async with database.connection() as connection:
        await connection.run_sync(things.drop)


async def sent(db: Database, statement: Any, values: Any, way: str = "transaction") -> Answer:
    """What comes of one statement in a transaction of its own."""
    if way == "transaction":
        return await db.transaction(lambda tx: tx.send(statement, values))
    async with db.write() as tx:
        return await tx.send(statement, values)


async def stored(db: Database, way: str = "transaction", **values: Any) -> dict[str, Any]:
    """What comes back of a thing that was sent."""
    (number,) = (await sent(db, NEW, values, way)).one()
    row = (await sent(db, ONE, {"number": number}, way)).one()
    async with db.read() as tx:
        assert row == (await tx.execute(select(things).where(things.c.id == number))).one()
    return dict(zip(things.c.keys(), row, strict=True))


VALUES: list[dict[str, Any]] = [
    {"key": "a "},
    {"key": "\\ ' \" % %s :x ? $1"},
    {"text": "é😀\u200b\nline"},
    {"text": "é" * 200_000},
    {"text": ""},
    {"text": None},
    {"data": b"\xff\xfe\x00'\\\"%s\x1a"},
    {"data": bytes(range(256)) * 4_000},
    {"data": b""},
    {"data": None},
    {"json": {"b": [1, None, 0.1, 2**70], "a": "\0😀"}},
    {"json": []},
    {"json": 0},
    {"json": None},
    {"big": 2**63 - 1, "small": -(2**15), "flag": True},
    {"big": -(2**63), "small": 0, "flag": False},
    {"big": None, "small": None, "flag": None},
]


@pytest.mark.covers("I-44")
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("values", VALUES, ids=lambda values: repr(values)[:40])
async def test_what_is_sent_comes_back_as_it_was_by_either_road(db, values, way):
    found = await stored(db, way, **values)
    assert {name: found[name] for name in values} == values
    assert [type(found[name]) for name in values] == [type(value) for value in values.values()]


async def test_columns_that_are_not_sent_have_their_defaults(db):
    assert (await stored(db, key="a"))["count"] == 7
    assert (await stored(db, key="b", count=1))["count"] == 1


async def test_new_things_have_rising_numbers(db):
    numbers = [(await sent(db, NEW, {"key": key})).one()[0] for key in "abc"]
    assert numbers == sorted(set(numbers))


@pytest.mark.parametrize("way", WAYS)
async def test_an_update_or_delete_counts_what_it_matched_changed_or_not(db, way):
    await sent(db, MANY, [{"key": "a", "count": 1}, {"key": "b", "count": 1}, {"key": "c", "count": 2}], way)
    assert (await sent(db, SET, {"the_key": "a", "count": 1}, way)).matched == 1
    assert (await sent(db, SET, {"the_key": "nobody", "count": 1}, way)).matched == 0
    assert (await sent(db, REMOVE, {"the_count": 1}, way)).matched == 2


async def test_the_same_statement_sets_what_is_sent_with_it(db):
    await stored(db, key="a", text="old", big=1)
    await sent(db, SET, {"the_key": "a", "big": 2})
    await sent(db, SET, {"the_key": "a", "text": "new", "json": ["x"]})
    assert (await sent(db, select(things.c.big, things.c.text, things.c.json), {})).rows == [(2, "new", ["x"])]


@pytest.mark.parametrize("way", WAYS)
async def test_many_values_go_with_one_statement(db, way):
    given: list[dict[str, Any]] = [{"key": f"é{n}", "json": [n], "data": bytes([n]), "text": None} for n in range(200)]
    await sent(db, MANY, given, way)
    names = [things.c[name] for name in given[0]]
    found = (await sent(db, select(*names).order_by(things.c.id), {}, way)).rows
    assert found == [tuple(each.values()) for each in given]


async def test_many_values_can_be_upserted(db):
    upsert = db.dialect.upsert(things, key=["key"], update=["big"])
    await sent(db, upsert, [{"key": "a", "big": 1}, {"key": "b", "big": 1}])
    await sent(db, upsert, [{"key": "b", "big": 2}, {"key": "c", "big": 2}])
    found = (await sent(db, select(things.c.key, things.c.big).order_by(things.c.key), {})).rows
    assert found == [("a", 1), ("b", 2), ("c", 2)]


async def test_a_snapshot_can_be_asked_too(db):
    await stored(db, key="a", json={"x": 1})
    query = select(things.c.json).where(things.c.key == bindparam("the_key"))
    assert (await db.look(lambda tx: tx.send(query, {"the_key": "a"}))).one() == ({"x": 1},)
    async with db.read() as tx:
        assert (await tx.send(query, {"the_key": "nobody"})).rows == []


async def test_the_clock_is_asked_whenever_a_statement_is_sent(manual_database: Database, clock: ManualClock):
    statement = select(manual_database.now().label("now"))
    seen = []
    for _ in range(3):
        seen.append((await sent(manual_database, statement, {})).one()[0] - clock.now_us())
        clock.advance(1)
    assert seen == [0, 0, 0]


@pytest.mark.parametrize("values, reason", [({"key": "a\0b"}, "NUL"), ({"key": "x" * 41}, "41 characters")])
async def test_what_cannot_be_stored_is_refused_with_a_reason(db, values, reason):
    with pytest.raises(NotStorable, match=reason):
        await sent(db, NEW, values)


async def test_a_value_that_is_missing_is_named(db):
    with pytest.raises(KeyError, match="number"):
        await sent(db, ONE, {})
    with pytest.raises(KeyError, match="big"):
        await sent(db, MANY, [{"key": "a", "big": 1}, {"key": "b"}])


async def test_a_list_whose_length_is_part_of_the_text_is_refused(db):
    query = select(things).where(things.c.id.in_(bindparam("several", expanding=True)))
    with pytest.raises(TypeError, match="can be prepared"):
        await sent(db, query, {"several": [1, 2]})


async def test_a_default_that_is_computed_is_refused(db):
    table = Table(
        "timed", MetaData(), Column("id", Integer, primary_key=True), Column("at", Integer, default=lambda: 1)
    )
    with pytest.raises(TypeError, match="can be prepared"):
        await sent(db, insert(table), {"id": 1})


async def test_a_statement_is_prepared_once_and_forgotten_with_its_owner(db):
    known = Statements(db._engine.dialect)
    statement = select(things)
    assert known.prepared(statement, {}) is known.prepared(statement, {})
    assert len(known._known) == 1
    del statement
    gc.collect()
    assert len(known._known) == 0


FAULTS: dict[str, Any] = {
    "a key that is taken": (NEW, {"key": "taken"}),
    "one of many that is taken": (MANY, [{"key": "new"}, {"key": "taken"}]),
    "a value of the wrong kind": (NEW, {"key": "a", "count": "many"}),
    "a column that may not be null": (NEW, {"key": "a", "count": None}),
    "a table that is not there": (select(literal_column("x")).select_from(text("nowhere")), {}),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("fault", FAULTS)
async def test_an_error_is_the_one_that_sqlalchemy_raises(db, fault, way):
    await stored(db, key="taken")
    statement, values = FAULTS[fault]
    with pytest.raises(DBAPIError) as direct:
        await sent(db, statement, values, way)
    with pytest.raises(DBAPIError) as usual:
        async with db.write() as tx:
            await tx.execute(statement, values)
    ours, theirs = direct.value, usual.value
    assert type(ours) is type(theirs)
    assert type(ours.orig) is type(theirs.orig)
    assert str(ours.orig) == str(theirs.orig)
    assert db.dialect.trouble(ours) == db.dialect.trouble(theirs)
    assert isinstance(ours, IntegrityError) or "taken" not in fault
    assert ours.statement
    assert (await sent(db, select(things.c.key), {})).rows == [("taken",)]


@pytest.mark.databases("postgresql", "mariadb")
async def test_a_lock_held_too_long_is_a_collision_that_is_repeated(db):
    await stored(db, key="a", big=0)
    holds, again, runs = asyncio.Event(), asyncio.Event(), []
    pay = SET.values(big=things.c.big + 1)

    async def hold(tx: Connection) -> None:
        await tx.send(pay, {"the_key": "a"})
        holds.set()
        await again.wait()

    async def work(tx: Connection) -> None:
        runs.append(1)
        if len(runs) == 2:
            again.set()
        await tx.send(pay, {"the_key": "a"})

    holder = asyncio.create_task(db.transaction(hold))
    await holds.wait()
    await db.transaction(work)
    await holder
    assert len(runs) >= 2
    assert (await sent(db, select(things.c.big), {})).one() == (2,)


ENDS = {"postgresql": "SELECT pg_terminate_backend({})", "mariadb": "KILL {}"}
ME = {"postgresql": select(func.pg_backend_pid()), "mariadb": select(func.connection_id())}


@pytest.mark.covers("F06")
@pytest.mark.databases("postgresql", "mariadb")
async def test_a_connection_that_broke_is_unavailable_and_nothing_more_happens_on_it(db):
    kind = db.dialect.name
    others = []

    async def work(tx: Connection) -> None:
        await tx.send(MANY, {"key": "a"})
        (mine,) = (await tx.send(ME[kind])).one()
        async with db.connection() as other:
            await other.tell(ENDS[kind].format(mine))
        for send in (tx.send, tx.send, tx.execute):
            try:
                await send(MANY, {"key": "b"})
            except (DBAPIError, PendingRollbackError) as error:
                others.append(error)
        raise others[0]

    async with db.connection():  # so that a new one is used
        with pytest.raises(Unavailable):
            await db.transaction(work)
    assert len(others) == 3
    assert (await sent(db, select(things.c.key), {})).rows == []


SLOW = {
    "postgresql": select(func.pg_sleep(30)),
    "mariadb": select(func.sleep(30)),
    "sqlite": select(
        text(
            "max(i) FROM (WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 100000)"
            " SELECT i FROM n)"
        )
    ),
}


@pytest.mark.parametrize("way", WAYS)
async def test_callers_cancelled_in_the_middle_of_a_statement_leave_no_broken_connection(db, way):
    for _ in range(7):  # more often than there are connections
        task = asyncio.create_task(sent(db, SLOW[db.dialect.name], {}, way))
        for _ in range(100):
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    await asyncio.gather(*(sent(db, NEW, {"key": f"{n}"}, way) for n in range(20)))
    assert (await sent(db, select(func.count()).select_from(things), {})).one() == (20,)


async def test_a_connection_on_which_somebody_was_cancelled_is_given_up(db):
    held: asyncio.Future[Connection] = asyncio.get_running_loop().create_future()

    async def work() -> None:
        async with db.write() as tx:
            held.set_result(tx)
            await tx.send(SLOW[db.dialect.name])

    task = asyncio.create_task(work())
    await held
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert held.result() not in db._idle
