"""Sending calls and keeping account of those whose answer was lost."""

from __future__ import annotations

from dataclasses import replace

from penstock.targets.dataverse.calls import Call
from penstock.targets.dataverse.catalogue import Catalogue, Table
from penstock.targets.dataverse.doubts import Doubt, Doubts
from penstock.targets.dataverse.lookout import Found, present
from penstock.targets.dataverse.options import DataverseOptions
from penstock.targets.dataverse.sending import send_action, send_singles
from penstock.targets.dataverse.wire import Wire
from penstock.targets.model import Mode, Outcome, TargetError, Trouble, Verdict
from penstock.targets.target import Answer

__all__ = ["Delivery", "goes_singly"]


def goes_singly(table: Table, mode: Mode, options: DataverseOptions) -> bool:
    """Whether records travel one by one inside a `$batch`: there is no bulk action for what is asked."""
    if mode is Mode.DELETE:
        return not table.is_elastic
    return mode is Mode.UPSERT and options.exact_counts


class Delivery:
    """Sends calls; a call that comes again after its answer was lost is answered as its first try would have been."""

    def __init__(self, wire: Wire, catalogue: Catalogue) -> None:
        self._wire = wire
        self._catalogue = catalogue
        self._doubts = Doubts()

    async def deliver(self, call: Call, source: str) -> Answer:
        """Send a call the way its table and its options ask for."""
        if goes_singly(call.table, call.mode, call.options):
            return await self.singly(call, source, continue_on_error=call.options.continue_on_error)
        return await self.whole(call, source)

    async def singly(self, call: Call, source: str, *, continue_on_error: bool) -> Answer:
        """Send every record as a request of its own."""
        doubt = self._doubts.get(call.batch.key)
        try:
            answer = await send_singles(self._wire, call, source, continue_on_error=continue_on_error)
        except TargetError as error:
            self._note(call, error, Doubt(is_atomic=False))
            raise
        self._doubts.settle(call.batch.key)
        if doubt is not None and call.mode is Mode.UPSERT:  # what the lost try created now says updated
            return replace(answer, counts_exact=False)
        return answer

    async def whole(self, call: Call, source: str) -> Answer:
        """Send a call as one bulk action."""
        doubt = self._doubts.get(call.batch.key)
        before = await self._before(call, source, doubt)
        try:
            answer = await send_action(self._wire, call, source, before)
        except TargetError as error:
            self._note(call, error, Doubt(is_atomic=not call.table.is_elastic, present=before))
            if call.mode is Mode.DELETE and error.kind is Trouble.UNSUPPORTED and call.options.elastic_table is None:
                self._catalogue.correct(call.table, is_elastic=False)
                return await self.singly(call, source, continue_on_error=call.options.continue_on_error)
            raise
        self._doubts.settle(call.batch.key)
        if not call.table.is_elastic and any(verdict.outcome is Outcome.FAILED for verdict in answer.verdicts):
            self._catalogue.correct(call.table, is_elastic=True)  # only elastic tables fail row by row
        return answer

    async def trace(self, call: Call, source: str) -> list[Verdict | None]:
        """What became of a create or delete whose answer was lost, by what is there now."""
        found = await present(self._wire, call, source)
        if call.mode is Mode.DELETE:
            return [None if there else _deleted(call, position) for position, there in enumerate(found)]
        doubt = self._doubts.get(call.batch.key)
        if not call.makes_ids and (doubt is None or doubt.is_atomic) and not all(found):
            return [None] * len(call)  # keys that were there before say nothing of a batch that is not there whole
        return [Verdict(Outcome.CREATED, id) if id else None for id in found]

    def _note(self, call: Call, error: TargetError, doubt: Doubt) -> None:
        if error.maybe_applied:
            self._doubts.add(call.batch.key, doubt)

    async def _before(self, call: Call, source: str, doubt: Doubt | None) -> Found | None:
        """Which records of an upsert are there before its first try."""
        if call.mode is not Mode.UPSERT:
            return None
        if doubt is not None and doubt.present is not None:
            return doubt.present
        return await present(self._wire, call, source)


def _deleted(call: Call, position: int) -> Verdict:
    return Verdict(Outcome.DELETED, call.id(position))
