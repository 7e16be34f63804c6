"""Bulk calls through the executor into real tables."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from sql_places import Place

from penstock.targets import BulkExecutor, Mode, Outcome, Progress
from penstock.targets.sql import SqlOptions


def product(n: int, **more: object) -> dict[str, object]:
    return {"id": n, "name": f"product {n}", "price": n, "code": f"c-{n}", **more}


BAD = {17: {"name": "x" * 21}, 18: {"price": -1}, 500: {"name": None}, 501: {"code": "taken"}, 999: {"colour": "red"}}


@pytest.mark.covers("BX-035", "BX-045", "BX-075", "BX-111")
async def test_the_bad_records_of_large_batches_fail_alone(place: Place):
    await place.products()
    executor = BulkExecutor(place.target, options=SqlOptions(batch_size=250))
    await executor.create_multiple("products", [product(5000, code="taken")])
    records = [product(n, **BAD.get(n, {})) for n in range(1000)]
    result = await executor.create_multiple("products", records)
    assert (result.success_count, result.failure_count) == (995, 5)
    assert [error.index for error in result.errors] == sorted(BAD)
    assert {error.field for error in result.errors if error.index in (500, 999)} == {"name", "colour"}
    assert list(result.created_ids or ()) == [n for n in range(1000) if n not in BAD]
    assert await place.rows("SELECT count(*) FROM products") == [(996,)]


@pytest.mark.covers("BX-102", "BX-049")
async def test_an_upsert_counts_created_and_updated(place: Place):
    await place.products()
    executor = BulkExecutor(place.target, options=SqlOptions(batch_size=3))
    await executor.create_multiple("products", [product(n) for n in range(5)])
    result = await executor.upsert_multiple("products", [product(n, note="x") for n in range(10)])
    assert (result.created_count, result.updated_count, result.counts_exact) == (5, 5, True)


@pytest.mark.covers("BX-101", "BX-103", "BX-105")
async def test_records_are_updated_and_deleted_with_progress_to_the_end(place: Place):
    await place.products()
    executor = BulkExecutor(place.target, options=SqlOptions(batch_size=100))
    await executor.create_multiple("products", [product(n) for n in range(250)])
    seen: list[Progress] = []
    updated = await executor.update_multiple("products", [product(n, note="x") for n in range(251)], None, seen.append)
    assert (updated.success_count, [error.code for error in updated.errors]) == (250, ["NOT_FOUND"])
    assert len(seen) >= 3
    assert seen[-1].percent_complete == 100
    assert (await executor.delete_multiple("products", list(range(250)))).is_success
    assert await place.rows("SELECT count(*) FROM products") == [(0,)]


async def test_many_records_of_one_key_are_applied_in_order_over_all_batches(place: Place):
    await place.products()
    executor = BulkExecutor(place.target, options=SqlOptions(batch_size=10, key=["code"]))
    records = [product(n % 7, code=f"c-{n % 7}", note=str(n)) for n in range(300)]
    result = await executor.upsert_multiple("products", records)
    assert (result.created_count, result.updated_count) == (7, 293)
    last = {n % 7: str(n) for n in range(300)}
    assert dict(await place.rows("SELECT id, note FROM products")) == last


async def test_unchanged_records_are_counted_as_such(place: Place):
    await place.products()
    executor = BulkExecutor(place.target, options=SqlOptions(update_only_changed=True))
    records = [product(n, note="x") for n in range(20)]
    await executor.upsert_multiple("products", records)
    result = await executor.upsert_multiple(
        "products", [*records[:15], *(product(n) | {"note": "y"} for n in range(15, 20))]
    )
    assert result.is_success
    assert (result.outcomes.count(Outcome.UNCHANGED), result.updated_count, result.created_count) == (15, 5, 0)


async def test_a_table_that_is_not_there_is_told_once_and_nothing_is_tried(place: Place):
    await place.products()
    executor = BulkExecutor(place.target)
    result = await executor.create_multiple("nowhere", [product(n) for n in range(300)])
    assert not result.is_success
    assert str(result.errors[0].message) == "there is no table 'nowhere'"
    assert result.success_count == 0


@pytest.mark.covers("BX-064")
async def test_a_call_knows_its_keys_while_another_one_looks_the_table_up(
    place: Place, monkeypatch: pytest.MonkeyPatch
):
    await place.products()
    target = place.target
    looked_up = asyncio.Event()
    options = SqlOptions(duplicates="error")
    await target.describe("products", Mode.UPSERT, options, "default")
    look_up = target._read_table

    async def slowly(name: str) -> Any:
        await looked_up.wait()
        return await look_up(name)

    monkeypatch.setattr(target, "_read_table", slowly)
    other = asyncio.ensure_future(target.describe("products", Mode.UPSERT, options, "default"))
    await asyncio.sleep(0)
    identify = target.identifier("products", Mode.UPSERT, options)
    looked_up.set()
    await other
    assert identify is not None
    assert identify({"id": 7}) == identify({"id": 7, "name": "other"}) is not None


@pytest.mark.parametrize("mode", [Mode.UPDATE, Mode.UPSERT, Mode.DELETE])
async def test_a_table_without_the_key_a_call_needs_fails_the_call_with_a_result(place: Place, mode: Mode):
    await place.products()
    await place.make("keyless", "CREATE TABLE keyless (id integer, name varchar(20))")
    records = [1, 2] if mode is Mode.DELETE else [{"id": n, "name": "a"} for n in range(2)]
    result = await BulkExecutor(place.target).start(mode, "keyless", records)
    assert (result.stopped_reason, result.failure_count) == ("systemic", 2)
    assert "has no primary key" in result.errors[0].message
    named = await BulkExecutor(place.target).start(mode, "products", records, SqlOptions(key=["note"]))
    assert (named.stopped_reason, named.failure_count) == ("systemic", 2)
    assert "no unique index on exactly (note)" in named.errors[0].message
