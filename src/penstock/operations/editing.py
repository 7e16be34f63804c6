"""Correcting a row's data: the changes are put into the row as it was read, and checked before they are accepted."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from penstock.errors import Conflict, Fault, RowInvalid
from penstock.operations.model import RowView

__all__ = ["edited"]


def edited(row: RowView, changes: Mapping[str, Any], columns: tuple[str, ...] | None) -> Any:
    """The raw row with the changes in place: cells for a file with columns, otherwise a record.

    `Conflict` when the row's data is not kept; `RowInvalid` names every change that fits no column.
    """
    if row.data is None:
        raise Conflict(
            f"row {row.number} cannot be edited: its operation keeps no row data, or was cancelled before it was read"
        )
    # A row that could not be read as a record has nothing to keep: the changes must say it all.
    before = row.data if isinstance(row.data, Mapping) else {}
    if columns is None:
        return {**before, **changes}
    unknown = [name for name in changes if name not in columns]
    if unknown:
        known = ", ".join(columns)
        raise RowInvalid(faults=[Fault(f"no such column; there are: {known}", name) for name in unknown])
    merged = {**before, **changes}
    return [_cell(merged.get(name)) for name in columns]


def _cell(value: Any) -> str:
    match value:
        case None:
            return ""
        case bool():
            return "true" if value else "false"
        case _:
            return str(value)
