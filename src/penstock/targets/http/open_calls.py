"""What is remembered of calls that may have taken effect, so that what the remote holds later is read rightly."""

from __future__ import annotations

from collections.abc import Iterable

from penstock.targets.http.error_mapping import is_own_refusal
from penstock.targets.model import Answer, Batch, Mode, TargetError
from penstock.targets.target import RecentBatches

__all__ = ["OpenCalls"]

RECORDS_MAX = 20_000
"""Records remembered on their own; beyond it what is found of the oldest proves less."""


class OpenCalls:
    """The calls of a target that were left open: batches by their keys, records by theirs."""

    def __init__(self) -> None:
        self._batches: RecentBatches[TargetError | None] = RecentBatches()
        """With the last refusal, or None when an answer was lost."""
        self._lost_deletes: RecentBatches[None] = RecentBatches(RECORDS_MAX)
        self._absent: RecentBatches[None] = RecentBatches(RECORDS_MAX)

    def __contains__(self, batch: Batch) -> bool:
        return batch.key in self._batches

    def failed(self, batch: Batch, error: BaseException) -> None:
        """A call for the batch ended so; it is left open unless it surely changed nothing."""
        if isinstance(error, TargetError) and not error.maybe_applied:
            return
        refusal = error if isinstance(error, TargetError) and is_own_refusal(error) else None
        was_lost = self._batches.get(batch.key, refusal) is None
        # A copy, since a raised error holds on to the records.
        self._batches[batch.key] = None if refusal is None or was_lost else refusal.but()
        self._lose(batch, range(len(batch)))

    def answered(self, batch: Batch, answer: Answer) -> None:
        """The batch was answered, though perhaps not for every record."""
        self._batches.pop(batch.key, None)
        if batch.mode is Mode.DELETE:
            errors = (verdict.error for verdict in answer.verdicts)
            self._lose(batch, [at for at, error in enumerate(errors) if error is not None and error.maybe_applied])

    def absent(self, batch: Batch, positions: Iterable[int]) -> None:
        """The remote was asked for these records, which are to be created, and does not hold them."""
        for at in positions:
            self._absent[batch.record_key(at)] = None

    def doubt(self, batch: Batch, position: int) -> TargetError | None:
        """Why a record that is found may be older than the call that was to create it; None when it is not."""
        refusal = self._batches.get(batch.key)
        return None if refusal is None or batch.record_key(position) in self._absent else refusal

    def lost_deletes(self, batch: Batch) -> frozenset[int]:
        """The positions of records that an earlier, unanswered call may have deleted."""
        if not self._lost_deletes or batch.mode is not Mode.DELETE:
            return frozenset()
        return frozenset(at for at in range(len(batch)) if batch.record_key(at) in self._lost_deletes)

    def _lose(self, batch: Batch, positions: Iterable[int]) -> None:
        if batch.mode is Mode.DELETE:
            for at in positions:
                self._lost_deletes[batch.record_key(at)] = None
