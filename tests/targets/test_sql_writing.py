"""What the database targets do with records, on the three databases."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from datetime import UTC, date, datetime
from decimal import Decimal
from uuid import UUID

import pytest
from sql_places import Place, batch, outcomes

from penstock.targets import BulkExecutor
from penstock.targets.model import BulkOptions, ErrorKind, Mode
from penstock.targets.sql import SqlOptions

KEY = {"postgresql": "integer GENERATED ALWAYS AS IDENTITY", "mariadb": "integer AUTO_INCREMENT", "sqlite": "integer"}


def product(n: int, **more: object) -> dict[str, object]:
    return {"id": n, "name": f"product {n}", "price": n, **more}


@pytest.mark.covers("BX-025", "BX-100")
async def test_ids_the_database_makes_come_back_in_the_order_of_the_records(place: Place):
    await place.make("notes", f"CREATE TABLE notes (id {KEY[place.kind]} PRIMARY KEY, body varchar(50) UNIQUE)")
    answer = await place.send(Mode.CREATE, [{"body": f"note {n * 37 % 100}"} for n in range(100)], table="notes")
    held = dict(await place.rows("SELECT id, body FROM notes"))
    assert [held[verdict.id] for verdict in answer.verdicts] == [f"note {n * 37 % 100}" for n in range(100)]


async def test_ids_the_database_makes_are_known_even_when_records_are_sent_each(place: Place):
    await place.make("notes", f"CREATE TABLE notes (id {KEY[place.kind]} PRIMARY KEY, body varchar(50) UNIQUE)")
    await place.send(Mode.CREATE, [{"body": "b"}], table="notes")
    answer = await place.send(Mode.CREATE, [{"body": body} for body in "abc"], table="notes", each=True)
    held = {body: number for number, body in await place.rows("SELECT id, body FROM notes")}
    assert [verdict.id for verdict in answer.verdicts] == [held["a"], None, held["c"]]


@pytest.mark.covers("BX-028", "BX-102")
async def test_five_old_and_five_new_records_are_five_updated_and_five_created(place: Place):
    await place.products()
    await place.send(Mode.CREATE, [product(n) for n in range(5)])
    answer = await place.send(Mode.UPSERT, [product(n, note="new") for n in (7, 1, 9, 3, 5, 0, 2, 6, 4, 8)])
    assert outcomes(answer) == ["created" if n > 4 else "updated" for n in (7, 1, 9, 3, 5, 0, 2, 6, 4, 8)]
    assert answer.counts_exact


PLAIN = "CREATE TABLE plain (id integer, area integer, name varchar(20) NOT NULL, size integer, PRIMARY KEY (id, area))"


def plain(n: int, **more: object) -> dict[str, object]:
    return {"id": n, "area": n % 3, "name": f"name {n}", "size": n, **more}


async def plain_table(place: Place, old: Iterable[int]) -> None:
    await place.make("plain", PLAIN)
    await place.send(Mode.CREATE, [plain(n, size=-1) for n in old], table="plain")


async def test_an_upsert_of_a_table_with_one_key_tells_what_became_of_each_record(place: Place):
    await plain_table(place, range(0, 2500, 2))
    order = [n * 7 % 2500 for n in range(2500)]
    result = await place.target.upsert_multiple("plain", [plain(n) for n in order])
    assert [str(outcome) for outcome in result.outcomes] == ["created" if n % 2 else "updated" for n in order]
    assert [result.id_of(index) for index in range(2500)] == [(n, n % 3) for n in order]
    assert await place.rows("SELECT count(*), min(size) FROM plain") == [(2500, 0)]


async def test_a_bad_record_in_an_upsert_of_a_table_with_one_key_fails_alone(place: Place):
    await plain_table(place, range(0, 50, 2))
    result = await place.target.upsert_multiple("plain", [plain(n, name=None if n == 13 else "n") for n in range(50)])
    assert [(error.index, error.field) for error in result.errors] == [(13, "name")]
    assert (result.created_count, result.updated_count) == (24, 25)
    assert await place.rows("SELECT count(*) FROM plain WHERE name = 'n'") == [(49,)]


async def test_an_upsert_changes_rows_that_are_there_without_a_column_that_new_ones_need(place: Place):
    await plain_table(place, range(5))
    result = await place.target.upsert_multiple("plain", [{"id": n, "area": n % 3, "size": 9} for n in range(5)])
    assert result.updated_count == 5
    assert await place.rows("SELECT DISTINCT size FROM plain") == [(9,)]


@pytest.mark.databases("sqlite")
@pytest.mark.parametrize("clause", ["", "ON CONFLICT REPLACE", "on conflict ignore"])
async def test_keys_of_several_types_that_are_one_row_to_sqlite_are_one_row(place: Place, clause: str):
    await place.make("plain", f"CREATE TABLE plain (id integer PRIMARY KEY {clause}, size integer)")
    result = await place.target.upsert_multiple("plain", [{"id": "01", "size": 1}, {"id": "1", "size": 2}])
    assert sorted(map(str, result.outcomes)) == ["created", "updated"]
    assert await place.rows("SELECT count(*) FROM plain") == [(1,)]


async def test_an_upsert_finds_rows_by_another_unique_key_when_told(place: Place):
    await place.products()
    await place.send(Mode.CREATE, [product(1, code="a"), product(2, code="b")])
    records = [{"code": "b", "name": "changed"}, {"code": "c", "name": "new", "id": 3}]
    assert outcomes(await place.send(Mode.UPSERT, records, key=["code"])) == ["updated", "created"]
    assert await place.rows("SELECT id, name FROM products ORDER BY id") == [
        (1, "product 1"),
        (2, "changed"),
        (3, "new"),
    ]


async def test_an_upsert_never_changes_a_row_that_only_another_unique_key_points_at(place: Place):
    await place.products()
    await place.send(Mode.CREATE, [product(1, code="a")])
    error = await place.refused(Mode.UPSERT, [product(2, code="a")])
    assert error.kind is ErrorKind.DATA
    assert await place.rows("SELECT id, code FROM products") == [(1, "a")]


async def test_columns_a_record_does_not_name_keep_their_values_and_defaults(place: Place):
    await place.products()
    await place.send(Mode.CREATE, [product(1, note="first")])
    records = [{"id": 1, "name": "renamed"}, {"id": 2, "name": "new", "code": "x"}, {"id": 1, "price": 9}]
    assert outcomes(await place.send(Mode.UPSERT, records)) == ["updated", "created", "updated"]
    assert await place.rows("SELECT id, name, price, code, note FROM products ORDER BY id") == [
        (1, "renamed", 9, None, "first"),
        (2, "new", None, "x", "none"),
    ]


async def test_none_is_null_and_not_a_missing_column(place: Place):
    await place.products()
    await place.send(Mode.CREATE, [product(1, note="first")])
    await place.send(Mode.UPDATE, [{"id": 1, "note": None}])
    assert await place.rows("SELECT note FROM products") == [(None,)]


@pytest.mark.parametrize("mode", [Mode.UPDATE, Mode.UPSERT])
async def test_records_of_one_key_are_applied_in_their_order(place: Place, mode: Mode):
    await place.products()
    await place.send(Mode.CREATE, [product(1), product(2)])
    await place.send(mode, [product(1, note="a"), product(2, note="b"), product(1, note="c"), product(1, note="d")])
    assert await place.rows("SELECT note FROM products ORDER BY id") == [("d",), ("b",)]


async def test_a_record_deleted_twice_is_not_found_the_second_time(place: Place):
    await place.products()
    await place.send(Mode.CREATE, [product(1), product(2)])
    assert outcomes(await place.send(Mode.DELETE, [2, 1, 2])) == ["deleted", "deleted", "NOT_FOUND"]


async def test_whole_records_name_what_to_delete_by_their_keys(place: Place):
    await place.products()
    await place.send(Mode.CREATE, [product(1), product(2)])
    answer = await place.send(Mode.DELETE, [product(2, note="x"), {"id": 1}, {"name": "without a key"}])
    assert outcomes(answer) == ["deleted", "deleted", "MISSING_KEY"]


@pytest.mark.parametrize("each", [False, True])
async def test_a_missing_record_fails_alone_and_by_name(place: Place, each: bool):
    await place.products()
    await place.send(Mode.CREATE, [product(1), product(3)])
    updated = await place.send(Mode.UPDATE, [product(n, note="x") for n in (3, 2, 1)], each=each)
    assert outcomes(updated) == ["updated", "NOT_FOUND", "updated"]
    assert str(updated.verdicts[1].error).endswith("products has no row with id=2")
    assert outcomes(await place.send(Mode.DELETE, [3, 2, 1], each=each)) == ["deleted", "NOT_FOUND", "deleted"]


@pytest.mark.parametrize("each", [False, True])
@pytest.mark.parametrize("mode", [Mode.UPDATE, Mode.UPSERT])
async def test_rows_that_hold_what_was_sent_are_left_alone_when_told(place: Place, mode: Mode, each: bool):
    await place.products()
    await place.send(Mode.CREATE, [product(1, note="same"), product(2, note="Other"), product(3, note=None)])
    records = [product(1, note="same"), product(2, note="other"), product(3, note=None)]
    answer = await place.send(mode, records, each=each, update_only_changed=True)
    assert outcomes(answer) == ["unchanged", "updated", "unchanged"]
    assert await place.rows("SELECT note FROM products WHERE id = 2") == [("other",)]


async def test_an_upsert_of_keys_alone_creates_what_is_missing_and_changes_nothing(place: Place):
    await place.make("tags", "CREATE TABLE tags (name varchar(20) PRIMARY KEY)")
    assert outcomes(await place.send(Mode.UPSERT, [{"name": "b"}, {"name": "a"}], table="tags")) == ["created"] * 2
    answer = await place.send(Mode.UPSERT, [{"name": "c"}, {"name": "a"}], table="tags")
    assert outcomes(answer) == ["created", "unchanged"]


async def test_a_key_of_several_columns_identifies_records(place: Place):
    await place.make(
        "stock", "CREATE TABLE stock (shop varchar(9), item integer, pieces integer, PRIMARY KEY (shop, item))"
    )
    records = [{"item": item, "shop": shop, "pieces": 1} for shop, item in (("b", 1), ("a", 2), ("a", 1))]
    created = await place.send(Mode.CREATE, records, table="stock")
    assert [verdict.id for verdict in created.verdicts] == [("b", 1), ("a", 2), ("a", 1)]
    mixed = [{"shop": "a", "item": 1, "pieces": 5}, {"shop": "c", "item": 1, "pieces": 6}]
    assert outcomes(await place.send(Mode.UPSERT, mixed, table="stock")) == ["updated", "created"]
    gone = await place.send(Mode.DELETE, [("a", 2), {"shop": "c", "item": 1}, ("z", 9)], table="stock")
    assert outcomes(gone) == ["deleted", "deleted", "NOT_FOUND"]
    assert await place.rows("SELECT * FROM stock ORDER BY 1, 2") == [("a", 1, 5), ("b", 1, 1)]


@pytest.mark.databases("mariadb", "sqlite")
@pytest.mark.parametrize("clause", ["", "ON CONFLICT REPLACE"])
async def test_keys_that_differ_in_case_are_one_row_where_the_table_says_so(place: Place, clause: str):
    collate, clause = ("COLLATE NOCASE", clause) if place.kind == "sqlite" else ("", "")
    await place.make("tags", f"CREATE TABLE tags (name varchar(20) {collate} PRIMARY KEY {clause}, hits integer)")
    answer = await place.send(Mode.UPSERT, [{"name": "Ab", "hits": 1}, {"name": "aB", "hits": 2}], table="tags")
    assert outcomes(answer) == ["created", "updated"]
    assert await place.rows("SELECT name, hits FROM tags") == [("Ab", 2)]


@pytest.mark.databases("sqlite")
@pytest.mark.parametrize(("of_column", "of_index", "rows"), [("BINARY", "NOCASE", 1), ("NOCASE", "BINARY", 2)])
async def test_the_index_says_which_keys_are_one_row_not_the_column(place, of_column, of_index, rows):
    key = f"PRIMARY KEY (name COLLATE {of_index})"
    await place.make("tags", f"CREATE TABLE tags (name text COLLATE {of_column}, hits integer, {key})")
    for at_once in (True, False):
        for hits, name in enumerate(("Ab", "aB")):
            await place.send(Mode.UPSERT, [{"name": name, "hits": hits}], table="tags", each=not at_once)
        expected = [("Ab", 1)] if rows == 1 else [("Ab", 0), ("aB", 1)]
        assert await place.rows("SELECT name, hits FROM tags") == expected
    both = [{"name": "Ab", "hits": 5}, {"name": "aB", "hits": 6}]
    assert outcomes(await place.send(Mode.UPSERT, both, table="tags")) == ["updated", "updated"]
    assert await place.rows("SELECT hits FROM tags") == ([(6,)] if rows == 1 else [(5,), (6,)])
    gone = await place.send(Mode.DELETE, ["AB"], table="tags")
    assert outcomes(gone) == (["deleted"] if rows == 1 else ["NOT_FOUND"])


async def test_values_of_many_types_arrive_as_what_they_are(place: Place):
    kinds = {
        "postgresql": "u uuid, d date, t timestamptz, n numeric(12,4), b bytea, j jsonb, f float8, x boolean",
        "mariadb": "u char(36), d date, t datetime(6), n decimal(12,4), b blob, j json, f double, x boolean",
        "sqlite": "u text, d text, t text, n text, b blob, j text, f real, x integer",
    }
    await place.make("kinds", f"CREATE TABLE kinds (id integer PRIMARY KEY, {kinds[place.kind]})")
    moment = datetime(2024, 2, 29, 12, 30, 1, 5, tzinfo=UTC)
    record = {"id": 1, "u": UUID(int=7), "d": date(2024, 2, 29), "t": moment, "n": Decimal("12.3400")}
    record |= {"b": b"\xff\x00'\\%", "j": {"a": [1, "é\\'%s"]}, "f": 0.1, "x": True}
    for mode in (Mode.CREATE, Mode.UPDATE, Mode.UPSERT):
        await place.send(mode, [record], table="kinds")
        (row,) = await place.rows("SELECT u, d, t, n, b, j, f, x FROM kinds")
        assert str(row[0]) == str(UUID(int=7))
        assert str(row[1]) == "2024-02-29"
        assert str(row[2]).startswith("2024-02-29 12:30:01.000005")
        assert Decimal(row[3]) == Decimal("12.34")
        assert (bytes(row[4]), row[6], bool(row[7])) == (b"\xff\x00'\\%", 0.1, True)
        assert row[5].replace(" ", "") == '{"a":[1,"é\\\\\'%s"]}'


async def test_hostile_names_are_only_names(place: Place):
    quote = "`" if place.kind == "mariadb" else '"'
    table, column = "odd %s table", "it's; DROP TABLE x --%"
    await place.make(
        f"{quote}{table}{quote}",
        f"CREATE TABLE {quote}{table}{quote} (id integer PRIMARY KEY, {quote}{column}{quote} text)",
    )
    for mode in (Mode.CREATE, Mode.UPDATE, Mode.UPSERT):
        await place.send(mode, [{"id": 1, column: f"{mode} %s"}], table=table)
        assert await place.rows(f"SELECT * FROM {quote}{table}{quote}") == [(1, f"{mode} %s")]
    await place.send(Mode.UPDATE, [{"id": 1, column: "each"}], table=table, each=True, update_only_changed=True)
    assert outcomes(await place.send(Mode.DELETE, [1], table=table)) == ["deleted"]


@pytest.mark.databases("postgresql", "mariadb")
async def test_a_table_can_be_named_with_its_schema(place: Place):
    await place.run("DROP SCHEMA IF EXISTS penstock_shop" + (" CASCADE" if place.kind == "postgresql" else ""))
    await place.run("CREATE SCHEMA penstock_shop")
    await place.run("CREATE TABLE penstock_shop.items (id integer PRIMARY KEY, name text)")
    await place.send(Mode.CREATE, [{"id": 1, "name": "a"}], table="penstock_shop.items")
    assert await place.rows("SELECT name FROM penstock_shop.items") == [("a",)]


async def test_a_view_or_an_unknown_table_is_refused_by_name(place: Place):
    await place.products()
    await place.run("DROP VIEW IF EXISTS cheap")
    await place.run("CREATE VIEW cheap AS SELECT * FROM products")
    assert "'cheap' is a view, not a table" in str(await place.refused(Mode.CREATE, [product(1)], table="cheap"))
    error = await place.refused(Mode.CREATE, [product(1)], table="nowhere")
    assert (error.code, str(error)) == ("NO_SUCH_TABLE", "there is no table 'nowhere'")


async def test_a_table_without_a_key_takes_new_rows_that_have_no_id(place: Place):
    await place.make("log", "CREATE TABLE log (line text)")
    answer = await place.send(Mode.CREATE, [{"line": "a"}, {"line": "a"}], table="log")
    assert [(verdict.outcome, verdict.id) for verdict in answer.verdicts] == [("created", None)] * 2
    assert "has no primary key" in str(await place.refused(Mode.DELETE, ["a"], table="log"))


async def test_a_record_that_cannot_be_sent_fails_alone(place: Place):
    await place.products()
    answer = await place.send(Mode.UPSERT, [product(1), {"name": "no key"}, product(2, colour="red")])
    assert outcomes(answer) == ["created", "MISSING_KEY", "UNKNOWN_COLUMN"]
    assert await place.rows("SELECT id FROM products") == [(1,)]


async def test_a_record_that_cannot_be_sent_fails_its_batch_when_batches_stay_whole(place: Place):
    await place.products()
    error = await place.refused(Mode.UPSERT, [product(1), {"name": "no key"}], isolate=False)
    assert (error.code, error.suspects) == ("MISSING_KEY", (1,))
    assert await place.rows("SELECT id FROM products") == []


async def test_a_table_that_was_changed_meanwhile_is_looked_up_again(place: Place):
    await place.products()
    await place.send(Mode.CREATE, [product(1, note="a")])
    await place.run("ALTER TABLE products DROP COLUMN note")
    error = await place.refused(Mode.UPDATE, [product(1, note="b")])
    assert error.kind is ErrorKind.RACE
    assert outcomes(await place.send(Mode.UPDATE, [product(1, note="b")])) == ["UNKNOWN_COLUMN"]
    assert outcomes(await place.send(Mode.UPDATE, [product(1)])) == ["updated"]


async def test_a_new_column_is_known_to_the_next_call(place: Place):
    await place.products()
    await place.send(Mode.CREATE, [product(1)])
    await place.run("ALTER TABLE products ADD COLUMN colour varchar(9)")
    await place.target.describe("products", Mode.UPDATE, BulkOptions(), "default")
    assert outcomes(await place.send(Mode.UPDATE, [product(1, colour="red")])) == ["updated"]


@pytest.mark.databases("postgresql", "mariadb")
async def test_batches_of_new_keys_side_by_side_do_not_deadlock(place: Place):
    await place.products()
    for turn in range(10):
        batches = [batch(Mode.UPSERT, [product(turn * 1000 + n * 4 + side) for n in range(100)]) for side in range(4)]
        answers = await asyncio.gather(*(place.target.send(one, "default") for one in batches))
        assert all(set(outcomes(answer)) == {"created"} for answer in answers)


@pytest.mark.databases("postgresql", "mariadb")
@pytest.mark.parametrize("mode", [Mode.UPDATE, Mode.UPSERT])
async def test_batches_that_share_rows_in_other_orders_do_not_deadlock(place: Place, mode: Mode):
    await place.products()
    await place.send(Mode.CREATE, [product(n) for n in range(200)])
    orders = [range(200), range(199, -1, -1), [n * 37 % 200 for n in range(200)], [n * 91 % 200 for n in range(200)]]
    batches = [batch(mode, [product(n, note=str(turn)) for n in order]) for turn in range(5) for order in orders]
    answers = await asyncio.gather(*(place.target.send(one, "default") for one in batches))
    assert all(set(outcomes(answer)) == {"updated"} for answer in answers)


@pytest.mark.databases("mariadb")
@pytest.mark.parametrize("mode", [Mode.UPDATE, Mode.UPSERT])
async def test_null_for_a_column_that_takes_none_is_refused_where_a_trigger_runs_first(place: Place, mode: Mode):
    await place.make(
        "strict", "CREATE TABLE strict (id integer PRIMARY KEY, name varchar(9) NOT NULL, n integer NOT NULL)"
    )
    await place.run("CREATE TRIGGER strict_first BEFORE UPDATE ON strict FOR EACH ROW SET NEW.n = IFNULL(NEW.n, 7)")
    await place.run("INSERT INTO strict VALUES (1, 'a', 1), (2, 'b', 2), (3, 'c', 3)")
    records = [{"id": 1, "name": "x", "n": 1}, {"id": 2, "name": None, "n": 2}, {"id": 3, "name": "z", "n": None}]
    answer = await place.target.send_each(batch(mode, records, table="strict"), "default")
    assert outcomes(answer) == ["updated", "1048", "updated"]
    assert await place.rows("SELECT * FROM strict ORDER BY id") == [(1, "x", 1), (2, "b", 2), (3, "z", 7)]


STRICT = "name varchar(9) NOT NULL, n integer NOT NULL, note varchar(9)"


@pytest.mark.databases("mariadb")
@pytest.mark.parametrize("mode", [Mode.UPDATE, Mode.UPSERT])
async def test_a_batch_with_nulls_that_a_trigger_fills_in_writes_rows_of_all_shapes(place: Place, mode: Mode):
    await place.make("strict", f"CREATE TABLE strict (id integer PRIMARY KEY, {STRICT})")
    await place.run("CREATE TRIGGER strict_first BEFORE UPDATE ON strict FOR EACH ROW SET NEW.n = IFNULL(NEW.n, 7)")
    await place.run("INSERT INTO strict SELECT seq, 'old', seq, 'old' FROM seq_1_to_5")
    records = [
        {"id": 5, "name": "e", "n": None, "note": "whole"},
        {"id": 4, "n": None},
        {"id": 3, "n": 30, "name": "c"},
        {"id": 2, "n": None, "note": None, "name": "b"},
        {"id": 1, "n": 10},
    ]
    assert outcomes(await place.send(mode, records, table="strict")) == ["updated"] * 5
    assert await place.rows("SELECT * FROM strict ORDER BY id") == [
        (1, "old", 10, "old"),
        (2, "b", 7, None),
        (3, "c", 30, "old"),
        (4, "old", 7, "old"),
        (5, "e", 7, "whole"),
    ]


@pytest.mark.databases("mariadb")
@pytest.mark.parametrize("mode", [Mode.UPDATE, Mode.UPSERT])
async def test_a_null_that_no_trigger_fills_in_is_refused_with_its_record_named(place: Place, mode: Mode):
    await place.make("strict", f"CREATE TABLE strict (id integer PRIMARY KEY, {STRICT})")
    await place.run("CREATE TRIGGER strict_first BEFORE UPDATE ON strict FOR EACH ROW SET NEW.n = IFNULL(NEW.n, 7)")
    await place.run("INSERT INTO strict VALUES (1, 'a', 1, 'old'), (2, 'b', 2, 'old'), (3, 'c', 3, 'old')")
    records = [{"id": 3, "name": "z", "n": None}, {"id": 1, "n": 10}, {"id": 2, "name": None, "n": 20}]
    error = await place.refused(mode, records, table="strict")
    assert (error.code, error.field, error.suspects) == ("1048", "name", (2,))
    assert await place.rows("SELECT n FROM strict ORDER BY id") == [(1,), (2,), (3,)]
    result = await BulkExecutor(place.target).start(mode, "strict", records)
    assert [str(outcome) for outcome in result.outcomes] == ["updated", "updated", "failed"]
    assert await place.rows("SELECT name, n FROM strict ORDER BY id") == [("a", 10), ("b", 2), ("z", 7)]


@pytest.mark.databases("mariadb")
@pytest.mark.parametrize(
    "kind, held, given",
    [
        ("decimal(6,2)", "1.00", Decimal("1.001")),
        ("decimal(6,2) unsigned", "1.00", Decimal("0.999")),
        ("varchar(9) CHARACTER SET latin1 COLLATE latin1_general_cs", "'é'", "é"),
        ("varchar(9) COLLATE utf8mb4_general_ci", "'É'", "e "),
    ],
)
@pytest.mark.parametrize("mode", [Mode.UPDATE, Mode.UPSERT])
async def test_a_row_with_a_null_is_matched_as_its_key_is_held(
    place: Place, kind: str, held: str, given: object, mode: Mode
):
    await place.make("strict", f"CREATE TABLE strict (id {kind} PRIMARY KEY, name varchar(9), n integer NOT NULL)")
    await place.run("CREATE TRIGGER strict_first BEFORE UPDATE ON strict FOR EACH ROW SET NEW.n = IFNULL(NEW.n, 7)")
    await place.run(f"INSERT INTO strict VALUES ({held}, 'old', 1)")
    answer = await place.send(mode, [{"id": given, "name": "new", "n": None}], table="strict")
    assert outcomes(answer) == ["updated"]
    assert await place.rows("SELECT name, n FROM strict") == [("new", 7)]


@pytest.mark.databases("sqlite", "mariadb")
async def test_a_number_that_the_database_does_not_have_fails_its_record(place: Place):
    value = float("nan")
    await place.make("measured", "CREATE TABLE measured (id integer PRIMARY KEY, value double precision)")
    answer = await place.send(Mode.CREATE, [{"id": 1, "value": 1.5}, {"id": 2, "value": value}], table="measured")
    assert outcomes(answer) == ["created", "BAD_TYPE"]
    assert await place.rows("SELECT * FROM measured") == [(1, 1.5)]


ALIKE = {
    "postgresql": {
        "uuid": ["7C0E8F00-0000-4000-8000-000000000001", "7c0e8f00-0000-4000-8000-000000000001"],
        "char(5)": ["a", "a  "],
        "numeric(6,2)": [Decimal("1.001"), Decimal("1.0")],
        "citext": ["A", "a"],
    },
    "mariadb": {
        "varchar(20) COLLATE utf8mb4_general_ci": ["É", "e "],
        "char(5)": ["a", "a  "],
        "decimal(6,2)": [Decimal("1.001"), Decimal("1.0")],
    },
}


@pytest.mark.databases("postgresql", "mariadb")
@pytest.mark.parametrize("place_in_list", range(4))
@pytest.mark.parametrize("batch_size", [1, 100])
async def test_keys_that_only_the_database_calls_equal_are_applied_in_order(
    place: Place, place_in_list: int, batch_size: int
):
    kinds = list(ALIKE[place.kind].items())
    kind, (first, second) = kinds[place_in_list % len(kinds)]
    if kind == "citext":
        await place.run("CREATE EXTENSION IF NOT EXISTS citext")
    await place.make("alike", f"CREATE TABLE alike (id {kind} PRIMARY KEY, n integer)")
    records = [{"id": first if n % 2 else second, "n": n} for n in range(40)]
    result = await BulkExecutor(place.target, options=SqlOptions(batch_size=batch_size)).upsert_multiple(
        "alike", records
    )
    assert [str(outcome) for outcome in result.outcomes] == ["created"] + ["updated"] * 39
    assert await place.rows("SELECT n FROM alike") == [(39,)]


@pytest.mark.databases("postgresql")
@pytest.mark.parametrize(
    "kind, old, new",
    [
        ("box", "(1,1),(0,0)", "(2,2),(1,1)"),
        ("circle", "<(0,0),1>", "<(1,1),1>"),
        ("json[]", '{"1"}', '{"2"}'),
    ],
)
@pytest.mark.parametrize("mode", [Mode.UPDATE, Mode.UPSERT])
async def test_a_change_is_seen_in_types_that_compare_loosely(place: Place, kind: str, old: str, new: str, mode: Mode):
    await place.make("shapes", f"CREATE TABLE shapes (id integer PRIMARY KEY, value {kind})")
    await place.run(f"INSERT INTO shapes VALUES (1, '{old}'), (2, '{new}')")
    value = (await place.rows("SELECT value FROM shapes WHERE id = 2"))[0][0]
    records = [{"id": 1, "value": value}, {"id": 2, "value": value}]
    answer = await place.target.send(batch(mode, records, table="shapes", update_only_changed=True), "default")
    assert outcomes(answer) == ["updated", "unchanged"]


@pytest.mark.databases("postgresql", "mariadb")
@pytest.mark.parametrize("beside", [1.5, Decimal("0E-10"), Decimal("1E+3")])
@pytest.mark.parametrize("mode", [Mode.UPDATE, Mode.UPSERT])
async def test_exact_numbers_stay_exact_whatever_numbers_stand_beside_them(
    place: Place, mode: Mode, beside: float | Decimal
):
    await place.make("sums", "CREATE TABLE sums (id integer PRIMARY KEY, big bigint, amount numeric(30,10))")
    await place.run("INSERT INTO sums VALUES (1, 0, 0), (2, 0, 0)")
    amount = Decimal("12345678901234567.1234567891")
    records = [
        {"id": 1, "big": 2**53 + 1, "amount": amount},
        {"id": 2, "big": None if isinstance(beside, Decimal) else 4.0, "amount": beside},
    ]
    assert outcomes(await place.send(mode, records, table="sums")) == ["updated"] * 2
    assert await place.rows("SELECT big, amount FROM sums WHERE id = 1") == [(2**53 + 1, amount)]
    again = await place.send(mode, records, table="sums", update_only_changed=True)
    assert outcomes(again) == ["unchanged"] * 2
