"""Which values the driver can put into a column: looked at only after it refused to, to find out which it was."""

from __future__ import annotations

from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

from penstock.targets.model import ErrorKind, TargetError
from penstock.targets.sql.row_groups import RowGroup
from penstock.targets.sql.table import Column, Table

__all__ = ["wrong_types"]

NUMBER = (int, float, Decimal)
CLASSES: dict[str, tuple[type, ...]] = {
    "smallint": (int,),
    "integer": (int,),
    "bigint": (int,),
    "real": NUMBER,
    "double precision": NUMBER,
    "numeric": (*NUMBER, str),
    "boolean": (bool,),
    "text": (str,),
    "character varying": (str,),
    "bpchar": (str,),
    "date": (date,),
    "timestamp without time zone": (datetime,),
    "timestamp with time zone": (datetime,),
    "time without time zone": (time,),
    "interval": (timedelta,),
    "uuid": (UUID, str),
    "bytea": (bytes, bytearray, memoryview),
}
BITS = {"smallint": 15, "integer": 31, "bigint": 63}


def wrong_types(group: RowGroup, table: Table) -> dict[int, TargetError]:
    """What is wrong with the rows that hold a value of the wrong type, by their index in the group."""
    found: dict[int, TargetError] = {}
    for name in group.columns:
        for i, value in enumerate(group.column(name)):
            problem = _problem(table.columns[name], value)
            if problem and i not in found:
                found[i] = TargetError(
                    f"column {name!r} takes {table.columns[name].full_type}, {problem}",
                    kind=ErrorKind.DATA,
                    code="BAD_TYPE",
                    field=name,
                )
    return found


def _problem(column: Column, value: Any) -> str | None:
    if value is None or (column.is_array and isinstance(value, list | tuple)):
        return None
    classes = (str,) if column.is_copied_as_text else CLASSES.get(column.type, (object,))
    if column.is_array or not isinstance(value, classes):
        return f"not {type(value).__name__}"
    if isinstance(value, int) and column.type in BITS and not -1 <= value >> BITS[column.type] <= 0:
        return "and the number is too large"
    if isinstance(value, str) and ("\0" in value or not _is_unicode(value)):
        return "and the text holds a character that PostgreSQL cannot store"
    return None


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
