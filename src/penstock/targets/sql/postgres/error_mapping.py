"""Errors of the driver and the server as errors of a target, and the rows of a batch that they point at."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Iterable, Sequence
from datetime import date, datetime
from typing import Any, TypeVar

import asyncpg  # type: ignore[import-untyped]

from penstock.targets.model import ErrorKind, Limit, TargetError
from penstock.targets.sql.connections import FULL_WAIT_S
from penstock.targets.sql.postgres.values import in_column, values_at_fault, wrong_types
from penstock.targets.sql.row_groups import RowGroup
from penstock.targets.sql.table import Table

__all__ = ["DRIVER_ERRORS", "STALE", "described", "driven", "kind_of", "refusal", "refusal_of_rows", "suspects"]

T = TypeVar("T")
# fmt: off
CODES = {
    ErrorKind.THROTTLED:  ("53300", "53400"),                    # too many connections; a configured limit
    ErrorKind.TOKEN:      ("28000", "28P01"),
    ErrorKind.PERMISSION: ("42501",),
    ErrorKind.CONNECTION: ("57P01", "57P02", "57P03",            # shut down; another backend crashed; starting up
                           "57P05", "25P03"),                    # idle too long, also in a transaction
    ErrorKind.DEADLOCK:   ("40P01", "40001", "55P03"),           # deadlock; serialization failure; lock wait
    ErrorKind.TOO_BIG:    ("57014", "25P04", "54000", "53200"),  # statement or transaction time; limits; memory
    ErrorKind.DATA:       ("21000", "44000", "428C9"),           # a row twice; a check option; a generated column
    ErrorKind.RACE:       ("42P01", "42703", "42704"),           # it was there a moment ago: someone is changing it
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
KINDS = {code: kind for kind, codes in CODES.items() for code in codes}
STALE = frozenset({"42P01", "42703", "42704", "42804", "42P10"})
"""Codes after which what we know of the table is out of date."""

KEY_IN_DETAIL = re.compile(r"\((?P<columns>.+?)\)=\((?P<values>.*)\)", re.DOTALL)
LINE_IN_CONTEXT = re.compile(r"^COPY [^\n]*?, \w+ (?P<line>\d+)\b")
TOO_MANY_CONNECTIONS = "53300"


class Unsendable(ValueError):
    """The driver cannot encode a value."""


TOLD = (asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError, OSError)
DRIVER_ERRORS = (*TOLD, Unsendable)
"""What a call through `driven` may raise."""
WHOLE_ROW = ("23502", "23514")
"""Codes whose detail is nothing but all values of the row."""
BAD_TYPES = (asyncpg.InternalClientError, asyncpg.UnsupportedClientFeatureError)
"""What the driver raises about a type that it has no form for; errors of the protocol are among the former."""
FACTS = ("constraint_name", "table_name", "column_name", "detail", "hint")


async def driven(call: Awaitable[T]) -> T:
    """What the driver answers. Its encoders raise whatever Python does about a value; that becomes `Unsendable`."""
    try:
        return await call
    except TOLD:
        raise
    except Exception as error:
        raise Unsendable(str(error)) from error


def refusal(error: BaseException) -> TargetError:
    """Any error as a target's, without a look at the rows."""
    if isinstance(error, asyncpg.InvalidCachedStatementError | asyncpg.OutdatedSchemaCacheError):
        return TargetError(str(error), kind=ErrorKind.RACE, code=getattr(error, "sqlstate", None))
    if isinstance(error, asyncpg.PostgresError) and _is_told_by_server(error):
        return described(str(error.sqlstate), error.args[0], {name: getattr(error, name, None) for name in FACTS})
    if isinstance(error, BAD_TYPES) and not isinstance(error, asyncpg.ProtocolError):
        return TargetError(f"the driver cannot send a value: {error}", kind=ErrorKind.DATA, code="BAD_TYPE")
    if isinstance(error, asyncpg.InterfaceError | asyncpg.InternalClientError | OSError):
        return TargetError(f"the connection failed: {str(error) or type(error).__name__}", kind=ErrorKind.CONNECTION)
    return TargetError(
        f"the driver cannot send a value: {error.__cause__ or error}", kind=ErrorKind.DATA, code="BAD_TYPE"
    )


def _is_told_by_server(error: Any) -> bool:
    """The driver borrows the server's classes for its own trouble with a value, and for a connection that is gone."""
    return error.severity is not None or not isinstance(error, asyncpg.DataError)


def described(code: str, message: str, facts: dict[str, Any]) -> TargetError:
    """An error the server told: SQLSTATE, message and what it knows beside."""
    details = {name.removesuffix("_name"): value for name, value in facts.items() if value}
    is_full = code == TOO_MANY_CONNECTIONS
    return TargetError(
        message + _beside(code, details),
        kind=kind_of(code),
        code=code,
        field=facts.get("column_name") or None,
        details=details,
        limit=Limit.CONCURRENCY if is_full else None,
        retry_after_s=FULL_WAIT_S if is_full else None,
    )


def _beside(code: str, details: dict[str, Any]) -> str:
    """What makes the message complete: which key it is about, and what to do."""
    said = [details["detail"].rstrip(".")] if "detail" in details and code not in WHOLE_ROW else []
    if "hint" in details:
        said.append(f"hint: {details['hint'].rstrip('.')}")
    return f" ({'; '.join(said)})" if said else ""


def refusal_of_rows(error: BaseException, groups: Sequence[RowGroup], table: Table) -> TargetError:
    """The error of these groups, with the positions in the batch of the rows it points at."""
    told = refusal(error)
    if isinstance(error, asyncpg.PostgresError) and _is_told_by_server(error):
        facts = {"column": error.column_name, "detail": error.detail, "context": error.context}
        at_fault = [(group.positions[i], name) for group in groups for i, name in values_at_fault(group, table, told)]
        told = in_column(told, at_fault[0][1]) if at_fault else told
        found = [at for at, _ in at_fault] or [
            group.positions[i] for group in groups for i in suspects(group, table, code=str(error.sqlstate), **facts)
        ]
    elif told.kind is ErrorKind.DATA:
        wrong = {group.positions[i]: fault for group in groups for i, fault in wrong_types(group, table).items()}
        found = list(wrong)
        told = wrong[min(found)] if found else told
    else:
        found = []
    told.suspects = tuple(sorted(found))
    return told


def kind_of(code: str) -> ErrorKind:
    """The class of an SQLSTATE."""
    return KINDS.get(code) or CLASSES.get(code[:2], ErrorKind.OTHER)


def suspects(
    group: RowGroup, table: Table, *, code: str, column: str | None, detail: str | None, context: str | None
) -> list[int]:
    """The rows an error points at, as far as it says; in doubt none."""
    too_long = _too_long(group, table) if code == "22001" else []
    line = LINE_IN_CONTEXT.match(context or "")
    if line and int(line["line"]) <= len(group):
        named = int(line["line"]) - 1
        return too_long if named in too_long else [named]  # COPY stops at the first
    if code == "23502" and column in group.columns:
        return [i for i, value in enumerate(group.column(column)) if value is None]
    if too_long:
        return too_long
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
