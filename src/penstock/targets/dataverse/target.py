"""Dataverse as a target: its Web API, driven by one or several application users."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from penstock.clock import Clock, SystemClock
from penstock.errors import SettingsInvalid
from penstock.targets.dataverse.calls import Call
from penstock.targets.dataverse.entities import Spelling, encode, referred_tables
from penstock.targets.dataverse.identity import identity, references
from penstock.targets.dataverse.multipart import PARTS_MAX
from penstock.targets.dataverse.options import DataverseOptions, platform_options
from penstock.targets.dataverse.send_and_reconcile import Sender, goes_as_single_requests
from penstock.targets.dataverse.table_metadata import Table, TableMetadata
from penstock.targets.dataverse.tokens import Credential, Tokens
from penstock.targets.dataverse.web_api import TOTAL_S, WebApi, default_client, environment_url
from penstock.targets.model import BulkOptions, Mode, TargetError, Verdict
from penstock.targets.target import Answer, Batch, Capabilities, Reference, Target

if TYPE_CHECKING:
    import httpx

__all__ = ["DataverseTarget"]

ELASTIC_RECORDS_MAX = 100


class DataverseTarget(Target):
    """A Dataverse environment, reached by one application user or by several, each with a quota of its own.

    `credentials` is a credential in the manner of azure-identity, or several by name. `client` makes the HTTP client
    when it is first needed; give your own for proxies, certificates or time limits.
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
        origin = environment_url(url)
        self.name = f"Dataverse {origin}"
        self.sources = tuple(named)
        self.quota = origin
        self._request_bytes_max = request_bytes_max
        self._api = WebApi(
            origin, api_version, Tokens(named, f"{origin}/.default", clock), clock, client, timeout_s=timeout_s
        )
        self._metadata = TableMetadata(self._api, clock, metadata_ttl_s)
        self._sender = Sender(self._api, self._metadata)

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
        return await self._sender.deliver(await self._prepare(batch, source), source)

    async def send_each(self, batch: Batch, source: str) -> Answer:
        call = await self._prepare(batch, source)
        if call.table.is_elastic:  # its bulk actions answer row by row as it is
            return await self._sender.deliver(call, source)
        return await self._sender.singly(call, source, continue_on_error=True)

    async def reconcile(self, batch: Batch, source: str) -> Sequence[Verdict | None]:
        """Ask what became of a create or delete: what is there was created, what is not was deleted."""
        return await self._sender.trace(await self._prepare(batch, source), source)

    async def refresh(self, source: str) -> None:
        """Do nothing: a token was dropped the moment it was refused, and a broken connection is never used again."""

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
        return known if options.elastic_table is None else known.kept_as(is_elastic=options.elastic_table)

    async def _prepare(self, batch: Batch, source: str) -> Call:
        options = platform_options(batch.options)
        table = await self._table(batch.table, options, source)
        spelling = Spelling(table)
        if batch.mode is not Mode.DELETE:
            spelling = await self._spelling(table, batch.records, options.references, source)
        call = Call(batch, options, spelling)
        call.check()
        return call

    async def _spelling(
        self, table: Table, records: Sequence[Any], references: Mapping[str, str], source: str
    ) -> Spelling:
        referred = referred_tables(records, references)
        if not referred:
            return Spelling(table)
        sets = {name: (await self._metadata.table(name, source)).entity_set for name in sorted(referred)}
        return Spelling(table, references, sets, await self._metadata.navigation(table.name, source))
