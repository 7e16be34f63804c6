"""Keys that are written differently and are one row to the database, or the other way round."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Sequence
from contextlib import closing
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest
from sql_places import Place, outcomes

from penstock.targets import BulkExecutor
from penstock.targets.model import Mode
from penstock.targets.sql import SqlOptions
from penstock.targets.sql.keys import KeyReader
from penstock.targets.sql.sqlite.catalog import read_table

TWO_INDEXES = "CREATE TABLE tags (name TEXT PRIMARY KEY, area TEXT, hits INTEGER)"


async def tags_in_two_cases(place: Place) -> None:
    """Two rows that the primary key tells apart, and another index does not."""
    await place.make("tags", TWO_INDEXES)
    await place.run("CREATE UNIQUE INDEX tags_by_area ON tags (name COLLATE NOCASE, area)")
    await place.run("INSERT INTO tags VALUES ('abc', '1', 0), ('ABC', '2', 0)")


@pytest.mark.databases("sqlite")
@pytest.mark.parametrize("each", [False, True])
async def test_a_delete_compares_keys_by_their_own_index_and_not_by_another_of_the_column(place: Place, each: bool):
    await tags_in_two_cases(place)
    assert outcomes(await place.send(Mode.DELETE, ["abc", "Abc"], table="tags", each=each)) == ["deleted", "NOT_FOUND"]
    assert await place.rows("SELECT name FROM tags") == [("ABC",)]


@pytest.mark.databases("sqlite")
@pytest.mark.parametrize("mode", [Mode.UPDATE, Mode.UPSERT])
async def test_a_change_compares_keys_by_their_own_index_and_not_by_another_of_the_column(place: Place, mode: Mode):
    await tags_in_two_cases(place)
    assert outcomes(await place.send(mode, [{"name": "abc", "hits": 1}], table="tags")) == ["updated"]
    assert await place.rows("SELECT name, hits FROM tags ORDER BY area") == [("abc", 1), ("ABC", 0)]
    by_area = [{"name": "aBC", "area": "2", "hits": 5}]
    assert outcomes(await place.send(mode, by_area, table="tags", key=["name", "area"])) == ["updated"]
    assert await place.rows("SELECT name, hits FROM tags ORDER BY area") == [("abc", 1), ("ABC", 5)]


@pytest.mark.databases("sqlite")
async def test_keys_that_only_another_index_calls_equal_are_no_duplicates(place: Place):
    await tags_in_two_cases(place)
    records = [{"name": "abc", "hits": 1}, {"name": "ABC", "hits": 2}]
    result = await BulkExecutor(place.target, options=SqlOptions(duplicates="last")).update_multiple("tags", records)
    assert [str(outcome) for outcome in result.outcomes] == ["updated", "updated"]


SPELLED_TWICE = {
    "INTEGER": [("7", "007"), (7, "7"), (" 7", "7.0"), (1, "1e0")],
    "REAL": [("1.50", 1.5), ("1e1", 10)],
    "NUMERIC": [("0.10", Decimal("0.1")), (Decimal("7.00"), "7")],
    "DECIMAL(8,2)": [(0.1, "0.1"), ("+5", "5.")],
    "TEXT": [(7, "7"), (UUID(int=7), str(UUID(int=7)))],
}


@pytest.mark.databases("sqlite")
@pytest.mark.parametrize("kind", SPELLED_TWICE)
@pytest.mark.parametrize("mode", [Mode.UPDATE, Mode.UPSERT])
@pytest.mark.parametrize("batch_size", [1, 100])
async def test_a_key_that_sqlite_reads_from_two_spellings_is_written_in_order(
    place: Place, kind: str, mode: Mode, batch_size: int
):
    for pair in SPELLED_TWICE[kind]:
        for first, second in (pair, pair[::-1]):
            await place.make("spelled", f"CREATE TABLE spelled (id {kind} PRIMARY KEY, n integer)")
            await place.send(Mode.CREATE, [{"id": first, "n": 0}], table="spelled")
            records = [{"id": first, "n": 1}, {"id": second, "n": 2}]
            executor = BulkExecutor(place.target, options=SqlOptions(batch_size=batch_size))
            result = await executor.start(mode, "spelled", records)
            assert [str(outcome) for outcome in result.outcomes] == ["updated", "updated"]
            assert await place.rows("SELECT n FROM spelled") == [(2,)]


NUMBERS: list[Any] = [7, 7.0, -7, 0, 1, True, 0.1, 10, 1e300, 2**53, 2**53 + 1, 2**63 - 1, -(2**63), float(2**63)]
TEXTS = ["7", "007", "7.0", " 7 ", "\t7\n", "+7", "-7", "7.", ".1", "0.10", "1e1", "1E+1", "1e", "7x", "0x7", "", " "]
TEXTS += ["1_0", "٧", "\u00a07", "nan", "inf", "1e300", "1e999", "9007199254740993", "9223372036854775807", "True"]
TEXTS += ["9223372036854775808", "9007199254740993.0", "-0", "-0.0", "a", "A", "a ", "1", "10", "10.0", "1e-1"]
INEXACT = ("REAL", "DOUBLE")
DIGITS_THAT_ARE_LOST = re.compile(r"\d{17}|993")
"""Of numbers that such a column cannot hold: SQLite itself does not find them again."""


@pytest.mark.parametrize(
    "kind", ["INTEGER", "BIGINT", "REAL", "DOUBLE", "NUMERIC", "DECIMAL(9,3)", "ANY", "TEXT", "BLOB", ""]
)
def test_two_keys_are_one_exactly_where_sqlite_says_so(kind: str):
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.execute(f"CREATE TABLE keyed (k {kind}, UNIQUE (k))")
        reader = KeyReader(read_table(connection, "keyed").compared_by(("k",)), Mode.UPSERT, ("k",))
        keys = [*NUMBERS, *TEXTS]
        if kind in INEXACT:
            keys = [key for key in keys if not DIGITS_THAT_ARE_LOST.search(str(key))]
        for one in keys:
            connection.execute("DELETE FROM keyed")
            connection.execute("INSERT INTO keyed VALUES (?)", (one,))
            for other in keys:
                is_one = bool(connection.execute("SELECT 1 FROM keyed WHERE k = ?", (other,)).fetchall())
                assert (reader({"k": one}) == reader({"k": other})) == is_one, (one, other)


def test_a_column_of_a_strict_table_that_takes_anything_keeps_texts_and_numbers_apart():
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.execute("CREATE TABLE keyed (k ANY PRIMARY KEY) STRICT")
        reader = KeyReader(read_table(connection, "keyed").compared_by(("k",)), Mode.UPSERT, ("k",))
        assert len({reader({"k": key}) for key in (7, "7", "007")}) == 3


def test_keys_of_the_usual_type_are_read_all_at_once():
    with closing(sqlite3.connect(":memory:")) as connection:
        for kind, keys in (("INTEGER", [3, 1]), ("TEXT", ["b", "a"])):
            connection.execute("DROP TABLE IF EXISTS keyed")
            connection.execute(f"CREATE TABLE keyed (k {kind} PRIMARY KEY)")
            column = read_table(connection, "keyed").compared_by(("k",)).columns["k"]
            assert column.leaves(keys)
            assert not column.leaves([*keys, Decimal(1)])


CASELESS = "CREATE COLLATION caseless (provider = icu, locale = 'und-u-ks-level2', deterministic = false)"
LOOSE = {
    "mariadb": {
        "varchar(20) COLLATE utf8mb4_unicode_520_ci": ("cœur", "coeur"),
        "varchar(20) CHARACTER SET utf8mb4 COLLATE uca1400_ai_ci": ("Paweł", "Pawel"),
        "varchar(21) COLLATE utf8mb4_unicode_520_ci": ("Ærø", "Aero"),
        "date": ("2024-01-02", "2024-1-2"),
    },
    "postgresql": {
        "text COLLATE caseless": ("Ab", "aB"),
        "varchar(20) COLLATE caseless": ("Ab", "aB"),
        "date": ("2024-01-02", "Jan 2 2024"),
        "interval": ("60 minutes", "1 hour"),
    },
}


async def pair_on_table(place: Place, nth: int, *, swap: bool, has_row: bool = True) -> Sequence[str]:
    """A table with keys of the nth loose kind, and the row of a key; returns two spellings of the key."""
    kind, pair = list(LOOSE[place.kind].items())[nth]
    if "caseless" in kind:
        await place.run("DROP COLLATION IF EXISTS caseless CASCADE")
        await place.run(CASELESS)
    await place.make("loose", f"CREATE TABLE loose (id {kind} PRIMARY KEY, n integer)")
    if has_row:
        await place.run(f"INSERT INTO loose VALUES ('{pair[0]}', 0)")
    return pair[::-1] if swap else pair


IN_BOTH_ORDERS = pytest.mark.parametrize("swap", [False, True])
EVERY_KIND = pytest.mark.parametrize("nth", range(4))
ON_SERVERS = pytest.mark.databases("postgresql", "mariadb")


@ON_SERVERS
@EVERY_KIND
@IN_BOTH_ORDERS
@pytest.mark.parametrize("mode", [Mode.UPDATE, Mode.UPSERT])
@pytest.mark.parametrize("each", [False, True])
async def test_records_that_meet_one_row_are_applied_in_their_order(
    place: Place, nth: int, mode: Mode, swap: bool, each: bool
):
    first, second = await pair_on_table(place, nth, swap=swap)
    records = [{"id": first, "n": 1}, {"id": first, "n": 2}, {"id": second, "n": 3}]
    assert outcomes(await place.send(mode, records, table="loose", each=each)) == ["updated"] * 3
    assert await place.rows("SELECT n FROM loose") == [(3,)]


@ON_SERVERS
@EVERY_KIND
@IN_BOTH_ORDERS
@pytest.mark.parametrize("each", [False, True])
async def test_a_row_that_two_keys_mean_is_deleted_once(place: Place, nth: int, swap: bool, each: bool):
    first, second = await pair_on_table(place, nth, swap=swap)
    assert outcomes(await place.send(Mode.DELETE, [first, second], table="loose", each=each)) == [
        "deleted",
        "NOT_FOUND",
    ]
    assert await place.rows("SELECT n FROM loose") == []


@ON_SERVERS
@EVERY_KIND
@IN_BOTH_ORDERS
@pytest.mark.parametrize("mode", [Mode.UPDATE, Mode.UPSERT])
async def test_a_record_that_takes_a_change_back_is_not_unchanged(place: Place, nth: int, mode: Mode, swap: bool):
    first, second = await pair_on_table(place, nth, swap=swap)
    records = [{"id": first, "n": 1}, {"id": second, "n": 0}]
    answer = await place.send(mode, records, table="loose", update_only_changed=True)
    assert outcomes(answer) == ["updated", "updated"]
    assert await place.rows("SELECT n FROM loose") == [(0,)]


@ON_SERVERS
@EVERY_KIND
@IN_BOTH_ORDERS
async def test_new_keys_that_only_the_database_calls_equal_are_applied_in_order(place: Place, nth: int, swap: bool):
    first, second = await pair_on_table(place, nth, swap=swap, has_row=False)
    records = [{"id": first, "n": 1}, {"id": second, "n": 2}]
    result = await BulkExecutor(place.target).upsert_multiple("loose", records)
    assert [str(outcome) for outcome in result.outcomes] == ["created", "updated"]
    assert await place.rows("SELECT n FROM loose") == [(2,)]


@ON_SERVERS
@EVERY_KIND
async def test_of_new_records_that_are_alike_and_hold_a_key_alone_the_first_is_created(place: Place, nth: int):
    pair = await pair_on_table(place, nth, swap=False, has_row=False)
    result = await BulkExecutor(place.target).upsert_multiple("loose", [{"id": one} for one in pair])
    assert [str(outcome) for outcome in result.outcomes] == ["created", "unchanged"]


MANY = 2_500


@ON_SERVERS
@IN_BOTH_ORDERS
@pytest.mark.parametrize("mode", [Mode.UPDATE, Mode.UPSERT, Mode.DELETE])
async def test_records_that_meet_one_row_are_found_in_a_large_batch(place: Place, mode: Mode, swap: bool):
    first, second = await pair_on_table(place, 0, swap=swap, has_row=False)
    others = [{"id": f"{'abcdefgh'[n % 8]}{n}", "n": n} for n in range(MANY)]
    await place.send(Mode.CREATE, [*others, {"id": first, "n": 0}], table="loose")
    records = [*others[:1000], {"id": first, "n": 1}, *others[1000:], {"id": second, "n": 2}]
    if mode is Mode.DELETE:
        answer = await place.send(mode, [record["id"] for record in records], table="loose")
        assert outcomes(answer) == ["deleted"] * (MANY + 1) + ["NOT_FOUND"]
    else:
        answer = await place.send(mode, records, table="loose", isolate=False)
        assert outcomes(answer) == ["updated"] * (MANY + 2)
        assert await place.rows("SELECT count(*), min(n), max(n) FROM loose WHERE n = 2") == [(2, 2, 2)]
