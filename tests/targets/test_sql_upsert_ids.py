"""What an upsert says of the ids of its records: their primary keys, whatever it goes by."""

from __future__ import annotations

import pytest
from sql_places import Place, Wire, batch

from penstock.targets.model import Mode, TargetError

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
