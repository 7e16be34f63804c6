"""Which records are there: asked before an upsert to label it, and after a lost answer to learn what became of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from urllib.parse import quote
from uuid import UUID

from penstock.targets.dataverse.calls import Call
from penstock.targets.dataverse.entities import Key
from penstock.targets.dataverse.odata import comparable, filters
from penstock.targets.dataverse.table_metadata import Table
from penstock.targets.dataverse.web_api import WebApi

__all__ = ["Found", "present"]

Found = Sequence[str | None]
"""For every record of a call the id under which it is there, or None."""


async def present(api: WebApi, call: Call, source: str) -> Found:
    """Look for the records of a call by what identifies them."""
    keys = [_columns(call.table, call.key(position)) for position in range(len(call))]
    there: dict[tuple[str, ...], str] = {}
    for columns in {tuple(key) for key in keys}:
        wanted = [tuple(key.values()) for key in keys if tuple(key) == columns]
        there |= await _read(api, call.table, columns, wanted, source)
    return [there.get(_comparable(key)) for key in keys]


def _columns(table: Table, key: Key) -> Mapping[str, Any]:
    return {table.id_column: UUID(key)} if isinstance(key, str) else key


async def _read(
    api: WebApi, table: Table, columns: Sequence[str], keys: Sequence[Sequence[Any]], source: str
) -> dict[tuple[str, ...], str]:
    select = ",".join(dict.fromkeys((table.id_column, *columns)))
    found = {}
    for test in filters(columns, keys, are_ids=tuple(columns) == (table.id_column,)):
        for row in await api.read_rows(source, f"{table.entity_set}?$select={select}&$filter={quote(test)}"):
            found[_comparable({column: row.get(column) for column in columns})] = str(row[table.id_column])
    return found


def _comparable(key: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple("" if value is None else f"{column}={comparable(value)}" for column, value in key.items())
