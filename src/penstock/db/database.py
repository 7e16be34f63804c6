"""The database: one pool of connections, write transactions that are repeated when they collide, snapshots to read."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Hashable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext, suppress
from functools import partial
from typing import Any, Self, TypeVar

from sqlalchemy import ColumnElement, Executable, event, select
from sqlalchemy.exc import DBAPIError, InvalidRequestError
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from penstock.clock import Clock
from penstock.db.address import file_of, parse, schema_of
from penstock.db.checkpoint import WriteAheadLog
from penstock.db.connection import NOTHING, Abandoned, Connection, Link
from penstock.db.dialects import Dialect, notice_partitions
from penstock.db.full_disk import disk_of
from penstock.db.onehop import run_there
from penstock.db.prepared import Answer, Statement, Statements, Values
from penstock.db.refusals import Refusals, option_refused
from penstock.db.safety import Finding, judge, refuse_unsafe
from penstock.db.shared_clock import ahead_us
from penstock.db.together import Together
from penstock.db.unit import LIMIT_S, UnitOfWork, refuse_inside
from penstock.errors import DiskFull, Unavailable
from penstock.failpoints import hit

__all__ = ["CommitUnknown", "Database"]

T = TypeVar("T")
S = TypeVar("S", bound=Executable)

TRIES_MAX = 10
BACKOFF_S = 0.005
BACKOFF_MAX_S = 0.5
POOL_WAIT_S = 10
HANDSHAKE_S = 20  # a driver may stop counting once a server, or a proxy before it, has taken the connection
DAMAGE_MAX = 5  # findings that are told


class CommitUnknown(Unavailable):
    """The connection died at COMMIT: the transaction happened as a whole or not at all, and only a look will tell.

    Never repeated by us. Read again what the transaction would have written, by a version or an id made before it.
    """


class Database:
    """A database that is safe and has our schema; see `open`."""

    def __init__(
        self, engine: AsyncEngine, dialect: Dialect, clock: Clock, *, pool_size: int, schema: str | None = None
    ) -> None:
        self.dialect, self.schema = dialect, schema
        file = file_of(engine.url) if dialect.is_file else None
        self._log = None if file is None else WriteAheadLog(file)
        self._refusals = Refusals(dialect, file)
        self._disk = disk_of(f"{engine.url.host} {file or engine.url.database}")
        self._engine = engine
        # Connections stay checked out of SQLAlchemy's pool: going in and out of it costs more than a statement.
        self._places = asyncio.Semaphore(pool_size)
        self._idle: list[Link] = []
        self.clock, self._now = clock, dialect.now(clock)
        self._prepared: dict[Hashable, Any] = {}
        self._statements = Statements(engine.dialect)
        self._together = Together(self.transaction)
        # SQLite has one writer; ours queue here in order instead of fighting over the file's lock.
        self._turn: AbstractAsyncContextManager[Any] = asyncio.Lock() if dialect.is_file else nullcontext()

    @classmethod
    async def open(cls, url: str, *, clock: Clock, upgrade: bool | None = None, pool_size: int = 5) -> Self:
        """Connect, refuse unsafe settings, and see to the schema.

        `upgrade` None: SQLite upgrades itself, servers raise `DatabaseUnready` unless the schema fits. True: upgrade.
        False: do not look at the schema.
        """
        from penstock.db.upgrade import prepare_schema

        database = cls.connect(url, clock=clock, pool_size=pool_size)
        try:
            refuse_unsafe(database.dialect.name, await database.findings())
            if upgrade is not False:
                await prepare_schema(database, upgrade=upgrade or database.dialect.is_file)
        except BaseException:
            await database.close()
            raise
        return database

    @classmethod
    def connect(cls, url: str, *, clock: Clock, pool_size: int = 5) -> Self:
        """A database about which nothing has been checked; connections are made when needed."""
        address, dialect = parse(url)
        schema = schema_of(url)
        try:
            engine = create_async_engine(
                address,
                isolation_level="AUTOCOMMIT",
                connect_args=dialect.connect_args(schema),
                pool_size=pool_size,
                # We end every transaction ourselves, so a ROLLBACK on return would be a round trip for nothing.
                pool_reset_on_return=None,
                skip_autocommit_rollback=True,
            )
        except ValueError as error:
            raise option_refused(error) from error
        dialect.adapt(engine)
        event.listen(engine.sync_engine, "connect", _on_connect(dialect))
        return cls(engine, dialect, clock, pool_size=pool_size, schema=schema)

    async def close(self) -> None:
        """Close every connection."""
        await self._close_idle()
        await self._engine.dispose()

    def prepared(self, build: Callable[..., S], *choices: Hashable) -> S:
        """The statement that `build(self, *choices)` makes, made once: building one costs more than sending it."""
        key = (build, choices)
        if key not in self._prepared:
            self._prepared[key] = build(self, *choices)
        statement: S = self._prepared[key]
        return statement

    def now(self) -> ColumnElement[int]:
        """Microseconds since 1970 on the database's clock, as SQL; the given clock's value when it is not real."""
        return self._now

    async def clock_bounds(self) -> tuple[int, int]:
        """By how many nanoseconds the database's clock is ahead of our ticks: at least, and at most."""
        async with self.connection() as connection:
            if self.dialect.is_file:
                exactly = await ahead_us(connection, self.clock) * 1000
                return exactly, exactly
            sent = self.clock.ticks_ns()
            theirs = (await connection.execute(select(self.now()))).scalar_one() * 1000
            return theirs - self.clock.ticks_ns(), theirs + 999 - sent

    async def transaction(self, work: Callable[[Connection], Awaitable[T]], point: str = "transaction") -> T:
        """Run `work` in a write transaction and commit; all of it is repeated when it collided with another.

        So `work` awaits nothing but the database, reads nothing that changes meanwhile and changes nothing: on SQLite
        it runs on the connection's thread. `Unavailable` when the database is away or the collisions do not end;
        `CommitUnknown` when it may have happened. Any other error rolls back and propagates. `point` names the
        transaction for tests that crash around its COMMIT.
        """
        refuse_inside(self)

        async def once() -> T:
            async with self._turn, self.connection() as connection:
                return await self._run(connection, partial(self._whole, work, point))

        return await self.uncontended(once, point)

    async def single(self, statement: Statement, values: Values = NOTHING, point: str = "single") -> Answer:
        """Send one statement that is a transaction by itself, in one round trip; otherwise as `transaction`.

        On SQLite those that come at once share a commit.
        """
        refuse_inside(self)
        if self.dialect.is_file:
            return await self._together.send(statement, values, point)

        async def once() -> Answer:
            async with self.connection() as connection:
                hit(f"{point}:before")
                answer = await self._sent(connection, statement, values)
            hit(f"{point}:after")
            return answer

        return await self.uncontended(once, point)

    async def _sent(self, connection: Link, statement: Statement, values: Values) -> Answer:
        """The answer to a statement that commits by itself; who hears none does not know whether it did."""
        try:
            return await connection.send(statement, values)
        except DBAPIError as error:
            if self.dialect.trouble(error) != "unavailable":
                raise
            raise CommitUnknown(f"the connection died before an answer came: {error.orig}") from error
        except OSError as error:
            await connection.invalidate()
            raise CommitUnknown(f"the connection died before an answer came: {error}") from error

    async def uncontended(self, once: Callable[[], Awaitable[T]], point: str) -> T:
        """What `once` gives; repeated while it collides with others."""
        tries = 0
        while True:
            tries += 1
            try:
                answer = await once()
                if self._disk.is_full:
                    self._disk.passed(point)
                return answer
            except DiskFull as error:
                self._disk.met(point, error)
                raise
            except DBAPIError as error:
                if self.dialect.trouble(error) != "contended":
                    raise
                if tries == TRIES_MAX:
                    raise Unavailable(f"a transaction collided with others {tries} times") from error
            await _back_off(tries)

    async def look(self, work: Callable[[Connection], Awaitable[T]]) -> T:
        """Run `work` on one consistent snapshot; it keeps to the same rules as in `transaction`."""

        async def whole(tx: Connection) -> T:
            async with self._snapshot(tx):
                return await work(tx)

        async with self.connection() as connection:
            return await self._run(connection, whole)

    async def glance(self, work: Callable[[Connection], Coroutine[Any, Any, T]]) -> T:
        """`look` for work each of whose statements may see what is committed by then; spares what a snapshot costs."""
        async with self.connection() as connection:
            return await self._run(connection, work)

    async def _run(self, connection: Link, work: Callable[[Connection], Coroutine[Any, Any, T]]) -> T:
        return await (run_there(connection, work) if self.dialect.is_file else work(connection))

    async def _whole(self, work: Callable[[Connection], Awaitable[T]], point: str, tx: Connection) -> T:
        async with self._written(tx):
            answer = await work(tx)
            hit(f"{point}:before")
        hit(f"{point}:after")
        if self._log is not None:
            self._log.tend()
        return answer

    async def ring(self, tx: Connection) -> None:
        """Wake those who listen on other processes, when this transaction commits."""
        if self.dialect.ring:
            await tx.tell(self.dialect.ring)

    async def listen(self, heard: Callable[[], None]) -> None:
        """Call `heard` whenever somebody rings; comes back when the connection is lost, at once where none can."""
        async with self.connection() as connection:
            await self.dialect.listen(connection, heard)

    @asynccontextmanager
    async def write(self) -> AsyncIterator[Link]:
        """One write transaction that is tried once, committed at the end of the block, undone by any error."""
        async with self._turn, self.connection() as tx:
            async with self._written(tx):
                yield tx
            if self._log is not None:
                await asyncio.to_thread(self._log.tend)

    def unit(self, limit_s: float = LIMIT_S) -> UnitOfWork:
        """A write transaction that code outside the engine may keep open; see `UnitOfWork`."""
        return UnitOfWork(self, limit_s)

    @asynccontextmanager
    async def _written(self, tx: Connection) -> AsyncIterator[None]:
        await _send(tx, self.dialect.begin_write)
        try:
            yield
        except BaseException:
            await _roll_back(tx)
            raise
        await self._commit(tx)

    @asynccontextmanager
    async def read(self) -> AsyncIterator[Link]:
        """One consistent snapshot to read; blocks no writer and is blocked by none."""
        async with self.connection() as tx, self._snapshot(tx):
            yield tx

    @asynccontextmanager
    async def _snapshot(self, tx: Connection) -> AsyncIterator[None]:
        await _send(tx, self.dialect.begin_read)
        try:
            yield
        finally:
            await _roll_back(tx)

    async def findings(self) -> tuple[Finding, ...]:
        """The verdicts on the database's version and settings."""
        async with self.connection() as connection:
            facts = (await connection.exec_driver_sql(self.dialect.facts)).mappings().one()
        return judge(self.dialect.requirements, {str(name): value for name, value in facts.items()})

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[Link]:
        """A connection outside any transaction: each statement commits by itself."""
        await self._take_place()
        try:
            connection = await self._check_out()
            try:
                yield connection
            except DBAPIError as error:
                refusal = self._refusals.in_use(error)
                if refusal is None:
                    raise
                if self.dialect.trouble(error) == "unavailable":
                    await self._close_idle()  # they are no better
                raise refusal from error
            finally:
                if connection.invalidated:
                    await _let_go(connection)
                else:
                    self._idle.append(connection)
        finally:
            self._places.release()

    async def _close_idle(self) -> None:
        while self._idle:
            await _let_go(self._idle.pop())

    async def _take_place(self) -> None:
        if not self._places.locked():
            await self._places.acquire()
            return
        try:
            async with asyncio.timeout(POOL_WAIT_S):
                await self._places.acquire()
        except TimeoutError:
            raise Unavailable(f"no connection became free within {POOL_WAIT_S} s") from None

    async def _check_out(self) -> Link:
        if self._idle:
            return self._idle.pop()
        cancels, tries = _cancels(), 0
        while True:
            tries += 1
            try:
                async with asyncio.timeout(None if self.dialect.is_file else HANDSHAKE_S):
                    connection = await Link(self._engine, self.dialect, self._statements).start()
                if _cancels() == cancels:
                    return connection
                # A driver that connects with `wait_for` loses a cancel that comes with the answer (Python 3.11).
                await _let_go(connection)
                raise asyncio.CancelledError
            except (DBAPIError, OSError, InvalidRequestError, TypeError, ValueError) as error:
                if _cancels() != cancels:  # lost likewise, and then the connection failed
                    raise asyncio.CancelledError from error
                # Processes that open a new SQLite file at once collide when they switch it to WAL.
                is_contended = isinstance(error, DBAPIError) and self.dialect.trouble(error) == "contended"
                if not is_contended or tries == TRIES_MAX:
                    raise self._refusals.at_connect(error) from error
            await _back_off(tries)

    async def damage(self) -> tuple[str, ...]:
        """What is wrong with the pages of a SQLite file; reads all of it. A server looks after its own."""
        if not self.dialect.is_file:
            return ()
        async with self.connection() as connection:
            found = (await connection.exec_driver_sql(f"PRAGMA quick_check({DAMAGE_MAX})")).scalars().all()
        lines = [line for text in found for line in str(text).splitlines()]
        return () if lines == ["ok"] else (f"{self._refusals.place} is damaged: {self._refusals.restore}", *lines)

    async def _commit(self, tx: Connection) -> None:
        try:
            await tx.tell("COMMIT")
        except DBAPIError as error:
            if self.dialect.trouble(error) == "unavailable":
                raise CommitUnknown(f"the connection died at COMMIT: {error.orig}") from error
            await _roll_back(tx)
            raise
        except Abandoned:
            await _roll_back(tx)
            raise
        except OSError as error:
            await tx.invalidate()
            raise CommitUnknown(f"the connection died at COMMIT: {error}") from error


def _cancels() -> int:
    """How often this task was told to end."""
    task = asyncio.current_task()
    return 0 if task is None else task.cancelling()


async def _let_go(connection: Link) -> None:
    with suppress(DBAPIError, OSError):  # it is gone already
        await connection.close()


async def _back_off(tries: int) -> None:
    await asyncio.sleep(random.uniform(0, min(BACKOFF_MAX_S, BACKOFF_S * 2**tries)))


async def _send(tx: Connection, statements: tuple[str, ...]) -> None:
    for statement in statements:
        await tx.tell(statement)


async def _roll_back(tx: Connection) -> None:
    """End the transaction, or the connection when even that fails."""
    if tx.invalidated:
        return
    try:
        await tx.tell("ROLLBACK")
    except (DBAPIError, OSError) as error:
        await tx.invalidate(error)


def _on_connect(dialect: Dialect) -> Callable[[Any, Any], None]:
    def prepare(dbapi_connection: Any, _record: Any) -> None:
        notice_partitions(dbapi_connection.driver_connection)
        cursor = dbapi_connection.cursor()
        for statement in dialect.on_connect:
            cursor.execute(statement)
        cursor.close()

    return prepare
