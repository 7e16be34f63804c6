"""What a transaction's work may ask of its connection, whichever thread it runs on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol, TypeVar, TypeVarTuple, overload

from sqlalchemy import Connection as SyncConnection
from sqlalchemy import CursorResult, Executable
from sqlalchemy.sql.selectable import TypedReturnsRows

__all__ = ["Abandoned", "Connection", "Direct"]

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class Connection(Protocol):
    """A connection inside a transaction; SQLAlchemy's AsyncConnection is one."""

    @overload
    async def execute(self, statement: TypedReturnsRows[*Ts], parameters: Any = None) -> CursorResult[*Ts]: ...

    @overload
    async def execute(self, statement: Executable, parameters: Any = None) -> CursorResult[*tuple[Any, ...]]: ...

    async def exec_driver_sql(self, statement: str, parameters: Any = None) -> CursorResult[*tuple[Any, ...]]:
        """Send text as it is."""

    async def run_sync(self, work: Callable[[SyncConnection], T]) -> T:
        """Run work that wants SQLAlchemy's blocking connection."""

    @property
    def invalidated(self) -> bool:
        """Whether the connection underneath is gone."""

    async def invalidate(self, exception: BaseException | None = None) -> None:
        """Give the connection underneath up."""


class Abandoned(Exception):
    """Whoever asked for this transaction was cancelled: it is undone."""


class Direct:
    """A connection on whose own thread we are: nothing is awaited. It sends nothing more once it is abandoned."""

    __slots__ = ("_sync", "is_abandoned")

    def __init__(self, sync: SyncConnection) -> None:
        self._sync = sync
        self.is_abandoned = False

    async def execute(self, statement: Any, parameters: Any = None) -> Any:
        """Send a statement."""
        if self.is_abandoned:
            raise Abandoned
        return self._sync.execute(statement, parameters)

    async def exec_driver_sql(self, statement: str, parameters: Any = None) -> Any:
        """Send text as it is."""
        if self.is_abandoned and statement != "ROLLBACK":
            raise Abandoned
        return self._sync.exec_driver_sql(statement, parameters)

    async def run_sync(self, work: Callable[[SyncConnection], T]) -> T:
        """Run work that wants SQLAlchemy's blocking connection."""
        return work(self._sync)

    @property
    def invalidated(self) -> bool:
        """Whether the connection underneath is gone."""
        return self._sync.invalidated

    async def invalidate(self, exception: BaseException | None = None) -> None:
        """Give the connection underneath up."""
        self._sync.invalidate(exception)
