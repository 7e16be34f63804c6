"""SQLite connections whose thread is visited once for a statement, or once for a whole transaction.

The stock adapter goes there and back to open a cursor, to execute, to fetch and to close; each visit costs a hundred
microseconds of two threads waking each other, more than the statement itself.
"""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, TypeVar

from sqlalchemy import event
from sqlalchemy.dialects.sqlite.aiosqlite import AsyncAdapt_aiosqlite_connection, AsyncAdapt_aiosqlite_cursor
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine
from sqlalchemy.util.concurrency import await_

from penstock.db.connection import Connection, Direct

__all__ = ["run_there", "use_one_hop"]

T = TypeVar("T")


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
            if self._connection._thread is threading.current_thread():
                self._rows = self._there(run)
            else:
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


async def run_there(connection: AsyncConnection, work: Callable[[Connection], Coroutine[Any, Any, T]]) -> T:
    """Run work that awaits nothing but this connection whole on the connection's thread, in one visit.

    A caller that is cancelled waits for its end: what was not being committed yet is undone. What was is answered
    first, so that the caller knows, and the cancellation is felt at its next await.
    """
    assert connection.sync_connection is not None
    here = Direct(connection.sync_connection)
    driver: Any = (await connection.get_raw_connection()).driver_connection
    visit = asyncio.ensure_future(driver._execute(lambda: _driven(work(here))))
    try:
        answer: T = await asyncio.shield(visit)
    except asyncio.CancelledError:
        here.is_abandoned = True
        await asyncio.wait({visit})
        if visit.cancelled() or visit.exception() is not None:
            raise
        task = asyncio.current_task()
        assert task is not None
        task.uncancel()
        task.cancel()
        answer = visit.result()
    return answer


def _driven(work: Coroutine[Any, Any, T]) -> T:
    try:
        work.send(None)
    except StopIteration as end:
        answer: T = end.value
        return answer
    work.close()
    raise RuntimeError("a transaction on SQLite may await nothing but its connection")
