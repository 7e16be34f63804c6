"""Batches whose answer was lost, remembered until they are heard of again."""

from __future__ import annotations

from penstock.targets.dataverse.send_and_reconcile import KEPT_MAX, LostBatch, LostBatches


def test_a_doubt_is_kept_until_it_is_settled():
    doubts = LostBatches()
    doubts.add("a", LostBatch(is_atomic=True))
    assert doubts.get("a") == LostBatch(is_atomic=True)
    doubts.settle("a")
    doubts.settle("a")
    assert doubts.get("a") is None


def test_what_was_there_before_the_first_try_is_not_forgotten_by_later_ones():
    doubts = LostBatches()
    doubts.add("a", LostBatch(is_atomic=True, present=["id", None]))
    doubts.add("a", LostBatch(is_atomic=True, present=["id", "made by the first try"]))
    doubts.add("a", LostBatch(is_atomic=False))
    assert doubts.get("a") == LostBatch(is_atomic=False, present=["id", None])


def test_the_oldest_doubts_make_room():
    doubts = LostBatches()
    for number in range(KEPT_MAX + 1):
        doubts.add(str(number), LostBatch(is_atomic=True))
    assert doubts.get("0") is None
    assert doubts.get("1") is not None
