"""Whatever is sent, in whatever batches, a table ends up as a plain dictionary would."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sql_places import Place, batch, open_target, outcomes

from penstock.targets.model import Mode, TargetError

IDS = st.integers(0, 5)
RECORD = st.fixed_dictionaries(
    {"id": IDS, "name": st.one_of(st.sampled_from("ab"), st.just("x" * 21))},
    optional={"note": st.one_of(st.none(), st.sampled_from("pq"))},
)
BATCHES = st.lists(
    st.one_of(
        st.tuples(st.sampled_from([Mode.CREATE, Mode.UPDATE, Mode.UPSERT]), st.lists(RECORD, min_size=1, max_size=8)),
        st.tuples(st.just(Mode.DELETE), st.lists(IDS, min_size=1, max_size=4)),
    ),
    max_size=6,
)


class Model:
    """A table as a dictionary."""

    def __init__(self) -> None:
        self.rows: dict[int, tuple[str, str | None]] = {}

    def apply(self, mode: Mode, record: Any) -> str:
        """What becomes of one record."""
        if mode is Mode.DELETE:
            return "deleted" if self.rows.pop(record, None) else "NOT_FOUND"
        held = self.rows.get(record["id"])
        if (mode is Mode.CREATE and held) or (mode is Mode.UPDATE and not held):
            return "refused" if held else "NOT_FOUND"
        if len(record["name"]) > 20:
            return "refused"
        note = record.get("note", held[1] if held else "none")
        self.rows[record["id"]] = (record["name"], note)
        return "updated" if held else "created"


async def check(place: Place, batches: list[tuple[Mode, list[Any]]]) -> None:
    await place.run("DELETE FROM products")
    target = open_target(place.kind, place.url)
    model = Model()
    for mode, records in batches:
        before = dict(model.rows)
        expected = [model.apply(mode, record) for record in _in_order_of_writing(mode, records)]
        expected = [outcome for _, outcome in sorted(zip(_order(mode, records), expected, strict=True))]
        try:
            told = outcomes(await target.send(batch(mode, records), "default"))
        except TargetError:
            assert "refused" in expected
            assert await _held(place) == before
            told = outcomes(await target.send_each(batch(mode, records), "default"))
        known = {"created", "updated", "deleted", "NOT_FOUND"}
        assert [outcome if outcome in known else "refused" for outcome in told] == expected
        assert await _held(place) == model.rows
    await target.aclose()


async def _held(place: Place) -> dict[int, tuple[str, str | None]]:
    return {row[0]: (row[1], row[2]) for row in await place.rows("SELECT id, name, note FROM products")}


def _order(mode: Mode, records: list[Any]) -> list[int]:
    """Of several creates of one key those that name the same columns as the first record go first."""
    if mode is not Mode.CREATE:
        return list(range(len(records)))
    shapes = list(dict.fromkeys(frozenset(record) for record in records))
    return sorted(range(len(records)), key=lambda n: (shapes.index(frozenset(records[n])), n))


def _in_order_of_writing(mode: Mode, records: list[Any]) -> list[Any]:
    return [records[n] for n in _order(mode, records)]


@pytest.fixture
async def products(place: Place) -> Place:
    await place.products()
    return place


@settings(max_examples=40, suppress_health_check=list(HealthCheck))
@given(batches=BATCHES)
def test_a_table_ends_up_as_a_dictionary_would(products: Place, batches: list[tuple[Mode, list[Any]]]):
    asyncio.run(check(products, batches))
