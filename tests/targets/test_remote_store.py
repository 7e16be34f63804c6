"""The remote's rows behave like a database: units commit whole or leave no trace, keys stay unique."""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pytest
from dataverse.ledger import Change
from dataverse.problems import Refused
from dataverse.store import Store
from dataverse.tables import Lookup, Table
from hypothesis import given
from hypothesis import strategies as st

ITEM = Table("item", "items", columns=("code",), keys={"by_code": ("code",)}, lookups=(Lookup("parentid", "item"),))
IDS = [f"00000000-0000-0000-0000-00000000000{n}" for n in range(4)]

Step = Callable[[Store], Any]
codes = st.sampled_from([None, "a", "A", "b", "c "])
ids = st.sampled_from(IDS)


def insert(id: str, code: str | None, parent: str | None) -> Step:
    return lambda store: store.insert(ITEM, {"itemid": id, "code": code, "_parentid_value": parent})


def update(id: str, code: str | None) -> Step:
    return lambda store: store.update(ITEM, id, {"code": code}) if id in store.rows("item") else None


def delete(id: str) -> Step:
    return lambda store: store.delete(ITEM, id) if id in store.rows("item") else None


steps = st.one_of(st.builds(insert, ids, codes, st.none() | ids), st.builds(update, ids, codes), st.builds(delete, ids))
units = st.lists(st.tuples(st.lists(steps, max_size=5), st.booleans()), max_size=12)


class Abandoned(Exception):
    """Ends a unit for no reason."""


def play(store: Store, steps: list[Step], *, is_abandoned: bool) -> None:
    with store.unit():
        for step in steps:
            with store.unit():
                step(store)
        if is_abandoned:
            raise Abandoned


@given(units=units)
def test_a_unit_that_fails_leaves_no_trace(units: list[tuple[list[Step], bool]]):
    committed: list[Change] = []
    store = Store([ITEM], committed.append)
    for unit, is_abandoned in units:
        rows, count = copy.deepcopy(store.rows("item")), len(committed)
        try:
            play(store, unit, is_abandoned=is_abandoned)
        except (Abandoned, Refused):
            assert store.rows("item") == rows
            assert len(committed) == count


@given(units=units)
def test_keys_are_unique_and_find_their_rows(units: list[tuple[list[Step], bool]]):
    store = Store([ITEM], lambda change: None)
    for unit, is_abandoned in units:
        with suppress(Abandoned, Refused):
            play(store, unit, is_abandoned=is_abandoned)
        taken = [row["code"].casefold().rstrip() for row in store.rows("item").values() if row["code"]]
        assert len(taken) == len(set(taken))
        for key, row in store.rows("item").items():
            assert row["code"] is None or store.find(ITEM, {"code": row["code"].upper()}) == key
        assert all(store.find(ITEM, {"code": code}) is None for code in {"a", "b", "c"} - set(taken))


@given(units=units)
def test_the_changes_told_add_up_to_the_rows(units: list[tuple[list[Step], bool]]):
    committed: list[Change] = []
    store = Store([ITEM], committed.append)
    for unit, is_abandoned in units:
        with suppress(Abandoned, Refused):
            play(store, unit, is_abandoned=is_abandoned)
    replayed: dict[str, Any] = {}
    for change in committed:
        if change.what == "delete":
            del replayed[change.key]
        else:
            replayed[change.key] = change.values["code"]
    assert replayed == {key: row["code"] for key, row in store.rows("item").items()}


def test_a_key_needs_all_its_columns_to_count():
    store = Store([Table("pair", "pairs", columns=("a", "b"), keys={"both": ("a", "b")})], lambda change: None)
    (table,) = store.tables
    with store.unit():
        for _ in range(2):
            store.insert(table, {"a": "1"})
        store.insert(table, {"a": "1", "b": "2"})
    with pytest.raises(Refused, match="both"), store.unit():
        store.insert(table, {"a": "1", "b": "2"})
