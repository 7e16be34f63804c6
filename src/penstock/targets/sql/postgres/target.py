"""Tables of PostgreSQL 13 and later as a target."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any
from urllib.parse import parse_qs
from weakref import WeakKeyDictionary

import asyncpg  # type: ignore[import-untyped]

from penstock.targets.model import BadInput, ErrorKind, Mode, Outcome, TargetError, Verdict
from penstock.targets.sql.connections import ConnectionPool
from penstock.targets.sql.postgres.catalog import read_table
from penstock.targets.sql.postgres.error_mapping import DRIVER_ERRORS, STALE, refusal, refusal_of_rows
from penstock.targets.sql.postgres.row_by_row import portions, without_wrong_types, write_rows
from penstock.targets.sql.postgres.values import as_texts
from penstock.targets.sql.postgres.writing import ids_in_table, write_group
from penstock.targets.sql.row_groups import Layout, RowGroup, as_laid_out, by_position
from penstock.targets.sql.server import CANCEL_S, UNDO_S, Pending, ServerTarget, WriteGroup, parts_of_address
from penstock.targets.sql.table import Table, ansi, listed
from penstock.targets.sql.target import GroupVerdicts, TableBatch

__all__ = ["PostgresTarget", "is_committed"]

ASKED_MAX = 50
PAUSE_S = 0.2


TYPES_SEEN: WeakKeyDictionary[Any, dict[str, list[int]]] = WeakKeyDictionary()
"""The types of columns by statements of a connection."""


async def write_with_known_types(connection: Any, work: TableBatch, group: RowGroup) -> tuple[str, Sequence[Verdict]]:
    """Write a group, unless the types of its columns are not what the connection takes them for.

    For minutes the driver remembers how values are copied into a table. After a change of a column's type it would
    send numbers in the old form, which the server may well read as others.
    """
    if work.mode is Mode.CREATE:
        text = f"SELECT {listed(group.columns)} FROM {work.table.quoted(ansi)}"
        # To prepare it locks the table, so that its types stay until the transaction ends.
        statement = await connection.prepare(text, name="")
        types = [attribute.type.oid for attribute in statement.get_attributes()]
        seen = TYPES_SEEN.setdefault(connection, {})
        if seen.setdefault(text, types) != types:
            seen.clear()
            await connection.reload_schema_state()
            raise TargetError(f"the columns of {work.table} have other types now", kind=ErrorKind.RACE)
    return await write_group(connection, work, group)


class PostgresTarget(ServerTarget):
    """A PostgreSQL database. Needs `pip install "penstock[postgres]"`.

    Timeouts hold for each batch's transaction and leave the session alone, so that poolers can be used. `connect` is
    passed on to `asyncpg.connect`. With `synchronous_commit=False` a crash of the server may lose batches it confirmed.
    """

    _driver_errors = DRIVER_ERRORS
    _stale_codes = STALE
    _describe = staticmethod(read_table)
    _write_group = staticmethod(write_with_known_types)
    _ids_in_table = staticmethod(ids_in_table)

    def __init__(
        self,
        dsn: str,
        *,
        connections: int = 4,
        application_name: str = "penstock",
        statement_timeout_s: float = 60.0,
        lock_timeout_s: float = 10.0,
        idle_timeout_s: float = 60.0,
        synchronous_commit: bool = True,
        connect: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__("PostgreSQL", connections)
        dsn = checked_address(dsn)
        settings = {
            "server_settings": {"application_name": application_name},
            # Should the server vanish without a word, its own timeouts do not help.
            "command_timeout": statement_timeout_s + UNDO_S if statement_timeout_s else None,
            **(connect or {}),
        }
        # The settings of a transaction end with it: behind a pooler the session belongs to others too.
        timeouts_s = {
            "statement_timeout": statement_timeout_s,
            "lock_timeout": lock_timeout_s,
            "idle_in_transaction_session_timeout": idle_timeout_s,
        }
        local = "".join(f"; SET LOCAL {name} = {round(value * 1000)}" for name, value in timeouts_s.items())
        local += "" if synchronous_commit else "; SET LOCAL synchronous_commit = off"
        self._begin = f"BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE{local}"
        self._pool: ConnectionPool[Any] = ConnectionPool(
            connections,
            connect=lambda: _connect(dsn, settings),
            close=_close,
            drop=_drop,
            is_alive=lambda connection: not connection.is_closed(),
        )

    async def _write_each(self, work: TableBatch) -> GroupVerdicts:
        told, fitting = without_wrong_types(work)
        async with self._attempt(work) as connection:
            for portion in portions(work.one_by_one(fitting)):
                told.update(await self._portion(connection, work, portion))
        return as_laid_out(work.layout.groups, told)

    async def _portion(self, connection: Any, work: TableBatch, portion: Sequence[RowGroup]) -> dict[int, Verdict]:
        """A few rows in one transaction; if they cannot even be sent together, each in its own."""
        try:
            told = await self._transact(connection, work, portion, write_rows)
        except TargetError as error:
            if error.kind is not ErrorKind.DATA:
                error.maybe_applied |= bool(self._commits.get(work.batch.key))
                raise
            rows = [group.pick([n]) for group in portion for n in range(len(group))]
            if len(rows) == 1:
                return {rows[0].positions[0]: Verdict(Outcome.FAILED, error=error)}
            alone = [await self._portion(connection, work, [row]) for row in rows]
            return {position: verdict for one in alone for position, verdict in one.items()}
        return by_position(portion, told)

    async def _transact(
        self, connection: Any, work: TableBatch, groups: Sequence[RowGroup], write: WriteGroup
    ) -> list[Sequence[Verdict]]:
        try:
            return await super()._transact(connection, work, groups, write)
        except asyncio.CancelledError:
            await self._undo(connection, CANCEL_S)
            raise

    async def _execute(self, connection: Any, statement: str) -> None:
        await connection.execute(statement, timeout=UNDO_S)

    def _as_texts(self, table: Table, layout: Layout) -> tuple[Table, Layout]:
        return as_texts(table, layout)

    def _mapped(self, error: BaseException, work: TableBatch | None, groups: Sequence[RowGroup]) -> TargetError:
        return refusal(error) if work is None else refusal_of_rows(error, groups, work.table)

    async def _is_committed(self, connection: Any, pending: Pending) -> bool:
        return await is_committed(connection, pending.transaction_id)


def checked_address(url: str) -> str:
    """An address as asyncpg takes it, or why it is none; SQLAlchemy's way to name a driver in it is taken too."""
    parts = parts_of_address(url, ("postgresql", "postgres"))
    if parts is None or not (parts.netloc or parse_qs(parts.query).keys() & {"host", "service"}):
        raise BadInput(
            "the address of a PostgreSQL database is postgresql://user:password@host:5432/name; "
            "special characters of a password are encoded: / as %2F"
        )
    return url.replace(parts.scheme, "postgresql", 1)


async def _connect(dsn: str, settings: Mapping[str, Any]) -> Any:
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
        _drop(connection)
        raise refusal(error) from error
    except BaseException:
        _drop(connection)
        raise
    return connection


def _json(value: Any) -> bytes:
    return (value if isinstance(value, str) else json.dumps(value)).encode()


async def _close(connection: Any) -> None:
    """Take leave of the server."""
    try:
        await connection.close(timeout=UNDO_S)
    except DRIVER_ERRORS:
        _drop(connection)


def _drop(connection: Any) -> None:
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
