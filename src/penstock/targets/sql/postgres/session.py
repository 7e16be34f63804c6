"""Connections to PostgreSQL: how they are opened, begin a transaction, and end."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import asyncpg  # type: ignore[import-untyped]

from penstock.targets.model import ErrorKind, TargetError
from penstock.targets.sql.postgres.error_mapping import DRIVER_ERRORS, refusal
from penstock.targets.sql.server import UNDO_S

__all__ = ["begin", "close", "connect_to", "drop", "is_committed"]

ASKED_MAX = 50
PAUSE_S = 0.2


async def connect_to(dsn: str, settings: Mapping[str, Any]) -> Any:
    """A connection whose JSON columns take text that is JSON already, or anything that can become it."""
    try:
        connection = await asyncpg.connect(dsn, **settings)
    except DRIVER_ERRORS as error:
        raise refusal(error) from error
    try:
        for name, head in (("json", b""), ("jsonb", b"\x01")):
            await connection.set_type_codec(
                name,
                schema="pg_catalog",
                format="binary",
                encoder=lambda value, head=head: head + _json(value),
                decoder=lambda value, head=head: json.loads(value[len(head) :]),
            )
    except DRIVER_ERRORS as error:
        drop(connection)
        raise refusal(error) from error
    return connection


def _json(value: Any) -> bytes:
    return (value if isinstance(value, str) else json.dumps(value)).encode()


def begin(statement_timeout_s: float, lock_timeout_s: float, idle_timeout_s: float, is_synchronous: bool) -> str:
    """What begins a transaction. Its settings end with it: behind a pooler the session belongs to others too."""
    settings = {
        "statement_timeout": round(statement_timeout_s * 1000),
        "lock_timeout": round(lock_timeout_s * 1000),
        "idle_in_transaction_session_timeout": round(idle_timeout_s * 1000),
        **({} if is_synchronous else {"synchronous_commit": "off"}),
    }
    local = "".join(f"; SET LOCAL {name} = {value}" for name, value in settings.items())
    return f"BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE{local}"


async def close(connection: Any) -> None:
    """Take leave of the server."""
    try:
        await connection.close(timeout=UNDO_S)
    except DRIVER_ERRORS:
        drop(connection)


def drop(connection: Any) -> None:
    """Let go at once."""
    if not connection.is_closed():
        connection.terminate()


async def is_committed(
    connection: Any, transaction_id: str, sleep: Callable[[float], Awaitable[Any]] = asyncio.sleep
) -> bool:
    """Whether a transaction whose commit was never answered took effect."""
    status = None
    for _ in range(ASKED_MAX):
        status = await connection.fetchval("SELECT pg_xact_status($1::text::xid8)", transaction_id)
        if status in ("committed", "aborted"):
            return bool(status == "committed")
        if status is None:
            break
        await sleep(PAUSE_S)  # the server has not noticed yet that its client is gone
    raise TargetError(
        f"transaction {transaction_id} is {status or 'too old to ask about'}; whether it committed is not known",
        kind=ErrorKind.CONNECTION,
        maybe_applied=True,
    )
