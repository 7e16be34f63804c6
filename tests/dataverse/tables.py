"""What the remote's tables are declared to hold."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

__all__ = ["Column", "Lookup", "Table", "stable_id"]

NAMESPACE = uuid.UUID("6ba7b812-9dad-11d1-80b4-00c04fd430c8")
KINDS: dict[str, tuple[type, ...]] = {
    "String": (str,),
    "Integer": (int,),
    "Decimal": (int, float),
    "Boolean": (bool,),
    "DateTime": (str,),
    "Picklist": (int,),
    "Uniqueidentifier": (str,),
}
EDM = {
    "String": "Edm.String",
    "Integer": "Edm.Int32",
    "Decimal": "Edm.Decimal",
    "Boolean": "Edm.Boolean",
    "DateTime": "Edm.DateTimeOffset",
    "Picklist": "Edm.Int32",
    "Uniqueidentifier": "Edm.Guid",
}


def stable_id(*names: str) -> str:
    """The same GUID for the same names, in every process."""
    return str(uuid.uuid5(NAMESPACE, "/".join(names)))


@dataclass(frozen=True)
class Column:
    """A column; `options` are the values and labels of a picklist."""

    name: str
    kind: str = "String"
    length_max: int | None = None
    is_required: bool = False
    options: Mapping[int, str] = field(default_factory=dict)

    def takes(self, value: Any) -> bool:
        """Whether a JSON value has the column's type; null always has."""
        is_bool_elsewhere = isinstance(value, bool) and self.kind != "Boolean"
        return value is None or (isinstance(value, KINDS[self.kind]) and not is_bool_elsewhere)


@dataclass(frozen=True)
class Lookup:
    """A column that refers to a record; clients bind it by its navigation name, whose case matters."""

    name: str
    table: str
    navigation: str = ""

    @property
    def bind(self) -> str:
        """The member of a payload that sets the reference."""
        return f"{self.navigation or self.name}@odata.bind"

    @property
    def value(self) -> str:
        """The member of an answer that shows the reference."""
        return f"_{self.name}_value"


@dataclass(frozen=True)
class Table:
    """A table by its logical name and its entity set.

    `columns` are names (text columns) or `Column`s. `keys` maps the names of alternate keys to their columns. Rows that
    agree in all columns of a duplicate rule are duplicates when the caller asks for detection. `is_new` marks a table
    whose first bulk call still builds what later ones need; calls beside it fail with the race codes. A table without
    `has_bulk` refuses the bulk actions, as some system tables do.
    """

    name: str
    entity_set: str
    columns: Sequence[Column | str] = ("name",)
    keys: Mapping[str, Sequence[str]] = field(default_factory=dict)
    lookups: Sequence[Lookup] = ()
    elastic: bool = False
    duplicate_rules: Sequence[Sequence[str]] = ()
    is_new: bool = False
    has_bulk: bool = True

    @property
    def primary_id(self) -> str:
        """The column that holds a record's GUID."""
        return f"{self.name}id"

    @cached_property
    def declared(self) -> dict[str, Column]:
        """Every column by name, the primary id and an elastic table's partition too."""
        given = [column if isinstance(column, Column) else Column(column) for column in self.columns]
        own = [Column(self.primary_id, "Uniqueidentifier")]
        if self.elastic:
            own.append(Column("partitionid"))
        return {column.name: column for column in (*own, *given)}

    @cached_property
    def binds(self) -> dict[str, Lookup]:
        """The lookups by the payload member that sets them."""
        return {lookup.bind: lookup for lookup in self.lookups}

    @property
    def messages(self) -> frozenset[str]:
        """The bulk messages listed for the table; upsert is never listed."""
        if not self.has_bulk:
            return frozenset()
        listed = {"CreateMultiple", "UpdateMultiple"}
        return frozenset(listed | {"DeleteMultiple"} if self.elastic else listed)
