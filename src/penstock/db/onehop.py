"""A SQLite cursor that visits its connection's thread once for each statement.

The stock adapter goes there and back to open a cursor, to execute, to fetch and to close; each visit costs a hundred
microseconds of two threads waking each other, more than the statement itself.
"""

from __future__ import annotations

import sqlite3
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from sqlalchemy import event
from sqlalchemy.dialects.sqlite.aiosqlite import AsyncAdapt_aiosqlite_connection, AsyncAdapt_aiosqlite_cursor
from sqlalchemy.ext.asyncio import AsyncEngine
from sqlalchemy.util.concurrency import await_

__all__ = ["use_one_hop"]


class _OneHopCursor(AsyncAdapt_aiosqlite_cursor):
    __slots__ = ("_description", "_lastrowid", "_rowcount")

    def __init__(self, adapt_connection: AsyncAdapt_aiosqlite_connection) -> None:
        self._adapt_connection = adapt_connection
        self._connection = adapt_connection._connection
        self._rows = deque()
        self._description: Any = None
        self._lastrowid = self._rowcount = -1

    description = property(lambda self: self._description)
    rowcount = property(lambda self: self._rowcount)
    lastrowid = property(lambda self: self._lastrowid)
    arraysize = 1

    def execute(self, operation: str, parameters: Any = None) -> None:
        self._visit(lambda cursor: cursor.execute(operation, parameters or ()))

    def executemany(self, operation: str, seq_of_parameters: Sequence[Any]) -> None:
        self._visit(lambda cursor: cursor.executemany(operation, seq_of_parameters))

    async def _async_soft_close(self) -> None:
        """Nothing is open."""

    def close(self) -> None:
        self._rows.clear()

    def _visit(self, run: Callable[[sqlite3.Cursor], object]) -> None:
        try:
            self._rows = await_(self._connection._execute(self._there, run))
        except Exception as error:
            self._adapt_connection._handle_exception(error)

    def _there(self, run: Callable[[sqlite3.Cursor], object]) -> deque[Any]:
        """The part that happens on the connection's thread."""
        cursor = self._connection._conn.cursor()
        try:
            run(cursor)
            self._description = cursor.description
            self._rowcount, self._lastrowid = cursor.rowcount, cursor.lastrowid
            return deque(cursor.fetchall() if cursor.description else ())
        finally:
            cursor.close()


class _OneHopConnection(AsyncAdapt_aiosqlite_connection):
    __slots__ = ()
    _cursor_cls: Any = _OneHopCursor


def use_one_hop(engine: AsyncEngine) -> None:
    """Make the engine's connections open such cursors."""

    @event.listens_for(engine.sync_engine, "do_connect")
    def connect(dialect: Any, _record: Any, args: Any, options: Any) -> _OneHopConnection:
        stock = dialect.loaded_dbapi.connect(*args, **options)
        return _OneHopConnection(dialect.loaded_dbapi, stock._connection)
