"""Which records are the same one, and which others they refer to."""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import Any

from penstock.targets.dataverse.entities import BIND, Lookup
from penstock.targets.dataverse.odata import comparable
from penstock.targets.dataverse.table_metadata import Table
from penstock.targets.model import Mode, Record
from penstock.targets.target import Reference

__all__ = ["identity", "references"]

BOUND = re.compile(r"/?(\w+)\((.+)\)$")


def identity(table: Table, mode: Mode, record: Any, alternate_key: Sequence[str] | None) -> Hashable | None:
    """What two records share when they are the same to the platform: key or id, on elastic tables in one partition."""
    if not isinstance(record, Mapping):
        return comparable(str(record))
    if alternate_key and mode in {Mode.CREATE, Mode.UPSERT}:
        return _values(record, alternate_key)
    if record.get(table.id_column) is None:
        return _values(record, sorted(record)) if mode is Mode.DELETE else None
    own = comparable(str(record[table.id_column]))
    partition = record.get("partitionid") if table.is_elastic else None
    return own if partition is None else (own, partition)


def _values(record: Record, columns: Sequence[str]) -> Hashable | None:
    values = [record.get(column) for column in columns]
    if any(value is None for value in values):
        return None
    return tuple(comparable(str(value.id if isinstance(value, Lookup) else value)) for value in values)


def references(record: Any, named: Mapping[str, str], tables: Mapping[str, str]) -> Iterator[Reference]:
    """The records that a record refers to, by lookups, bindings or columns named as references.

    `tables` gives the table of an entity set, for bindings; one that is not known goes by its entity set.
    """
    if not isinstance(record, Mapping):
        return
    for column, value in record.items():
        if value is None:
            continue
        if isinstance(value, Lookup):
            yield Reference(column, value.table, value.id)
        elif column.endswith(BIND) and (found := BOUND.fullmatch(str(value))):
            yield Reference(column.removesuffix(BIND), tables.get(found[1], found[1]), found[2])
        elif column in named:
            yield Reference(column, named[column], value)
