"""The first call anyone makes: three lines, a plain script, and texts as a CSV file has them."""

from __future__ import annotations

import asyncio
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from threading import Thread
from traceback import format_exception

import pytest
from patience import HANG_S
from sql_places import Place

from penstock import targets
from penstock.targets import (
    BulkExecutor,
    BulkOptions,
    BulkResult,
    ErrorKind,
    Mode,
    Pool,
    RetryPolicy,
    SqliteTarget,
    SqlOptions,
    open_target,
)
from penstock.targets.model import BadInput

ROWS = [{"id": n, "name": f"n{n}", "price": n} for n in range(3)]


def address(place: Place) -> str:
    return place.url if "://" in place.url else f"sqlite:///{place.url}"


async def test_three_lines_are_enough(place: Place):
    await place.products()
    async with open_target(address(place)) as target:
        result = await target.upsert_multiple("products", ROWS, key="id")
    assert (result.created_count, result.is_success) == (3, True)
    assert [result.id_of(index) for index in range(3)] == [0, 1, 2]


@pytest.mark.covers("BX-005")
async def test_a_script_needs_no_event_loop(place: Place):
    await place.products()

    def script() -> list[int | None]:
        made = targets.create(address(place), "products", ROWS)
        changed = targets.update(address(place), "products", [{"id": 1, "name": "b"}])
        both = targets.upsert(address(place), "products", ROWS, key="id", update_only_changed=True)
        gone = targets.delete(address(place), "products", [0, 2])
        return [made.success_count, changed.success_count, both.updated_count, gone.success_count]

    assert await asyncio.to_thread(script) == [3, 1, 1, 2]
    assert await place.rows("SELECT id FROM products") == [(1,)]


async def test_a_target_serves_another_thread_while_a_call_of_this_one_is_under_way(place: Place):
    """Its slots, connections and locks are those of each event loop."""
    await place.products()
    beside: list[BulkResult] = []

    def script() -> None:
        beside.append(targets.upsert(place.target, "products", [{"id": 10 + len(beside), "name": "b"}]))

    def in_another_thread(_: object) -> None:
        thread = Thread(target=script)
        thread.start()
        thread.join(HANG_S)

    async with asyncio.timeout(HANG_S):
        options = SqlOptions(batch_size=1, on_outcomes=in_another_thread)
        result = await place.target.upsert_multiple("products", ROWS, options)
    assert [one.is_success for one in (result, *beside)] == [True] * 4
    assert await place.rows("SELECT id FROM products ORDER BY id") == [(0,), (1,), (2,), (10,), (11,), (12,)]


async def test_a_target_keeps_to_the_pool_that_it_was_given():
    target = SqliteTarget(":memory:")
    made = BulkExecutor(target).pool
    target.slot_pool = Pool.of(target)
    assert made is not BulkExecutor(target).pool is target.slot_pool


async def test_a_pool_that_was_given_is_refused_in_a_second_thread_while_the_first_uses_it(tmp_path: Path):
    target = SqliteTarget(tmp_path / "mistyped.db")
    executor = BulkExecutor(target, pool=Pool.of(target))
    await executor.create_multiple("products", ROWS)
    with pytest.raises(BadInput, match="another thread uses this pool now"):
        await asyncio.to_thread(lambda: asyncio.run(created(executor)))


async def created(executor: BulkExecutor) -> None:
    await executor.create_multiple("products", ROWS)


async def test_a_script_in_an_event_loop_is_told_what_to_write_instead():
    with pytest.raises(BadInput, match=r"await target\.upsert_multiple"):
        targets.upsert("sqlite:///shop.db", "products", ROWS)


@pytest.mark.parametrize(
    "url, said",
    [
        ("postgresql:///", "postgresql://user:password@host:5432/name"),
        ("mariadb://host", "mariadb://user:password@host:3306/name"),
        ("sqlite://", "shop.db or sqlite:///shop.db"),
        ("sqlite:////nowhere/shop.db", "its folder is not there"),
        ("sqlite:////tmp", "is a folder"),
        ("oracle://host/name", "the address of a target is postgresql"),
        ("https://org.crm.dynamics.com", "make a DataverseTarget or an HttpTarget"),
        ("shop.db", "the address of a target is postgresql"),
    ],
)
def test_a_wrong_address_is_refused_at_once(url: str, said: str):
    with pytest.raises(BadInput, match=said):
        open_target(url)


@pytest.mark.parametrize("scheme", ["postgresql", "mariadb"])
@pytest.mark.parametrize("password", ["s3cret/word", "s3cret#word", "s3cret?word", "s3cret[word"])
def test_an_address_with_a_password_that_is_not_encoded_is_refused_without_it(scheme: str, password: str):
    with pytest.raises(BadInput, match=f"{scheme}://user:password@host") as caught:
        open_target(f"{scheme}://me:{password}@localhost/shop")
    assert "s3cret" not in "".join(format_exception(caught.value))


