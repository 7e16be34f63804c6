"""Records and entities: how one becomes the other on the wire, which records are the same, and to which they refer."""

from __future__ import annotations

import re
import uuid
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from penstock.targets.dataverse.odata import address, comparable, guid
from penstock.targets.dataverse.table_metadata import Table
from penstock.targets.model import ErrorKind, Mode, Record, TargetError
from penstock.targets.target import Reference

__all__ = ["Key", "Lookup", "Spelling", "encode", "identity", "key_columns", "references", "referred_tables"]

BIND = "@odata.bind"
BOUND = re.compile(r"/?(\w+)\((.+)\)$")
TYPE = "Microsoft.Dynamics.CRM."
ENCODER = msgspec.json.Encoder(decimal_format="number")

Key = Mapping[str, Any] | str
"""What identifies a record: its GUID, or the columns of an alternate key."""


@dataclass(frozen=True, slots=True)
class Lookup:
    """The value of a lookup column: a record of another table, by its id or by the columns of an alternate key."""

    table: str
    id: str | uuid.UUID | Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Spelling:
    """What must be known of names to write a table's records."""

    table: Table
    references: Mapping[str, str] = field(default_factory=dict)
    """Columns whose plain values are ids of another table's records."""
    sets: Mapping[str, str] = field(default_factory=dict)
    """The entity set of every table referred to."""
    navigation: Mapping[tuple[str, str], str] = field(default_factory=dict)

    def entity(self, record: Record, leave_out: Collection[str] = ()) -> dict[str, Any]:
        """The record as the platform reads it, less some columns; references become bindings."""
        wire: dict[str, Any] = {"@odata.type": TYPE + self.table.name}
        for column, value in record.items():
            if column in leave_out:
                continue
            if type(value) is Lookup:
                wire[self._binding(column, value.table)] = self._bound(value)
            elif column in self.references and not column.endswith(BIND):
                referred = self.references[column]
                wire[self._binding(column, referred)] = None if value is None else self._bound(Lookup(referred, value))
            else:
                wire[column] = value
        return wire

    def _binding(self, column: str, referred: str) -> str:
        return self.navigation.get((column, referred), column) + BIND

    def _bound(self, lookup: Lookup) -> str:
        key = lookup.id if isinstance(lookup.id, Mapping) else guid(lookup.id)
        return "/" + address(self.sets[lookup.table], key)


def referred_tables(records: Iterable[Record], references: Mapping[str, str]) -> set[str]:
    """The tables that records refer to by lookups or by the columns named as references."""
    looked_up = {value.table for record in records for value in record.values() if type(value) is Lookup}
    return looked_up | {table for column, table in references.items() if not column.endswith(BIND)}


def key_columns(record: Record, columns: Sequence[str], references: Mapping[str, str]) -> Mapping[str, Any]:
    """The columns of an alternate key as addresses name them; ValueError when one is empty."""
    missing = [column for column in columns if record.get(column) is None]
    if missing:
        raise ValueError(f"the alternate key is incomplete: {', '.join(missing)} is empty")
    key: dict[str, Any] = {}
    for column in columns:
        value = record[column]
        if isinstance(value, Lookup) or column in references:
            key[f"_{column}_value"] = uuid.UUID(str(value.id if isinstance(value, Lookup) else value))
        else:
            key[column] = value
    return key


def encode(value: Any, position: int | None = None) -> bytes:
    """JSON as the platform reads it: decimals as numbers, bytes in base64, instants in ISO form."""
    try:
        return ENCODER.encode(value)
    except (TypeError, ValueError) as error:
        suspects = () if position is None else (position,)
        message = f"a value cannot be written as JSON: {error}"
        raise TargetError(message, kind=ErrorKind.DATA, code="NotJson", suspects=suspects) from error


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
        if isinstance(value, Lookup):
            yield Reference(column, value.table, value.id)
        elif column.endswith(BIND) and (found := BOUND.fullmatch(str(value))):
            yield Reference(column.removesuffix(BIND), tables.get(found[1], found[1]), found[2])
        elif column in named and value is not None:
            yield Reference(column, named[column], value)
