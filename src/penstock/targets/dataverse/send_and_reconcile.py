"""Sending calls and keeping account of those whose answer was lost."""

from __future__ import annotations

from dataclasses import dataclass, replace

from penstock.targets.dataverse.calls import Call
from penstock.targets.dataverse.existence_check import Found, present
from penstock.targets.dataverse.options import DataverseOptions
from penstock.targets.dataverse.requests import send_action, send_singles
from penstock.targets.dataverse.table_metadata import Table, TableMetadata
from penstock.targets.dataverse.web_api import WebApi
from penstock.targets.model import ErrorKind, Mode, Outcome, TargetError, Verdict
from penstock.targets.recent_batches import RecentBatches
from penstock.targets.target import Answer

__all__ = ["LostBatch", "Sender", "goes_as_single_requests"]


@dataclass(frozen=True, slots=True)
class LostBatch:
    """What was known when a batch was sent whose answer never came."""

    is_atomic: bool
    """Whatever was lost was applied as a whole or not at all."""
    present: Found | None = None
    """Which of an upsert's records were there before it was first sent."""

    def after(self, earlier: LostBatch | None) -> LostBatch:
        """What is known after several lost tries; the first knows best what was there before."""
        if earlier is None:
            return self
        return LostBatch(earlier.is_atomic and self.is_atomic, earlier.present or self.present)


def goes_as_single_requests(table: Table, mode: Mode, options: DataverseOptions) -> bool:
    """Whether records travel one by one inside a `$batch`: there is no bulk action for what is asked."""
    if mode is Mode.DELETE:
        return not table.is_elastic
    return mode is Mode.UPSERT and options.exact_counts


class Sender:
    """Sends calls; a call that comes again after its answer was lost is answered as its first try would have been."""

    def __init__(self, api: WebApi, metadata: TableMetadata) -> None:
        self._api = api
        self._metadata = metadata
        self._lost_batches: RecentBatches[LostBatch] = RecentBatches()

    async def deliver(self, call: Call, source: str) -> Answer:
        """Send a call the way its table and its options ask for."""
        if goes_as_single_requests(call.table, call.mode, call.options):
            return await self.singly(call, source, continue_on_error=call.options.continue_on_error)
        return await self.whole(call, source)

    async def singly(self, call: Call, source: str, *, continue_on_error: bool) -> Answer:
        """Send every record as a request of its own."""
        lost = self._lost_batches.get(call.batch.key)
        try:
            answer = await send_singles(self._api, call, source, continue_on_error=continue_on_error)
        except TargetError as error:
            self._note(call, error, LostBatch(is_atomic=False))
            raise
        self._lost_batches.pop(call.batch.key, None)
        if lost is not None and call.mode is Mode.UPSERT:  # what the lost try created now says updated
            return replace(answer, counts_exact=False)
        return answer

    async def whole(self, call: Call, source: str) -> Answer:
        """Send a call as one bulk action."""
        lost = self._lost_batches.get(call.batch.key)
        before = await self._before(call, source, lost)
        try:
            answer = await send_action(self._api, call, source, before)
        except TargetError as error:
            self._note(call, error, LostBatch(is_atomic=not call.table.is_elastic, present=before))
            if call.mode is Mode.DELETE and error.kind is ErrorKind.UNSUPPORTED and call.options.elastic_table is None:
                self._metadata.correct(call.table, is_elastic=False)
                return await self.singly(call, source, continue_on_error=call.options.continue_on_error)
            raise
        self._lost_batches.pop(call.batch.key, None)
        if not call.table.is_elastic and any(verdict.outcome is Outcome.FAILED for verdict in answer.verdicts):
            self._metadata.correct(call.table, is_elastic=True)  # only elastic tables fail row by row
        return answer

    async def trace(self, call: Call, source: str) -> list[Verdict | None]:
        """What became of a create or delete whose answer was lost, by what is there now."""
        found = await present(self._api, call, source)
        if call.mode is Mode.DELETE:
            return [None if there else _deleted(call, position) for position, there in enumerate(found)]
        lost = self._lost_batches.get(call.batch.key)
        if not call.makes_ids and (lost is None or lost.is_atomic) and not all(found):
            return [None] * len(call)  # keys that were there before say nothing of a batch that is not there whole
        return [Verdict(Outcome.CREATED, id) if id else None for id in found]

    def _note(self, call: Call, error: TargetError, lost: LostBatch) -> None:
        if error.maybe_applied:
            self._lost_batches[call.batch.key] = lost.after(self._lost_batches.get(call.batch.key))

    async def _before(self, call: Call, source: str, lost: LostBatch | None) -> Found | None:
        """Which records of an upsert are there before its first try."""
        if call.mode is not Mode.UPSERT or not call.options.tell_created:
            return None
        if lost is not None and lost.present is not None:
            return lost.present
        return await present(self._api, call, source)


def _deleted(call: Call, position: int) -> Verdict:
    return Verdict(Outcome.DELETED, call.id(position))