@pytest.mark.parametrize("servers", ["one:5432,two:5433,three", "[::1]:5432"])
def test_an_address_may_name_several_servers_and_numbers(servers: str):
    open_target(f"postgresql://me:secret@{servers}/shop")


async def test_a_file_that_is_not_there_is_no_empty_database(tmp_path: Path):
    async with SqliteTarget(tmp_path / "mistyped.db") as target:
        result = await target.create_multiple("products", ROWS)
    assert "there is no file" in result.errors[0].message
    assert not (tmp_path / "mistyped.db").exists()


def test_options_of_a_call_are_laid_over_those_of_the_executor():
    base = SqlOptions(batch_size=500, update_only_changed=True, continue_on_error=False)
    executor = BulkExecutor(SqliteTarget(":memory:"), options=base)
    laid = executor.chosen(BulkOptions(batch_size=100, continue_on_error=True), key="id")
    assert laid == SqlOptions(batch_size=100, update_only_changed=True, continue_on_error=True, key="id")
    assert executor.chosen(None) == base


def test_an_option_that_the_target_does_not_have_is_named():
    with pytest.raises(
        BadInput, match=r"SQLite has no option batchsize, tag; it has: batch_size, .*update_only_changed"
    ):
        BulkExecutor(SqliteTarget(":memory:")).chosen(None, batchsize=5, tag="x")


async def test_tables_get_batches_of_thousands(place: Place):
    await place.products()
    result = await place.target.create_multiple("products", ({"id": n, "name": "n"} for n in range(12_000)))
    assert (result.statistics.calls, result.statistics.batch_size_max) == (2, 10_000)


def test_executors_of_one_target_share_its_slots():
    target = SqliteTarget(":memory:")
    assert BulkExecutor(target).pool is BulkExecutor(target, options=BulkOptions(batch_size=7)).pool
    assert BulkExecutor(target).pool is BulkExecutor(target, policy=RetryPolicy(retries_max=1)).pool


def test_a_policy_is_for_the_executor_it_was_given_to():
    target, policy = SqliteTarget(":memory:"), RetryPolicy(retries_max=1)
    assert (BulkExecutor(target, policy=policy).policy, BulkExecutor(target).policy) == (policy, RetryPolicy())


TYPED = {
    "postgresql": "small smallint, big bigint, price numeric(8,2), ratio double precision, is_on boolean, born date, "
    "seen timestamp, span interval, sizes integer[]",
    "mariadb": "small smallint, big bigint, price numeric(8,2), ratio double, born date, seen datetime",
    "sqlite": "small integer, big integer, price numeric, ratio real",
}
TEXTS = {
    "small": " 7 ", "big": "-9000000000", "price": "12.50", "ratio": "1e3", "is_on": "Yes", "born": "2024-02-29",
    "seen": "2024-02-29 12:30:00", "span": "2 days", "sizes": "{1,2}",
}  # fmt: skip


@pytest.mark.parametrize("count", [1, 2500])
@pytest.mark.parametrize("mode", [Mode.CREATE, Mode.UPSERT])
async def test_texts_are_read_as_the_database_reads_them(place: Place, mode: Mode, count: int):
    columns = [column.split()[0] for column in TYPED[place.kind].split(", ")]
    await place.make("typed", f"CREATE TABLE typed (id integer PRIMARY KEY, {TYPED[place.kind]})")
    records = [{"id": str(n)} | {name: TEXTS[name] for name in columns} for n in range(count)]
    result = await place.target.start(mode, "typed", records)
    assert result.is_success, result.errors[:1]
    (row,) = await place.rows(f"SELECT {', '.join(columns[:6])} FROM typed WHERE id = {count - 1}")
    found = dict(zip(columns, row, strict=False))
    assert (found["small"], found["big"], float(found["price"]), found["ratio"]) == (7, -9000000000, 12.5, 1000.0)
    if place.kind != "sqlite":
        assert (found["price"], found["born"]) == (Decimal("12.50"), date(2024, 2, 29))


@pytest.mark.databases("postgresql", "mariadb")
@pytest.mark.parametrize(
    "column, text",
    [
        ("small", "1_000"),
        ("big", "٧"),
        ("price", "1_0.5"),
        ("ratio", "1_0.5"),
        ("ratio", "1e400"),
    ],
)
async def test_what_only_python_reads_as_a_number_is_none(place: Place, column: str, text: str):
    await place.make("typed", f"CREATE TABLE typed (id integer PRIMARY KEY, {TYPED[place.kind]})")
    result = await place.target.create_multiple("typed", [{"id": 1, column: "1"}, {"id": 2, column: text}])
    assert [(error.index, error.kind, error.field) for error in result.errors] == [(1, ErrorKind.DATA, column)]
    assert await place.rows("SELECT id FROM typed") == [(1,)]


