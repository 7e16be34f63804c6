"""What an upsert says of the ids of its records: their primary keys, whatever it goes by."""

from __future__ import annotations

from collections.abc import Callable
from datetime import date, timedelta

import pytest
from sql_places import Place, Wire, batch

from penstock.targets.model import Mode, Outcome, TargetError

CUSTOMERS = {
    "postgresql": "CREATE TABLE customers (id serial PRIMARY KEY, email text UNIQUE, name text CHECK (name <> 'bad'))",
    "mariadb": "CREATE TABLE customers (id integer PRIMARY KEY AUTO_INCREMENT, email varchar(50) UNIQUE, "
    "name varchar(20) CHECK (name <> 'bad'))",
    "sqlite": "CREATE TABLE customers (id integer PRIMARY KEY, email text UNIQUE, name text CHECK (name <> 'bad'))",
}


async def customers(place: Place) -> None:
    await place.make("customers", CUSTOMERS[place.kind])
    await place.run("INSERT INTO customers (id, email, name) VALUES (700, 'b@x', 'Bea')")


async def ids_by_email(place: Place) -> dict[str, int]:
    return {email: number for number, email in await place.rows("SELECT id, email FROM customers")}


@pytest.mark.parametrize("count", [3, 2500])
@pytest.mark.parametrize("only_changed", [False, True])
async def test_an_upsert_by_another_key_tells_the_primary_keys(place: Place, count: int, only_changed: bool):
    await customers(place)
    records = [{"email": f"{n}@x", "name": "n"} for n in range(count)] + [{"email": "b@x", "name": "Bea"}]
    result = await place.target.upsert_multiple("customers", records, key="email", update_only_changed=only_changed)
    held = await ids_by_email(place)
    assert [result.id_of(index) for index in range(count + 1)] == [held[record["email"]] for record in records]
    assert held["b@x"] == 700


async def test_the_others_have_their_ids_when_a_bad_record_was_looked_for(place: Place):
    await customers(place)
    records = [{"email": f"{n}@x", "name": "bad" if n == 2 else "n"} for n in range(5)]
    result = await place.target.upsert_multiple("customers", records, key="email")
    held = await ids_by_email(place)
    assert [error.index for error in result.errors] == [2]
    assert all(result.id_of(n) == held[f"{n}@x"] for n in (0, 1, 3, 4))


@pytest.mark.databases("postgresql")
@pytest.mark.parametrize("count", [3, 2500])
@pytest.mark.parametrize(
    "kind, old, new",
    [
        ("citext", "OLD@x", lambda n: f"{n}@X"),
        ("date", "1999-12-31", lambda n: str(date(2000, 1, 1) + timedelta(days=n))),
    ],
    ids=["citext", "dates as texts"],
)
async def test_keys_that_are_sent_as_texts_lead_to_the_primary_keys(
    place: Place, kind: str, old: str, new: Callable[[int], str], count: int
):
    await place.run("CREATE EXTENSION IF NOT EXISTS citext")
    await place.make("odd", f"CREATE TABLE odd (id serial PRIMARY KEY, key {kind} UNIQUE, name text)")
    first = await place.target.create_multiple("odd", [{"key": old, "name": "n"}])
    records = [{"key": old, "name": "o"}] + [{"key": new(n), "name": "n"} for n in range(count)]
    result = await place.target.upsert_multiple("odd", records, key="key")
    assert (result.updated_count, result.created_count) == (1, count)
    assert result.id_of(0) == first.id_of(0)
    told = {result.id_of(index) for index in range(count + 1)}
    assert told == {number for (number,) in await place.rows("SELECT id FROM odd")}


async def test_a_record_that_was_not_written_has_no_id_of_another_kind(place: Place):
    await customers(place)
    sent = batch(Mode.UPSERT, [{"email": "a@x", "name": "bad"}], table="customers", key="email")
    (verdict,) = (await place.target.send_each(sent, "default")).verdicts
    assert (verdict.outcome, verdict.id) == (Outcome.FAILED, None)


@pytest.mark.databases("postgresql", "mariadb")
async def test_ids_are_known_although_the_answer_was_lost(place: Place):
    await customers(place)
    sent = batch(
        Mode.UPSERT, [{"email": "a@x", "name": "Ann"}, {"email": "b@x", "name": "B"}], table="customers", key="email"
    )
    async with Wire(place.url) as wire:
        target = place.new_target(wire.url)
        wire.is_once, wire.cut = True, "after"
        with pytest.raises(TargetError, match=r".") as caught:
            await target.send(sent, "default")
        assert caught.value.maybe_applied
        told = await target.reconcile(sent, "default")
        await target.aclose()
    held = await ids_by_email(place)
    assert [one and one.id for one in told] == [held["a@x"], 700]
