"""Errors of the driver and the server as errors of a target."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from typing import Any, TypeVar

import asyncpg  # type: ignore[import-untyped]

from penstock.targets.model import ErrorKind, Limit, TargetError
from penstock.targets.sql.connections import FULL_WAIT_S
from penstock.targets.sql.postgres.error_codes import kind_of, suspects
from penstock.targets.sql.postgres.texts import in_column, quoted_texts
from penstock.targets.sql.postgres.type_check import wrong_types
from penstock.targets.sql.row_groups import RowGroup
from penstock.targets.sql.table import Table

__all__ = ["DRIVER_ERRORS", "Unsendable", "described", "driven", "refusal", "refusal_of_rows"]

T = TypeVar("T")
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
        quoted = [(group.positions[i], name) for group in groups for i, name in quoted_texts(group, table, told)]
        told = in_column(told, quoted[0][1]) if quoted else told
        found = [at for at, _ in quoted] or [
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