@pytest.mark.databases("mariadb")
@pytest.mark.parametrize("price", ["NaN", Decimal("NaN"), Decimal("-Infinity"), "infinity"])
async def test_a_decimal_that_is_no_number_fails_alone(place: Place, price: object):
    await place.products()
    records = [{"id": n, "name": "n", "price": price if n == 1 else n} for n in range(3)]
    result = await place.target.upsert_multiple("products", records)
    assert [(error.index, error.code, error.field) for error in result.errors] == [(1, "BAD_TYPE", "price")]
    assert (result.created_count, dict(result.statistics.retries)) == (2, {})


@pytest.mark.databases("postgresql", "mariadb")
async def test_texts_and_values_of_the_type_may_stand_in_one_column(place: Place):
    await place.make("typed", f"CREATE TABLE typed (id integer PRIMARY KEY, {TYPED[place.kind]})")
    records = [
        {"id": 1, "small": 1, "born": date(2024, 1, 1), "seen": datetime(2024, 1, 1, 5)},
        {"id": "2", "small": "2", "born": "2024-01-02", "seen": "2024-01-01 05:00:00"},
        {"id": 3, "small": None, "born": None, "seen": None},
    ]
    result = await place.target.upsert_multiple("typed", records)
    assert result.is_success, result.errors
    rows = await place.rows("SELECT id, small, born, seen FROM typed ORDER BY id")
    moment = datetime(2024, 1, 1, 5)
    assert rows == [(1, 1, date(2024, 1, 1), moment), (2, 2, date(2024, 1, 2), moment), (3, None, None, None)]


@pytest.mark.databases("postgresql", "mariadb")
@pytest.mark.parametrize(
    "column, text", [("small", "seven"), ("price", "cheap"), ("born", "yesterday was"), ("id", "x")]
)
@pytest.mark.parametrize("others", [0, 30])
async def test_a_text_that_means_nothing_fails_its_record_and_names_the_column(
    place: Place, column: str, text: str, others: int
):
    await place.make("typed", f"CREATE TABLE typed (id integer PRIMARY KEY, {TYPED[place.kind]})")
    good = [{"id": str(n), "small": "1", "price": "2", "born": "2024-01-01"} for n in range(others)]
    bad = {"id": "99", "small": "1", "price": "2", "born": "2024-01-01", column: text}
    result = await place.target.upsert_multiple("typed", [*good, bad])
    assert (result.success_count, result.failure_count) == (others, 1)
    error = result.errors[0]
    assert (error.index, error.kind, error.field) == (others, "data", column)
    assert column in error.message


WRONG = [
    ("uuid", "{6f1e4b7e-0000-4000-8000-00000000000", "6f1e4b7e-0000-4000-8000-000000000001"),
    ("real", "1e39", "1e38"),
    ("mood", "gloomy", "glad"),
    ("json", "{'a': 1}", '{"a": 1}'),
    ("numeric(5,2)", "1234", "123.456"),
    ("varchar(4)", "abcde", "abcd  "),
    ("cidr", "10.0.0.1/8", "10.0.0.0/8"),
    ("oid", "x", "12"),
    ("pair", "1,2", "(1,2)"),
]


@pytest.mark.databases("postgresql")
@pytest.mark.parametrize("others", [1, 30])
@pytest.mark.parametrize("kind, wrong, right", WRONG)
async def test_a_text_that_postgresql_refuses_names_its_column(
    place: Place, kind: str, wrong: str, right: str, others: int
):
    await place.run("DROP TYPE IF EXISTS mood, pair CASCADE")
    await place.run("CREATE TYPE mood AS ENUM ('glad', 'sad')")
    await place.run("CREATE TYPE pair AS (one integer, other integer)")
    await place.make("typed", f"CREATE TABLE typed (id integer PRIMARY KEY, name text, value {kind}, more {kind})")
    records = [{"id": n, "name": right, "value": right, "more": right} for n in range(others)]
    result = await place.target.create_multiple("typed", [*records, {"id": -1, "name": wrong, "more": wrong}])
    assert result.success_count == others
    assert [(error.index, error.kind, error.field) for error in result.errors] == [(others, "data", "more")]
    assert "'more'" in result.errors[0].message


@pytest.mark.databases("postgresql", "mariadb")
async def test_records_of_one_key_keep_their_order_however_it_is_written(place: Place):
    await place.products()
    records = [{"id": key, "name": f"n{n}"} for n, key in enumerate([7, "7", " 07", 7])]
    result = await place.target.upsert_multiple("products", records, batch_size=1)
    assert result.is_success
    assert await place.rows("SELECT id, name FROM products") == [(7, "n3")]
