"""A unit of work: statements of the user's own, committed together with ours or not at all."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager, suppress
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from sqlalchemy import CursorResult, Executable, text
from sqlalchemy.exc import SQLAlchemyError

from penstock.db.connection import Connection
from penstock.errors import Conflict, PenstockError, Unavailable
from penstock.failpoints import hit

if TYPE_CHECKING:
    from penstock.db.database import Database

__all__ = ["LIMIT_S", "UnitOfWork", "joined", "refuse_inside", "unit_of"]

log = logging.getLogger("penstock.db")

# As long as a server lets a transaction do nothing; here it is the most for all of it.
LIMIT_S = 30.0

Parameters = Mapping[str, Any] | Sequence[Mapping[str, Any]]

_open_unit: ContextVar[UnitOfWork | None] = ContextVar("penstock_unit_of_work", default=None)


class UnitOfWork:
    """One write transaction that user code may keep open while it awaits other things, for `limit_s` at most.

    On SQLite nobody else writes meanwhile, in any process, so keep it short. Inside it no other write transaction of
    the same database is begun: on SQLite it would wait for this one for ever, so it is refused everywhere.
    """

    def __init__(self, db: Database, limit_s: float = LIMIT_S) -> None:
        self.db, self._limit_s = db, limit_s
        self._timer: asyncio.TimerHandle | None = None
        self._undoing: asyncio.Task[None] | None = None
        self._block: AbstractAsyncContextManager[Connection] | None = None
        self._connection: Connection | None = None
        self._at_its_end: list[Callable[[Connection], Awaitable[object]]] = []
        self._last_of_all: list[Callable[[Connection], Awaitable[object]]] = []
        self._afterwards: list[Callable[[], Awaitable[object]]] = []

    @property
    def is_open(self) -> bool:
        """Whether it has begun and not ended."""
        return self._connection is not None

    @property
    def connection(self) -> Connection:
        """The connection inside the transaction."""
        if self._connection is None:
            raise self._ended()
        return self._connection

    async def execute(
        self, statement: str | Executable, parameters: Parameters | None = None
    ) -> CursorResult[*tuple[Any, ...]]:
        """Send a statement: SQLAlchemy's, or SQL text with `:name` for each parameter."""
        sent = text(statement) if isinstance(statement, str) else statement
        with self._told_if_cut_off():
            return await self.connection.execute(sent, parameters)

    def before_commit(self, work: Callable[[Connection], Awaitable[object]], *, is_last: bool = False) -> None:
        """Do this at the end of the transaction, because it locks what many need; `is_last`: what all lock last."""
        (self._last_of_all if is_last else self._at_its_end).append(work)

    def after_commit(self, work: Callable[[], Awaitable[object]]) -> None:
        """Do this once the transaction is committed; what cannot be done then must be found by a sweep."""
        self._afterwards.append(work)

    async def begin(self) -> None:
        """Open the transaction."""
        refuse_inside(self.db)
        self._block, self._connection = await self.db.uncontended(self._begun, "unit")
        _open_unit.set(self)
        self._timer = asyncio.get_running_loop().call_later(self._limit_s, self._expire)

    async def _begun(self) -> tuple[AbstractAsyncContextManager[Connection], Connection]:
        block = self.db.write()
        return block, await block.__aenter__()

    async def commit(self) -> None:
        """Commit; `CommitUnknown` when it may have happened."""
        try:
            with self._told_if_cut_off():
                for last in (*self._at_its_end, *self._last_of_all):
                    await last(self.connection)
        except BaseException:
            if self.is_open:
                await self.roll_back()
            raise
        hit("unit:before")
        await self._end(None)
        hit("unit:after")
        for work in self._afterwards:
            try:
                await work()
            except Unavailable as error:
                log.warning("what follows a commit is left to the next sweep: %s", error)

    async def roll_back(self) -> None:
        """Undo everything."""
        undone = _RolledBack()
        try:
            await self._end(undone)
        except _RolledBack:
            return

    def _expire(self) -> None:
        """It was open for too long: others wait for it."""
        log.warning("a transaction was open for %s s, and is undone", self._limit_s)
        self._undoing = asyncio.create_task(self._cut_off(), name="undo a transaction that was open for too long")

    async def _cut_off(self) -> None:
        """Undo everything, also while a statement is under way."""
        connection, self._connection = self._connection, None
        block, self._block = self._block, None
        if connection is None or block is None:
            return
        if not self.db.dialect.is_file:
            # A ROLLBACK beside a statement would take its answer. The server undoes what a lost connection began.
            await connection.invalidate()
        with suppress(_RolledBack):
            await block.__aexit__(_RolledBack, _RolledBack(), None)

    @contextmanager
    def _told_if_cut_off(self) -> Iterator[None]:
        """Who had a statement under way hears why there is no answer to it, not what the driver makes of it."""
        try:
            yield
        except SQLAlchemyError as error:
            if self.is_open or self._undoing is None:
                raise
            raise self._ended() from error

    def _ended(self) -> PenstockError:
        if self._undoing is not None:
            return Unavailable(f"this transaction was open for {self._limit_s} s, the most there is, and was undone")
        return Conflict("this transaction has ended; begin another")

    async def _end(self, error: BaseException | None) -> None:
        block, self._block, self._connection = self._block, None, None
        if self._timer is not None:
            self._timer.cancel()
        if block is None:
            await self._undone()
            raise self._ended()
        await block.__aexit__(None if error is None else type(error), error, None)

    async def __aenter__(self) -> UnitOfWork:
        await self.begin()
        return self

    async def __aexit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if error is None:
            await self.commit()
        elif self.is_open:
            await self.roll_back()
        else:
            await self._undone()
            if self._undoing is not None and isinstance(error, SQLAlchemyError):
                raise self._ended() from error

    async def _undone(self) -> None:
        """Wait until a transaction that was cut off has given its connection back: nothing of it outlives its block."""
        if self._undoing is not None:
            await asyncio.shield(self._undoing)


class _RolledBack(Exception):
    """Ends a block without committing it."""


def joined(unit: UnitOfWork | None) -> Connection | None:
    """The connection of a unit of work that a caller has given, for what joins it."""
    return None if unit is None else unit.connection


def unit_of(tx: Connection) -> UnitOfWork | None:
    """The unit of work whose transaction this is, if it is one's."""
    unit = _open_unit.get()
    return unit if unit is not None and unit._connection is tx else None


def refuse_inside(db: Database) -> None:
    """Raise if this code runs inside an open unit of work of the database."""
    unit = _open_unit.get()
    if unit is not None and unit.is_open and unit.db is db:
        raise Conflict(
            "inside a transaction of this database no other is begun, for on SQLite it would wait for ever; "
            "use the open one, or do this before or after it"
        )
