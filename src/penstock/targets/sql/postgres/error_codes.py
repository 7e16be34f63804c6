"""What PostgreSQL's error codes mean for a batch, and which of its rows they point at."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from datetime import date, datetime
from typing import Any

from penstock.targets.model import ErrorKind
from penstock.targets.sql.row_groups import RowGroup
from penstock.targets.sql.table import Table

__all__ = ["STALE", "kind_of", "suspects"]

# fmt: off
CODES = {
    "53300": ErrorKind.THROTTLED,     # too many connections
    "53400": ErrorKind.THROTTLED,     # a configured limit
    "28000": ErrorKind.TOKEN,
    "28P01": ErrorKind.TOKEN,
    "42501": ErrorKind.PERMISSION,
    "57P03": ErrorKind.CONNECTION,    # still starting up
    "57P01": ErrorKind.CONNECTION,    # shut down by an administrator
    "57P02": ErrorKind.CONNECTION,    # another backend crashed
    "57P05": ErrorKind.CONNECTION,    # idle too long
    "25P03": ErrorKind.CONNECTION,    # idle in a transaction too long
    "40P01": ErrorKind.DEADLOCK,
    "40001": ErrorKind.DEADLOCK,      # serialization failure
    "55P03": ErrorKind.DEADLOCK,      # waited too long for a lock
    "57014": ErrorKind.TOO_BIG,       # statement timeout
    "25P04": ErrorKind.TOO_BIG,       # transaction timeout
    "54000": ErrorKind.TOO_BIG,
    "53200": ErrorKind.TOO_BIG,       # out of memory
    "21000": ErrorKind.DATA,          # one statement would write a row twice
    "42P01": ErrorKind.RACE,          # the table was there a moment ago: someone is changing it
    "42703": ErrorKind.RACE,
    "42704": ErrorKind.RACE,
    "44000": ErrorKind.DATA,          # a view's check option
    "428C9": ErrorKind.DATA,          # a generated column was given a value
}
CLASSES = {
    "08": ErrorKind.CONNECTION,
    "22": ErrorKind.DATA,
    "23": ErrorKind.DATA,
    "0A": ErrorKind.UNSUPPORTED,
    "38": ErrorKind.BUSINESS,         # functions of the database
    "39": ErrorKind.BUSINESS,
    "P0": ErrorKind.BUSINESS,         # raised by a trigger or function
}
# fmt: on
STALE = frozenset({"42P01", "42703", "42704", "42804", "42P10"})
"""Codes after which what we know of the table is out of date."""

KEY_IN_DETAIL = re.compile(r"\((?P<columns>.+?)\)=\((?P<values>.*)\)", re.DOTALL)
LINE_IN_CONTEXT = re.compile(r"^COPY [^\n]*?, \w+ (?P<line>\d+)\b")


def kind_of(code: str) -> ErrorKind:
    """The class of an SQLSTATE."""
    return CODES.get(code) or CLASSES.get(code[:2], ErrorKind.OTHER)


def suspects(
    group: RowGroup, table: Table, *, code: str, column: str | None, detail: str | None, context: str | None
) -> list[int]:
    """The rows an error points at, as far as it says; in doubt none."""
    line = LINE_IN_CONTEXT.match(context or "")
    if line and int(line["line"]) <= len(group):
        return [int(line["line"]) - 1]
    if code == "23502" and column in group.columns:
        return [i for i, value in enumerate(group.column(column)) if value is None]
    if code == "22001":
        return _too_long(group, table)
    key = KEY_IN_DETAIL.search(detail or "") if code[:2] == "23" else None
    return _with_values(group, key["columns"].split(", "), key["values"]) if key else []


def _too_long(group: RowGroup, table: Table) -> list[int]:
    found: set[int] = set()
    for name in group.columns:
        longest = table.columns[name].length_max
        if longest is not None:
            found |= {i for i, v in enumerate(group.column(name)) if isinstance(v, str) and len(v) > longest}
    return sorted(found)


def _with_values(group: RowGroup, columns: Sequence[str], values: str) -> list[int]:
    names = [name.strip('"').replace('""', '"') for name in columns]
    if not set(names) <= set(group.columns):
        return []
    rows: Iterable[tuple[Any, ...]] = zip(*(group.column(name) for name in names), strict=True)
    return [i for i, row in enumerate(rows) if ", ".join(map(_as_told, row)) == values]


def _as_told(value: Any) -> str:
    """A value as error details write it."""
    if isinstance(value, bool):
        return "t" if value else "f"
    if isinstance(value, datetime):
        return value.isoformat(sep=" ")
    return value.isoformat() if isinstance(value, date) else str(value)
