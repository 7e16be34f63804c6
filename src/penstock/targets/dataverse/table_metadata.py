"""What the environment says of its tables, remembered for a while."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Awaitable, Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar
from urllib.parse import quote

from penstock.clock import Clock
from penstock.targets.dataverse.odata import literal
from penstock.targets.dataverse.web_api import WebApi
from penstock.targets.model import ErrorKind, Mode, TargetError
from penstock.targets.per_loop import PerLoop

__all__ = ["Table", "TableMetadata"]

T = TypeVar("T")
DEFINITION = "$select=LogicalName,EntitySetName,PrimaryIdAttribute,TableType"
RELATIONS = "$select=ReferencingAttribute,ReferencedEntity,ReferencingEntityNavigationPropertyName"
NEEDED_MESSAGES = {
    Mode.CREATE: ("CreateMultiple",),
    Mode.UPDATE: ("UpdateMultiple",),
    Mode.UPSERT: ("CreateMultiple", "UpdateMultiple"),  # UpsertMultiple itself is never listed
    Mode.DELETE: (),  # the list is wrong for DeleteMultiple in some environments
}
UNREADABLE = frozenset({ErrorKind.PERMISSION, ErrorKind.DATA, ErrorKind.UNSUPPORTED})


@dataclass(frozen=True, slots=True)
class Table:
    """How a table is called and kept."""

    name: str
    entity_set: str
    id_column: str
    is_elastic: bool


class TableMetadata:
    """Names and capabilities of tables; concurrent questions about one thing are asked once."""

    def __init__(self, api: WebApi, clock: Clock, ttl_s: float) -> None:
        self._api = api
        self._clock = clock
        self._ttl_s = ttl_s
        self._known: dict[Hashable, tuple[float, Any]] = {}
        self._turns: PerLoop[defaultdict[Hashable, asyncio.Lock]] = PerLoop(lambda: defaultdict(asyncio.Lock))

    async def table(self, name: str, source: str) -> Table:
        """A table by its logical name."""
        return await self._recall(("table", name), partial(self._read_table, name, source))

    def recall_table(self, name: str) -> Table | None:
        """A table that was asked for before, however long ago."""
        table: Table | None = self._known.get(("table", name), (0.0, None))[1]
        return table

    def entity_sets(self) -> Mapping[str, str]:
        """The table of every entity set met so far."""
        return {table.entity_set: table.name for _, table in self._known.values() if isinstance(table, Table)}

    def correct(self, table: Table, *, is_elastic: bool) -> None:
        """The table behaved unlike its description: remember what it showed."""
        self._known["table", table.name] = (self._clock.monotonic(), replace(table, is_elastic=is_elastic))

    async def navigation(self, name: str, source: str) -> Mapping[tuple[str, str], str]:
        """The navigation property of each lookup column and the table it may refer to."""
        return await self._recall(("navigation", name), partial(self._read_navigation, name, source))

    async def check_supports(self, name: str, mode: Mode, source: str) -> None:
        """Refuse a mode for which the table lists no bulk message."""
        for message in NEEDED_MESSAGES[mode]:
            read = partial(self._read_support, name, message, source)
            if not await self._recall(("message", message, name), read):
                raise TargetError(
                    f"the table {name!r} does not take {message}; send its records one by one",
                    kind=ErrorKind.UNSUPPORTED,
                    code=f"{message}NotListed",
                )

    async def _recall(self, key: Hashable, read: Callable[[], Awaitable[T]]) -> T:
        value: T | None
        async with self._turns.get()[key]:
            at, value = self._known.get(key, (0.0, None))
            if value is None or self._clock.monotonic() - at >= self._ttl_s:
                value = await read()
                self._known[key] = (self._clock.monotonic(), value)
            return value

    async def _read_table(self, name: str, source: str) -> Table:
        try:
            reply = await self._api.read(source, f"{_definition(name)}?{DEFINITION}")
        except TargetError as error:
            if error.kind not in {ErrorKind.DATA, ErrorKind.UNSUPPORTED}:
                raise
            message = f"the environment has no table {name!r}; give its logical name, as 'account', not the plural"
            raise TargetError(message, kind=ErrorKind.UNSUPPORTED, code=error.code) from error
        facts = reply.json()
        try:
            is_elastic = facts.get("TableType") == "Elastic"
            return Table(name, str(facts["EntitySetName"]), str(facts["PrimaryIdAttribute"]), is_elastic)
        except KeyError as error:
            message = f"the description of the table {name!r} lacks {error}"
            raise TargetError(message, kind=ErrorKind.CONNECTION) from error

    async def _read_navigation(self, name: str, source: str) -> Mapping[tuple[str, str], str]:
        rows = await self._read_rows(f"{_definition(name)}/ManyToOneRelationships?{RELATIONS}", source) or []
        return {
            (row["ReferencingAttribute"], row["ReferencedEntity"]): row["ReferencingEntityNavigationPropertyName"]
            for row in rows
        }

    async def _read_support(self, name: str, message: str, source: str) -> bool:
        query = (
            "sdkmessagefilters?$select=sdkmessagefilterid"
            "&$filter=sdkmessageid/name%20eq%20@m%20and%20primaryobjecttypecode%20eq%20@t"
            f"&@m={quote(literal(message))}&@t={quote(literal(name))}"
        )
        rows = await self._read_rows(query, source)
        return rows is None or bool(rows)

    async def _read_rows(self, path: str, source: str) -> Sequence[Mapping[str, Any]] | None:
        """The rows of a question that not every user may ask; None when it was refused."""
        try:
            return await self._api.read_rows(source, path)
        except TargetError as error:
            if error.kind in UNREADABLE:
                return None
            raise


def _definition(name: str) -> str:
    return f"EntityDefinitions(LogicalName={quote(literal(name))})"
