"""Tables of MariaDB 10.5 and later as a target."""

from __future__ import annotations

import ssl
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, date, datetime, time, timedelta
from decimal import Decimal
from types import NoneType
from typing import Any
from urllib.parse import parse_qsl, unquote

import asyncmy

from penstock.targets.model import BadInput, TargetError
from penstock.targets.sql.connections import ConnectionPool
from penstock.targets.sql.mariadb.catalog import read_table
from penstock.targets.sql.mariadb.writing import DRIVER_ERRORS, ids_in_table, is_done, told, write_each, write_group
from penstock.targets.sql.row_groups import Layout, RowGroup, as_laid_out, by_position
from penstock.targets.sql.server import Pending, ServerTarget, parts_of_address
from penstock.targets.sql.table import Table
from penstock.targets.sql.target import GroupVerdicts, TableBatch
from penstock.targets.sql.values import UNKNOWN_TO_DRIVERS, Converters, finite

__all__ = ["MariaDbTarget"]

GRACE_S = 30.0
"""How much longer than a statement may take an answer is awaited."""
PLAIN_OPTIONS: dict[str, Callable[[str], Any]] = {
    "unix_socket": str,
    "charset": str,
    "connect_timeout": int,
    "read_timeout": int,
    "init_command": str,
}
EXACT = ("tinyint", "smallint", "mediumint", "int", "bigint", "decimal")
TLS_OPTIONS = ("ssl", "ssl_ca", "ssl_cert", "ssl_key")
SQL_MODE = "STRICT_TRANS_TABLES,ERROR_FOR_DIVISION_BY_ZERO,NO_ENGINE_SUBSTITUTION,NO_AUTO_VALUE_ON_ZERO"


class MariaDbTarget(ServerTarget):
    """A MariaDB database, `mariadb://user:password@host:3306/name?ssl=true`. Needs `pip install "penstock[mariadb]"`.

    `ssl` is `true` or the file of an authority; `ssl_ca`, `ssl_cert` and `ssl_key` name files.
    Values are taken strictly: one that does not fit is an error and never cut. `connect` is passed on to
    `asyncmy.connect`.
    """

    _driver_errors = DRIVER_ERRORS
    _describe = staticmethod(read_table)
    _write_group = staticmethod(write_group)
    _ids_in_table = staticmethod(ids_in_table)
    _converters = Converters(
        known=(NoneType, int, float, str, bytes, bytearray, Decimal, date, time, timedelta),
        made={
            **UNKNOWN_TO_DRIVERS,
            datetime: lambda value: value.astimezone(UTC).replace(tzinfo=None) if value.tzinfo else value,
            float: finite,
            Decimal: finite,
        },
    )

    def __init__(
        self,
        url: str,
        *,
        connections: int = 4,
        statement_timeout_s: float = 60.0,
        lock_timeout_s: int = 10,
        connect: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__("MariaDB", connections)
        self._connect_with = {
            "charset": "utf8mb4",
            "autocommit": True,
            "binary_prefix": True,
            "program_name": "penstock",
            "read_timeout": statement_timeout_s + GRACE_S if statement_timeout_s else None,
            **_place(url),
            **(connect or {}),
        }
        self._session = (
            f"SET SESSION sql_mode = '{SQL_MODE}', sql_notes = 0, time_zone = '+00:00', "
            f"max_statement_time = {statement_timeout_s:f}, innodb_lock_wait_timeout = {lock_timeout_s:d}"
        )
        self._pool: ConnectionPool[Any] = ConnectionPool(
            connections,
            connect=self._connect,
            close=lambda connection: connection.ensure_closed(),
            drop=lambda connection: connection.close(),
            is_alive=lambda connection: bool(connection.connected),
        )

    def _can_reconcile(self, key: tuple[str, ...]) -> bool:
        return bool(key)

    async def _write_each(self, work: TableBatch) -> GroupVerdicts:
        async with self._attempt(work) as connection:
            groups = work.one_by_one(work.layout.groups)
            told = by_position(groups, await self._transact(connection, work, groups, write_each))
        return as_laid_out(work.layout.groups, told)

    async def _execute(self, connection: Any, statement: str) -> None:
        await connection.query(statement)

    def _as_texts(self, table: Table, layout: Layout) -> tuple[Table, Layout]:
        return table, replace(layout, groups=[_exact(group, table) for group in layout.groups])

    def _mapped(self, error: BaseException, work: TableBatch | None, groups: Sequence[RowGroup]) -> TargetError:
        return told(error)

    async def _is_committed(self, connection: Any, pending: Pending) -> bool:
        """MariaDB cannot be asked about a transaction: look whether the table holds what it would have left."""
        await connection.begin()
        is_there = await is_done(connection, pending)
        await connection.rollback()
        return is_there

    async def _connect(self) -> Any:
        try:
            connection = await asyncmy.connect(**self._connect_with)
        except DRIVER_ERRORS as error:
            raise told(error) from error
        try:
            async with connection.cursor() as cursor:
                await cursor.execute(self._session)
                # Locks on gaps between rows, which the default takes, make batches of new keys deadlock.
                await cursor.execute("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED")
        except DRIVER_ERRORS as error:
            connection.close()
            raise told(error) from error
        except BaseException:
            connection.close()
            raise
        return connection


def _exact(group: RowGroup, table: Table) -> RowGroup:
    """The rows with floats as decimals where other values of their column would become floats beside them."""
    return replace(
        group,
        values=[
            [Decimal(repr(value)) if type(value) is float else value for value in values]
            if table.columns[name].type in EXACT and {float} < set(map(type, values)) - {NoneType}
            else values
            for name, values in zip(group.columns, group.values, strict=True)
        ],
    )


def _place(url: str) -> dict[str, Any]:
    parts = parts_of_address(url, ("mariadb", "mysql"))
    name = parts.path.strip("/") if parts is not None else ""
    if parts is None or not name:
        raise BadInput(
            "the address of a MariaDB database is mariadb://user:password@host:3306/name; "
            "special characters of a password are encoded: / as %2F"
        )
    return {
        "host": parts.hostname or "localhost",
        "port": parts.port or 3306,
        "user": unquote(parts.username or ""),
        "password": unquote(parts.password or ""),
        "database": unquote(name),
        **_options(dict(parse_qsl(parts.query, keep_blank_values=True))),
    }


def _options(given: dict[str, str]) -> dict[str, Any]:
    """The driver's arguments from what stands behind the question mark of an address."""
    unknown = sorted(set(given) - {*PLAIN_OPTIONS, *TLS_OPTIONS})
    if unknown:
        known = ", ".join((*PLAIN_OPTIONS, *TLS_OPTIONS))
        raise BadInput(f"{', '.join(unknown)} is no option of a MariaDB address; it takes: {known}")
    options: dict[str, Any] = {name: kind(given[name]) for name, kind in PLAIN_OPTIONS.items() if name in given}
    if given.get("ssl", "true" if given.keys() & TLS_OPTIONS else "false").lower() in ("false", "0", ""):
        return options
    authority = given.get("ssl_ca") or (None if given.get("ssl", "true").lower() in ("true", "1") else given["ssl"])
    context = ssl.create_default_context(cafile=authority)
    if "ssl_cert" in given:
        context.load_cert_chain(given["ssl_cert"], given.get("ssl_key"))
    return options | {"ssl": context}
