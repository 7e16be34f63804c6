"""A chunk's rows come back as they were stored, block by block, in any order."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.operations.chunk.packing import BLOCK, Packer, StoredRows, pack_rows, unpack_rows

RAWS: list[Any] = [["a", ""], {"sku": "A1", "price": 1.5}, "not a record", ["ü", '"quoted"'], []]


def rows_of(count: int) -> list[Any]:
    return [[str(i), f"row {i}"] for i in range(count)]


@pytest.mark.parametrize("count", [0, 1, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK, 4000])
def test_all_rows_come_back_in_order(count: int):
    stored = unpack_rows(pack_rows(rows_of(count)))
    assert len(stored) == count
    assert list(stored) == rows_of(count)


def test_rows_of_every_kind_come_back():
    assert list(unpack_rows(pack_rows(RAWS))) == RAWS


@given(st.lists(st.integers(0, 2 * BLOCK + 50), max_size=8))
def test_rows_that_come_in_pieces_of_any_sizes_are_stored_as_they_are_together(sizes: list[int]):
    rows, packer = rows_of(sum(sizes)), Packer()
    for k, size in enumerate(sizes):
        packer.add(rows[sum(sizes[:k]) :][:size])
    packed = packer.packed()
    assert list(unpack_rows(packed)) == rows
    assert packed == packer.packed() == pack_rows(rows)


def test_rows_of_every_kind_may_come_one_by_one():
    packer, rows = Packer(), RAWS * BLOCK
    for row in rows:
        packer.add([row])
    assert list(unpack_rows(packer.packed())) == rows
    assert packer.packed() == pack_rows(rows)


def test_a_piece_stays_its_givers_and_may_change_when_it_was_taken_in():
    packer, piece = Packer(), rows_of(3)
    packer.add(piece)
    packer.add(rows_of(1))
    piece.clear()
    assert list(unpack_rows(packer.packed())) == rows_of(3) + rows_of(1)


@given(st.lists(st.integers(0, 349), max_size=20))
def test_rows_can_be_picked_in_any_order(places: list[int]):
    rows = rows_of(350)
    for stored in (unpack_rows(pack_rows(rows)), StoredRows.of(rows)):
        assert stored.pick(places) == [rows[i] for i in places]
        assert [stored[i] for i in places] == [rows[i] for i in places]


def test_a_row_behind_the_last_is_no_row():
    with pytest.raises(IndexError):
        unpack_rows(pack_rows(rows_of(150)))[150]


def test_only_blocks_that_hold_a_text_are_near_it():
    stored = unpack_rows(pack_rows(rows_of(350)))
    found = list(stored.near(b'"row 123"'))
    assert [i for i, _ in found] == list(range(BLOCK, 2 * BLOCK))
    assert dict(found)[123] == ["123", "row 123"]
    assert list(stored.near(b"nowhere")) == []
