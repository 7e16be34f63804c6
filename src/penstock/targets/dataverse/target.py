"""Dataverse as a target: its Web API, driven by one or several application users."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from penstock.clock import Clock, SystemClock
from penstock.errors import SettingsInvalid
from penstock.targets.dataverse.calls import Call
from penstock.targets.dataverse.entities import Spelling, encode, identity, references, referred_tables
from penstock.targets.dataverse.options import DataverseOptions, platform_options
from penstock.targets.dataverse.requests import PARTS_MAX, Found, find_present, send_action, send_singles
from penstock.targets.dataverse.table_metadata import Table, TableMetadata
from penstock.targets.dataverse.web_api import TOTAL_S, Credential, Tokens, WebApi, default_client
from penstock.targets.http.client import checked_base
from penstock.targets.model import BulkOptions, ErrorKind, Mode, Outcome, TargetError, Verdict
from penstock.targets.target import Answer, Batch, Capabilities, RecentBatches, Reference, Target

if TYPE_CHECKING:
    import httpx

__all__ = ["DataverseTarget", "LostBatch"]

ELASTIC_RECORDS_MAX = 100


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


class DataverseTarget(Target):
    """A Dataverse environment, reached by one application user or by several, each with a quota of its own.

    `credentials` is a credential in the manner of azure-identity, or several by name. `client` makes the HTTP client
    when it is first needed; give your own for proxies, certificates or time limits. A batch that comes again after its
    answer was lost is answered as its first try would have been.
    """

    options_type = DataverseOptions

    def __init__(
        self,
        url: str,
        credentials: Credential | Mapping[str, Credential],
        *,
        api_version: str = "v9.2",
        client: Callable[[], httpx.AsyncClient] = default_client,
        clock: Clock | None = None,
        request_bytes_max: int = 4 * 2**20,
        metadata_ttl_s: float = 3600.0,
        timeout_s: float = TOTAL_S,
    ) -> None:
        named = credentials if isinstance(credentials, Mapping) else {"default": credentials}
        if not named:
            raise SettingsInvalid("a Dataverse target needs at least one credential")
        clock = clock or SystemClock()
        origin = checked_base(url)
        self.name = f"Dataverse {origin}"
        self.sources = tuple(named)
        self.quota = origin
        self._request_bytes_max = request_bytes_max
        self._api = WebApi(
            origin, api_version, Tokens(named, f"{origin}/.default", clock), clock, client, timeout_s=timeout_s
        )
        self._metadata = TableMetadata(self._api, clock, metadata_ttl_s)
        self._lost_batches: RecentBatches[LostBatch] = RecentBatches()

    async def describe(self, table: str, mode: Mode, options: BulkOptions, source: str) -> Capabilities:
        asked = platform_options(options)
        known = await self._table(table, asked, source)
        singly = goes_as_single_requests(known, mode, asked)
        if not singly:
            await self._metadata.check_supports(table, mode, source)
        is_traceable = asked.client_made_ids or known.is_elastic or asked.alternate_key is not None
        return Capabilities(
            is_atomic=not singly and not known.is_elastic,
            is_idempotent=mode in {Mode.UPDATE, Mode.UPSERT},
            can_reconcile=mode is Mode.DELETE or (mode is Mode.CREATE and is_traceable),
            records_max=ELASTIC_RECORDS_MAX if known.is_elastic else PARTS_MAX if singly else None,
            bytes_max=self._request_bytes_max,
            id_field=known.id_column,
        )

    async def send(self, batch: Batch, source: str) -> Answer:
        """Send one batch: one bulk action, or one `$batch`; before an upsert the keys that are there are read."""
        return await self._deliver(await self._prepare(batch, source), source)

    async def send_each(self, batch: Batch, source: str) -> Answer:
        call = await self._prepare(batch, source)
        if call.table.is_elastic:  # its bulk actions answer row by row as it is
            return await self._deliver(call, source)
        return await self._singly(call, source, continue_on_error=True)

    async def reconcile(self, batch: Batch, source: str) -> Sequence[Verdict | None]:
        """Ask what became of a create or delete: what is there was created, what is not was deleted."""
        call = await self._prepare(batch, source)
        found = await find_present(self._api, call, source)
        if call.mode is Mode.DELETE:
            return [None if there else Verdict(Outcome.DELETED, call.id(n)) for n, there in enumerate(found)]
        lost = self._lost_batches.get(call.batch.key)
        if not call.makes_ids and (lost is None or lost.is_atomic) and not all(found):
            return [None] * len(call)  # keys that were there before say nothing of a batch that is not there whole
        return [Verdict(Outcome.CREATED, id) if id else None for id in found]

    def identifier(self, table: str, mode: Mode, options: BulkOptions) -> Callable[[Any], Hashable | None] | None:
        known, alternate_key = self._metadata.recall_table(table), platform_options(options).alternate_key
        return None if known is None else lambda record: identity(known, mode, record, alternate_key)

    def references(self, table: str, record: Any, options: BulkOptions) -> Iterable[Reference]:
        return references(record, options.references, self._metadata.entity_sets())

    def size(self, record: Any) -> int:
        try:
            return len(encode(record))
        except TargetError:
            return 0  # sending it will say what is wrong

    async def aclose(self) -> None:
        await self._api.aclose()

    async def _table(self, name: str, options: DataverseOptions, source: str) -> Table:
        known = await self._metadata.table(name, source)
        return known if options.elastic_table is None else replace(known, is_elastic=options.elastic_table)

    async def _prepare(self, batch: Batch, source: str) -> Call:
        options = platform_options(batch.options)
        table = await self._table(batch.table, options, source)
        spelling = Spelling(table)
        referred = set() if batch.mode is Mode.DELETE else referred_tables(batch.records, options.references)
        if referred:
            sets = {name: (await self._metadata.table(name, source)).entity_set for name in sorted(referred)}
            spelling = Spelling(table, options.references, sets, await self._metadata.navigation(table.name, source))
        call = Call(batch, options, spelling)
        call.check()
        return call

    async def _singly(self, call: Call, source: str, *, continue_on_error: bool) -> Answer:
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

    async def _deliver(self, call: Call, source: str) -> Answer:
        """Send a call the way its table and its options ask for, mostly as one bulk action."""
        if goes_as_single_requests(call.table, call.mode, call.options):
            return await self._singly(call, source, continue_on_error=call.options.continue_on_error)
        lost = self._lost_batches.get(call.batch.key)
        before = lost.present if lost is not None else None  # as it was before the first try
        if before is None and call.mode is Mode.UPSERT and call.options.tell_created:
            before = await find_present(self._api, call, source)
        try:
            answer = await send_action(self._api, call, source, before)
        except TargetError as error:
            self._note(call, error, LostBatch(is_atomic=not call.table.is_elastic, present=before))
            if call.mode is Mode.DELETE and error.kind is ErrorKind.UNSUPPORTED and call.options.elastic_table is None:
                self._metadata.correct(call.table, is_elastic=False)
                return await self._singly(call, source, continue_on_error=call.options.continue_on_error)
            raise
        self._lost_batches.pop(call.batch.key, None)
        if not call.table.is_elastic and any(verdict.outcome is Outcome.FAILED for verdict in answer.verdicts):
            self._metadata.correct(call.table, is_elastic=True)  # only elastic tables fail row by row
        return answer

    def _note(self, call: Call, error: TargetError, lost: LostBatch) -> None:
        if error.maybe_applied:
            self._lost_batches[call.batch.key] = lost.after(self._lost_batches.get(call.batch.key))
