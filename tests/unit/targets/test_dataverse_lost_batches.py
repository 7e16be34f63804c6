"""Batches whose answer was lost, remembered until they are heard of again."""

from __future__ import annotations

from penstock.targets.dataverse.target import LostBatch
from penstock.targets.target import RecentBatches


def test_what_was_there_before_the_first_try_is_not_forgotten_by_later_ones():
    first = LostBatch(is_atomic=True, present=["id", None])
    second = LostBatch(is_atomic=True, present=["id", "made by the first try"]).after(first)
    assert LostBatch(is_atomic=False).after(second) == LostBatch(is_atomic=False, present=["id", None])


def test_the_oldest_doubts_make_room():
    doubts: RecentBatches[int] = RecentBatches(limit=3)
    for number in range(4):
        doubts[str(number)] = number
    doubts["1"] = 5
    assert doubts == {"1": 5, "2": 2, "3": 3}
