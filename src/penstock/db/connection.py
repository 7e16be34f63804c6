"""What a transaction's work may ask of its connection, whichever thread it runs on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from types import MappingProxyType
from typing import Any, NoReturn, Protocol, Self, TypeVar, TypeVarTuple, overload

from sqlalchemy import Connection as SyncConnection
from sqlalchemy import CursorResult, Executable
from sqlalchemy.exc import OperationalError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine
from sqlalchemy.sql.selectable import TypedReturnsRows

from penstock.db.prepared import Answer, Prepared, Statement, Statements, Values

__all__ = ["NOTHING", "Abandoned", "Connection", "Driver", "Link", "raise_known"]

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

NOTHING: Values = MappingProxyType({})


class Connection(Protocol):
    """A connection inside a transaction."""

    @overload
    async def execute(self, statement: TypedReturnsRows[*Ts], parameters: Any = None) -> CursorResult[*Ts]: ...

    @overload
    async def execute(self, statement: Executable, parameters: Any = None) -> CursorResult[*tuple[Any, ...]]: ...

    async def send(self, statement: Statement, values: Values = NOTHING) -> Answer:
        """Send a statement that is kept to be sent again: it is prepared once, and goes straight to the driver."""

    async def send_listed(self, statement: Statement, values: Values) -> Answer:
        """`send` for a statement with a list (`Dialect.among`); where it is written out, the way of `execute`."""

    async def tell(self, text: str) -> None:
        """Send text straight to the driver, and hear nothing but errors."""

    async def exec_driver_sql(self, statement: str, parameters: Any = None) -> CursorResult[*tuple[Any, ...]]:
        """Send text as it is."""

    async def run_sync(self, work: Callable[[SyncConnection], T]) -> T:
        """Run work that wants SQLAlchemy's blocking connection."""

    async def compute(self, work: Callable[[], T]) -> T:
        """Run work that takes long and asks nothing of the database, where it does not hold up the event loop."""

    @property
    def invalidated(self) -> bool:
        """Whether the connection underneath is gone."""

    async def invalidate(self, exception: BaseException | None = None) -> None:
        """Give the connection underneath up."""


class Abandoned(Exception):
    """Whoever asked for this transaction was cancelled: it is undone."""


class Driver(Protocol):
    """How a database's own driver is spoken to; `connection` is the driver's.

    `lists_are_values` says whether a list is one value for it, however long.
    """

    @property
    def lists_are_values(self) -> bool: ...

    async def send(self, connection: Any, prepared: Prepared, parameters: list[Any]) -> Answer:
        """Send a statement that was prepared."""

    async def tell(self, connection: Any, text: str) -> None:
        """Send text that answers nothing."""


class Link(AsyncConnection):
    """SQLAlchemy's connection, with the short way to its driver beside it."""

    __slots__ = ("_driver", "raw", "statements")

    def __init__(self, engine: AsyncEngine, driver: Driver, statements: Statements) -> None:
        super().__init__(engine)
        self._driver, self.statements = driver, statements
        self.raw: Any = None

    async def start(self, is_ctxmanager: bool = False) -> Self:
        """Connect."""
        await super().start(is_ctxmanager)
        # It sends nothing. But now SQLAlchemy knows of a transaction, and will not connect again in the middle of ours.
        await self.begin()
        self.raw = (await self.get_raw_connection()).driver_connection
        return self

    @property
    def invalidated(self) -> bool:
        """Whether the connection was given up: nothing may be sent on it, for nobody would answer.

        When a task is cancelled twice, while a connection is given up because of the first time, SQLAlchemy does not
        call it invalid, though it is gone.
        """
        sync = self.sync_connection
        return sync is None or sync.closed or sync.invalidated or not sync.connection.is_valid

    async def send(self, statement: Statement, values: Values = NOTHING) -> Answer:
        """Send a statement that is kept to be sent again: it is prepared once, and goes straight to the driver."""
        prepared = self.statements.prepared(statement, values)
        parameters = prepared.parameters(values)
        try:
            return await self._driver.send(self.raw, prepared, parameters)
        except BaseException as error:
            await self.run_sync(partial(raise_known, error, prepared.text, parameters))

    async def send_listed(self, statement: Statement, values: Values) -> Answer:
        """`send` for a statement with a list (`Dialect.among`); where it is written out, the way of `execute`."""
        if self._driver.lists_are_values:
            return await self.send(statement, values)
        found = await self.execute(statement, values)
        return Answer([tuple(row) for row in found] if found.returns_rows else [], found.rowcount)

    async def compute(self, work: Callable[[], T]) -> T:
        """Run work that takes long and asks nothing of the database, where it does not hold up the event loop."""
        return await asyncio.to_thread(work)

    async def tell(self, text: str) -> None:
        """Send text straight to the driver, and hear nothing but errors."""
        try:
            await self._driver.tell(self.raw, text)
        except BaseException as error:
            await self.run_sync(partial(raise_known, error, text, ()))


def raise_known(error: BaseException, text: str, parameters: Any, connection: SyncConnection) -> NoReturn:
    """Raise what SQLAlchemy raises for an error of the driver, and give up a connection that broke as it does."""
    adapter: Any = connection.connection.dbapi_connection
    if adapter is None:  # it was given up before
        if isinstance(error, Exception):
            raise OperationalError(text, parameters, error, connection_invalidated=True) from error
        raise error
    try:
        adapter._handle_exception(error)
    except BaseException as known:
        is_of_sql = isinstance(known, connection.dialect.loaded_dbapi.Error)
        connection._handle_dbapi_exception(known, text if is_of_sql else None, parameters, None, None)
    raise error
