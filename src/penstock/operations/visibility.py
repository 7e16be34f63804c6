"""Which operations a caller may know of. The rest is for them as if it did not exist."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, false, func, or_

from penstock.operations.tables import operations

__all__ = ["EVERYTHING", "Visible"]


@dataclass(frozen=True, slots=True)
class Visible:
    """The operations of one tenant (None: of all), and of these names (None: of all; folded)."""

    tenant: str | None = None
    names: frozenset[str] | None = None
    known: frozenset[str] = frozenset()  # those of the names that are declared here, as they are written

    @classmethod
    def of(cls, tenant: str | None, names: frozenset[str] | None, definitions: Mapping[str, Any]) -> Visible:
        """What is visible; `definitions`, by folded name, tell how names are written."""
        if names is None:
            return cls(tenant)
        folded = frozenset(name.casefold() for name in names)
        return cls(tenant, folded, frozenset(definitions[name].name for name in folded & definitions.keys()))

    @property
    def conditions(self) -> tuple[ColumnElement[bool], ...]:
        """What holds for an operation that is visible; nothing where all are."""
        found: list[ColumnElement[bool]] = []
        if self.tenant is not None:
            column = operations.c.tenant
            found.append(column == self.tenant if self.tenant else column.is_(None))
        if self.names is not None:
            # One by one, and not as a list, so that the statement can be prepared.
            is_known = (operations.c.name == name for name in sorted(self.known))
            # SQLite's lower() knows no letters but those of ASCII.
            by_case = (func.lower(operations.c.name) == name for name in sorted(self.names))
            found.append(or_(false(), *is_known, *by_case))
        return tuple(found)

    def includes(self, name: str) -> bool:
        """Whether operations of this name are visible."""
        return self.names is None or name.casefold() in self.names


EVERYTHING = Visible()
