"""The same bytes on all three databases."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from sqlalchemy import BigInteger, Boolean, Column, Integer, MetaData, SmallInteger, Table, insert, select, update

from penstock.db.database import Database
from penstock.db.schema import Serial, table_options
from penstock.db.types import Bytes, Json, Key, LongText, NotStorable

scratch = Table(
    "scratch",
    MetaData(),
    Column("id", Serial, primary_key=True, autoincrement=True),
    Column("key", Key(40)),
    Column("text", LongText),
    Column("data", Bytes),
    Column("json", Json),
    Column("big", BigInteger),
    Column("small", SmallInteger),
    Column("flag", Boolean),
    Column("count", Integer),
    **table_options(is_numbered=True),
)


@pytest.fixture
async def db(database: Database) -> AsyncIterator[Database]:
    """A database with the scratch table."""
    async with database.connection() as connection:
        await connection.run_sync(scratch.create)
    yield database
    async with database.connection() as connection:
        await connection.run_sync(scratch.drop)


async def stored(db: Database, **values: Any) -> Any:
    """What comes back of one value."""
    (name,) = values

    async def write(tx: Any) -> int:
        return int((await tx.execute(insert(scratch).values(**values))).inserted_primary_key[0])

    number = await db.transaction(write)
    async with db.read() as tx:
        return await tx.scalar(select(scratch.c[name]).where(scratch.c.id == number))


TEXTS = [
    "",
    " ",
    "a ",
    "A",
    "é",
    "e\u0301",
    "😀👩‍👩‍👧",
    "\\ ' \" % %s :x",
    "line\nline\r\n\t",
    "\u200b\ufeff\uffff",
    "ẞ",
]


@pytest.mark.covers("I-44")
@pytest.mark.parametrize("text", TEXTS)
async def test_text_comes_back_as_it_was(db, text):
    assert await stored(db, key=text) == text
    assert await stored(db, text=text) == text


@pytest.mark.covers("I-44")
async def test_long_text_and_bytes_have_no_64_kib_limit(db):
    assert await stored(db, text="é" * 200_000) == "é" * 200_000
    data = bytes(range(256)) * 4_000
    assert await stored(db, data=data) == data


@pytest.mark.covers("I-44")
@pytest.mark.parametrize("data", [b"", b"\x00", b"\xff\xfe\x00'\\\"%s\x1a"])
async def test_bytes_come_back_as_they_were(db, data):
    assert await stored(db, data=data) == data


@pytest.mark.covers("I-44")
@pytest.mark.parametrize("number", [0, -1, 2**31, 2**53 + 1, 2**63 - 1, -(2**63)])
async def test_64_bit_integers_come_back_exactly(db, number):
    assert await stored(db, big=number) == number


@pytest.mark.parametrize("flag", [True, False, None])
async def test_booleans_come_back_as_booleans(db, flag):
    assert await stored(db, flag=flag) is flag


JSONS = [
    {"b": 1, "a": 2},
    {"nul": "\0", "emoji": "😀", "quote": "\"'\\"},
    [2**70, -(2**63), 0.1, 1e300, 1.0, True, None],
    "plain",
    "",
    0,
    {},
    [],
]


@pytest.mark.covers("I-44")
@pytest.mark.parametrize("value", JSONS, ids=repr)
async def test_json_comes_back_exactly_with_its_order_of_keys(db, value):
    found = await stored(db, json=value)
    assert found == value
    assert repr(found) == repr(value)


@pytest.mark.covers("I-44")
@pytest.mark.parametrize(
    "values, reason",
    [
        ({"key": "a\0b"}, "NUL at position 1"),
        ({"text": "a\0b"}, "NUL at position 1"),
        ({"key": "é\ud800"}, "lone surrogate at position 1"),
        ({"text": "\udfff"}, "lone surrogate at position 0"),
        ({"json": ["\ud800"]}, "lone surrogate"),
        ({"key": "x" * 41}, "41 characters where 40 fit"),
    ],
)
async def test_what_one_database_could_not_hold_is_refused_on_all_with_a_reason(db, values, reason):
    with pytest.raises(NotStorable, match=reason):
        await stored(db, **values)


async def test_a_key_holds_as_many_characters_as_it_says_whatever_their_bytes(db):
    assert await stored(db, key="😀" * 40) == "😀" * 40


async def test_an_integer_column_takes_no_text(db):
    with pytest.raises(Exception, match=r"(?i)cannot store TEXT|invalid input|incorrect integer|integer is required"):
        await stored(db, count="many")


KEYS = ["a", "A", "a ", " a", "á", "b", "B", "aa", "Z", "z", "ß", "ss", "😀", "\uffee", "10", "9", "a-b", "ab"]


@pytest.mark.covers("I-44", "H23")
async def test_keys_are_ordered_by_their_bytes(db):
    await db.transaction(lambda tx: tx.execute(insert(scratch), [{"key": key} for key in KEYS]))
    async with db.read() as tx:
        found = (await tx.scalars(select(scratch.c.key).order_by(scratch.c.key))).all()
    assert found == sorted(KEYS, key=str.encode)


@pytest.mark.covers("I-44", "H23")
@pytest.mark.parametrize("key", KEYS)
async def test_a_key_matches_only_itself(db, key):
    await db.transaction(lambda tx: tx.execute(insert(scratch), [{"key": each} for each in KEYS]))
    async with db.read() as tx:
        assert (await tx.scalars(select(scratch.c.key).where(scratch.c.key == key))).all() == [key]


async def test_an_update_counts_the_rows_it_matched_even_if_it_changed_nothing(db):
    await db.transaction(lambda tx: tx.execute(insert(scratch), [{"key": "same", "count": 1}] * 2))
    for _ in range(2):
        done = await db.transaction(
            lambda tx: tx.execute(update(scratch).where(scratch.c.key == "same").values(count=7))
        )
        assert done.rowcount == 2


async def test_a_number_given_out_is_never_given_out_again(db):
    await stored(db, key="first")
    await db.transaction(lambda tx: tx.execute(insert(scratch).values(key="last")))
    async with db.read() as tx:
        last = await tx.scalar(select(scratch.c.id).where(scratch.c.key == "last"))
    await db.transaction(lambda tx: tx.execute(scratch.delete()))
    await stored(db, key="next")
    async with db.read() as tx:
        assert await tx.scalar(select(scratch.c.id)) > last


async def test_an_upsert_inserts_updates_or_leaves_alone(db):
    take_over = db.dialect.upsert(scratch, key=["id"], update=["count"])
    leave = db.dialect.upsert(scratch, key=["id"], update=[])
    await db.transaction(lambda tx: tx.execute(take_over, [{"id": 1, "key": "a", "count": 1}]))
    rows = [{"id": 1, "key": "b", "count": 2}, {"id": 2, "key": "c", "count": 3}]
    await db.transaction(lambda tx: tx.execute(take_over, rows))
    await db.transaction(lambda tx: tx.execute(leave, [{"id": 2, "key": "d", "count": 9}]))
    async with db.read() as tx:
        found = (await tx.execute(select(scratch.c.id, scratch.c.key, scratch.c.count).order_by(scratch.c.id))).all()
    assert found == [(1, "a", 2), (2, "c", 3)]


async def test_least_is_the_smallest_of_several_columns(db):
    await stored(db, count=5)
    await db.transaction(lambda tx: tx.execute(update(scratch).values(big=3, small=4)))
    async with db.read() as tx:
        smallest = db.dialect.least(scratch.c.count, scratch.c.big, scratch.c.small)
        assert await tx.scalar(select(smallest)) == 3
