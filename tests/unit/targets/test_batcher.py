"""How an input is cut into batches."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from penstock.targets.model import TargetError
from penstock.targets.rules.duplicates import DuplicateKeys
from penstock.targets.running.input import Batcher, InputReader, NextBatch


def nothing_wrong(_: Sequence[Any]) -> dict[int, TargetError]:
    return {}


async def pieces(feed: Batcher, sizes: list[int]) -> list[NextBatch]:
    """All pieces, each settled as soon as it was cut."""
    found: list[NextBatch] = []
    while (piece := await feed.take(sizes[len(found) % len(sizes)])) is not None:
        found.append(piece)
        feed.release(piece.identities)
    return found


@given(
    st.lists(st.integers(1, 40), max_size=60),
    st.lists(st.integers(1, 20), min_size=1, max_size=5),
    st.integers(1, 100),
    st.booleans(),
)
def test_pieces_are_the_input_in_order_whatever_their_sizes_and_weights(
    weights: list[int], sizes: list[int], bytes_max: int, is_list: bool
):
    async def run() -> None:
        reader = InputReader(weights if is_list else iter(weights))
        feed = Batcher(reader, check=nothing_wrong, size=lambda weight: weight, bytes_max=bytes_max)
        found = await pieces(feed, sizes)
        assert [record for piece in found for record in piece.records] == weights
        assert [index for piece in found for index in piece.indexes] == list(range(len(weights)))
        assert all(sum(piece.records) <= bytes_max or len(piece.records) == 1 for piece in found)
        assert all(len(piece.records) <= max(sizes) for piece in found)

    asyncio.run(run())


@given(st.lists(st.integers(0, 5), max_size=60), st.integers(1, 20))
def test_a_piece_has_no_key_twice_and_every_record_is_in_one(keys: list[int], size: int):
    async def run() -> None:
        feed = Batcher(
            InputReader(iter(keys)), check=nothing_wrong, duplicate_keys=DuplicateKeys(lambda key: key, "keep-order")
        )
        found = await pieces(feed, [size])
        assert all(len(set(piece.records)) == len(piece.records) for piece in found)
        places = [(key, index) for piece in found for key, index in zip(piece.records, piece.indexes, strict=True)]
        assert sorted(index for _, index in places) == list(range(len(keys)))
        for key in set(keys):
            mine = [index for held, index in places if held == key]
            assert mine == sorted(mine)

    asyncio.run(run())


@given(st.lists(st.one_of(st.integers(0, 3), st.none()), max_size=30), st.sampled_from(["first", "error"]))
def test_only_the_first_record_of_a_key_is_cut_and_the_others_are_told(keys: list[Any], policy: Any):
    async def run() -> None:
        feed = Batcher(InputReader(keys), check=nothing_wrong, duplicate_keys=DuplicateKeys(lambda key: key, policy))
        found = await pieces(feed, [7])
        cut = [key for piece in found for key in piece.records if key is not None]
        left = [*(index for piece in found for index in piece.skipped)]
        refused = [index for piece in found for index, _, _ in piece.refused]
        assert sorted(cut) == sorted({key for key in keys if key is not None})
        repeated = [index for index, key in enumerate(keys) if key is not None and key in keys[:index]]
        assert sorted(left if policy == "first" else refused) == repeated

    asyncio.run(run())
