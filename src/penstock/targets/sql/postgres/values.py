"""Values and the columns they are for.

The server reads texts for dates, intervals, arrays and other types, since it knows many ways to write them. Which
values the driver can put into a column is looked at only after it refused to, to find out which it was.
"""

from __future__ import annotations

import json
import re
from dataclasses import replace
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from math import inf
from typing import Any
from uuid import UUID

from penstock.targets.model import ErrorKind, TargetError
from penstock.targets.sql.keys import fault
from penstock.targets.sql.row_groups import Layout, RowGroup
from penstock.targets.sql.table import Column, Table
from penstock.targets.sql.values import as_uuid

__all__ = ["as_texts", "in_column", "values_at_fault", "wrong_types"]

DATA_EXCEPTION = "22"
UNSTORABLE = re.compile("[\0\ud800-\udfff]")
"""Zeros, and halves of characters, which are no Unicode."""
NUMBER = (int, float, Decimal)
CLASSES: dict[str, tuple[type, ...]] = {
    **dict.fromkeys(("smallint", "integer", "bigint"), (int,)),
    **dict.fromkeys(("real", "double precision"), NUMBER),
    "numeric": (*NUMBER, str),
    "boolean": (bool,),
    **dict.fromkeys(("text", "character varying", "bpchar"), (str,)),
    "date": (date,),
    **dict.fromkeys(("timestamp without time zone", "timestamp with time zone"), (datetime,)),
    "time without time zone": (time,),
    "interval": (timedelta,),
    "uuid": (UUID, str),
    "bytea": (bytes, bytearray, memoryview),
}
SIZE = re.compile(r"numeric\((\d+),(-?\d+)\)")
REAL_MAX = 3.4028235e38
UUID_CHARS = range(32, 37)
"""What the driver reads; the server also takes braces."""
BITS = {"smallint": 15, "integer": 31, "bigint": 63}


def as_texts(table: Table, layout: Layout) -> tuple[Table, Layout]:
    """A batch whose texts go to the server as texts, with all other values of their columns; usually as it is."""
    names = {name for group in layout.groups for name in _columns_with_texts(group, table)}
    if not names:
        return table, layout
    marked = {
        name: replace(column, is_copied_as_text=True, is_given_as_text=True, is_array=False)
        if name in names
        else column
        for name, column in table.columns.items()
    }
    return replace(table, columns=marked), replace(layout, groups=[_written(group, names) for group in layout.groups])


def values_at_fault(group: RowGroup, table: Table, error: TargetError) -> list[tuple[int, str]]:
    """The rows, and their columns, with a value that the server plainly complains of: its errors name no column."""
    if not (error.code or "").startswith(DATA_EXCEPTION) or error.field is not None:
        return []
    return [
        (i, name)
        for name in group.columns
        for i, value in enumerate(group.column(name))
        if value is not None and _is_meant(table.columns[name], value, error)
    ]


def _is_meant(column: Column, value: Any, error: TargetError) -> bool:
    if column.is_given_as_text or f" enum {column.type}:" in error.message:
        return f'"{value}"' in error.message
    match error.code:
        case "22001" if column.length_max is not None and isinstance(value, str):
            return len(value.rstrip(" ")) > column.length_max
        case "22003" if (size := SIZE.fullmatch(column.full_type)) and isinstance(value, int | float | Decimal):
            return bool(_size(value) >= 10 ** (int(size[1]) - int(size[2])))
        case "22P02" if column.type in ("json", "jsonb") and isinstance(value, str):
            return not _is_json(value)
    return False


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


def in_column(error: TargetError, name: str) -> TargetError:
    """The same error, with the column named."""
    return error.but(message=f"column {name!r}: {error.message}", kind=ErrorKind.DATA, field=name)


def _columns_with_texts(group: RowGroup, table: Table) -> list[str]:
    return [
        name
        for name in group.columns
        if table.columns[name].is_read_by_server and str in set(map(type, group.column(name)))
    ]


def _written(group: RowGroup, names: set[str]) -> RowGroup:
    columns = zip(group.columns, group.values, strict=True)
    return replace(group, values=[list(map(_text, values)) if name in names else values for name, values in columns])


def _text(value: Any) -> Any:
    """A value as the server reads it."""
    match value:
        case None | str():
            return value
        case datetime() | date() | time():
            return value.isoformat()
        case timedelta():
            return f"{value.total_seconds()} seconds"
        case bytes() | bytearray() | memoryview():
            return f"\\x{bytes(value).hex()}"
        case list() | tuple():
            return "{" + ",".join("NULL" if one is None else f'"{_escaped(_text(one))}"' for one in value) + "}"
    return str(value)


def _escaped(text: Any) -> str:
    return str(text).replace("\\", "\\\\").replace('"', '\\"')


def wrong_types(group: RowGroup, table: Table) -> dict[int, TargetError]:
    """What is wrong with the rows that hold a value of the wrong type, by their index in the group."""
    found: dict[int, TargetError] = {}
    for name in group.columns:
        for i, value in enumerate(group.column(name)):
            problem = _problem(table.columns[name], value)
            if problem and i not in found:
                message = f"column {name!r} takes {table.columns[name].full_type}, {problem}"
                found[i] = fault("BAD_TYPE", message, name)
    return found


def _problem(column: Column, value: Any) -> str | None:
    if value is None or (column.is_array and isinstance(value, list | tuple)):
        return None
    classes = (str,) if column.is_copied_as_text else CLASSES.get(column.type, (object,))
    if column.is_array or not isinstance(value, classes):
        return f"not {type(value).__name__}"
    return _problem_of_text(column, value) if isinstance(value, str) else _problem_of_size(column, value)


def _problem_of_size(column: Column, value: Any) -> str | None:
    is_whole = isinstance(value, int) and column.type in BITS
    is_too_large = is_whole and not -1 <= value >> BITS[column.type] <= 0
    if is_too_large or (column.type == "real" and REAL_MAX < _size(value) < inf):
        return "and the number is too large"
    return None


def _size(value: Any) -> Any:
    """How large a number is; NaN is of no size, and decimals refuse to compare it."""
    return 0 if isinstance(value, Decimal) and value.is_nan() else abs(value)


def _problem_of_text(column: Column, text: str) -> str | None:
    if UNSTORABLE.search(text):
        return "and the text holds a character that PostgreSQL cannot store"
    if column.type == "uuid" and not (len(text) in UUID_CHARS and isinstance(as_uuid(text), UUID)):
        return f"not the text {text!r}"
    return None
