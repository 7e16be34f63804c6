"""How large the chunks of a file are."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from penstock.operations.chunk.packing import chunk_size, largest_chunk


def chunks(rows: int, least: int, *, may_grow: bool = True) -> Iterator[int]:
    """The sizes of the chunks of a file."""
    before = 0
    while before < rows:
        size = min(chunk_size(before, least, may_grow=may_grow), rows - before)
        yield size
        before += size


def test_chunks_double_twice_when_many_came_before():
    sizes = list(chunks(100_000, 1000))
    assert sizes[:32] == [1000] * 32
    assert sizes[32:48] == [2000] * 16
    assert sizes[48:] == [4000] * 9


def test_no_chunk_is_larger_than_the_largest():
    assert max(chunks(1_000_000, 10)) == largest_chunk(10) == 40


@pytest.mark.parametrize("rows", [100, 1000, 5000, 100_000])
def test_a_file_has_chunks_enough_for_many_workers(rows: int):
    assert len(list(chunks(rows, 10))) >= min(rows / 10, 32)


def test_chunks_of_rows_that_wait_stay_small():
    assert set(chunks(100_000, 1000, may_grow=False)) == {1000}
