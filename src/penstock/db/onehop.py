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
from contextlib import closing
from typing import Any, TypeVar

from sqlalchemy import Connection as SyncConnection
from sqlalchemy import event
from sqlalchemy.dialects.sqlite.aiosqlite import AsyncAdapt_aiosqlite_connection, AsyncAdapt_aiosqlite_cursor
from sqlalchemy.ext.asyncio import AsyncEngine
from sqlalchemy.util.concurrency import await_

from penstock.db.connection import NOTHING, Abandoned, Connection, Link, raise_known
from penstock.db.prepared import Answer, Prepared, Statement, Values

__all__ = ["ask", "run_there", "use_one_hop"]

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
        connection = dialect.loaded_dbapi.aiosqlite.connect(*args, **options)
        await_(_open(connection))
        return _OneHopConnection(dialect.loaded_dbapi, connection)


async def _open(connection: Any) -> None:
    """Start a connection's thread and open its file there; a caller that is cancelled leaves it closed.

    The stock way remembers the file only when the caller has heard of it, and so never closes one that was opened for
    a caller that had gone.
    """

    def there() -> None:
        connection._connection = connection._connector()

    opened = asyncio.get_running_loop().create_future()
    connection._thread.daemon = True  # a process may end without waiting for it
    connection._thread.start()
    connection._tx.put_nowait((opened, there))
    try:
        await opened
    except BaseException:
        await connection.stop()  # it comes after the opening, on the same thread
        raise


def ask(connection: sqlite3.Connection, prepared: Prepared, parameters: list[Any]) -> Answer:
    """Send a statement; on the connection's thread."""
    with closing(connection.cursor()) as cursor:
        (cursor.executemany if prepared.is_many else cursor.execute)(prepared.text, parameters)
        return prepared.answer(cursor.fetchall(), cursor.rowcount)


class Direct:
    """A connection on whose own thread we are: nothing is awaited. It sends nothing more once it is abandoned."""

    __slots__ = ("_link", "_raw", "_sync", "is_abandoned")

    def __init__(self, link: Link) -> None:
        assert link.sync_connection is not None
        self._link, self._raw, self._sync = link, link.raw._conn, link.sync_connection
        self.is_abandoned = False

    async def execute(self, statement: Any, parameters: Any = None) -> Any:
        """Send a statement."""
        if self.is_abandoned:
            raise Abandoned
        return self._sync.execute(statement, parameters)

    async def send(self, statement: Statement, values: Values = NOTHING) -> Answer:
        """Send a statement that is kept to be sent again."""
        if self.is_abandoned:
            raise Abandoned
        prepared = self._link.statements.prepared(statement, values)
        parameters = prepared.parameters(values)
        try:
            return ask(self._raw, prepared, parameters)
        except Exception as error:
            raise_known(error, prepared.text, parameters, self._sync)

    async def send_listed(self, statement: Statement, values: Values) -> Answer:
        """Send a statement with a list; it is one value here."""
        return await self.send(statement, values)

    async def tell(self, text: str) -> None:
        """Send text, and hear nothing but errors."""
        if self.is_abandoned and text != "ROLLBACK":
            raise Abandoned
        try:
            self._raw.execute(text)
        except Exception as error:
            raise_known(error, text, (), self._sync)

    async def exec_driver_sql(self, statement: str, parameters: Any = None) -> Any:
        """Send text as it is."""
        if self.is_abandoned:
            raise Abandoned
        return self._sync.exec_driver_sql(statement, parameters)

    async def run_sync(self, work: Callable[[SyncConnection], T]) -> T:
        """Run work that wants SQLAlchemy's blocking connection."""
        return work(self._sync)

    async def compute(self, work: Callable[[], T]) -> T:
        """Run work that asks nothing of the database; this is not the event loop's thread."""
        if self.is_abandoned:
            raise Abandoned
        return work()

    @property
    def invalidated(self) -> bool:
        """Whether the connection underneath is gone."""
        return self._sync.invalidated

    async def invalidate(self, exception: BaseException | None = None) -> None:
        """Give the connection underneath up."""
        self._sync.invalidate(exception)


async def run_there(link: Link, work: Callable[[Connection], Coroutine[Any, Any, T]]) -> T:
    """Run work that awaits nothing but this connection whole on the connection's thread, in one visit.

    A caller that is cancelled waits for its end: what was not being committed yet is undone. What was is answered
    first, so that the caller knows, and the cancellation is felt at its next await.
    """
    here = Direct(link)
    once = [work]  # the thread keeps what it was given until it is given more; it shall not keep our work alive
    del work
    visit = asyncio.ensure_future(link.raw._execute(lambda: _driven(once.pop()(here))))
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
