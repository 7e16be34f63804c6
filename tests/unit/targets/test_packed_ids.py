"""Ids by position: packed where they can be, the same when they come back."""

from __future__ import annotations

import tracemalloc
from typing import Any
from uuid import UUID, uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.targets.ids import EMPTY_GUID, PackedIds

GUIDS = st.uuids().map(str)
ANY_ID = st.one_of(
    GUIDS,
    GUIDS.map(str.upper),
    st.uuids(),
    st.integers(),
    st.integers(0, 3),
    st.none(),
    st.text(max_size=40),
    st.tuples(st.integers(), st.text(max_size=3)),
    st.sampled_from([EMPTY_GUID, UUID(int=0), 0, "", True, "-" * 36]),
)


@given(st.lists(ANY_ID, max_size=20), st.integers(0, 50))
def test_whatever_was_put_comes_back_at_its_place(ids: list[Any], start: int):
    packed = PackedIds()
    packed.put(range(start, start + len(ids)), ids)
    found = [packed.get(start + place) for place in range(len(ids))]
    assert found == ids
    assert [type(one) for one in found] == [type(one) for one in ids]
    assert packed.get(start + len(ids)) is None


@given(st.lists(st.one_of(GUIDS, st.integers(1, 9)), min_size=1), st.randoms())
def test_ids_may_come_in_any_order(ids: list[Any], random: Any):
    packed = PackedIds()
    places = list(range(len(ids)))
    random.shuffle(places)
    for place in places:
        packed.put([place], [ids[place]])
    assert [packed.get(place) for place in range(len(ids))] == ids


@pytest.mark.parametrize("make, bytes_each", [(lambda _: str(uuid4()), 17), (lambda n: n + 1, 9)])
def test_a_hundred_thousand_ids_take_what_their_bits_take(make: Any, bytes_each: int):
    ids = [make(n) for n in range(100_000)]
    tracemalloc.start()
    packed = PackedIds()
    for start in range(0, 100_000, 1000):
        packed.put(range(start, start + 1000), ids[start : start + 1000])
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert held < bytes_each * 100_000 * 1.2
    assert packed.get(77_777) == ids[77_777]
