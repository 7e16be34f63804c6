"""What differs between SQLite, PostgreSQL and MariaDB; each difference says what forced it.

Connections are in autocommit mode and we send BEGIN and COMMIT ourselves, so nothing is implicit and we know exactly
when a COMMIT was sent.
"""

from __future__ import annotations

import asyncio
import socket
import sqlite3
import ssl
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, ClassVar, Literal

from sqlalchemy import (
    URL,
    BigInteger,
    ColumnElement,
    FromClause,
    Integer,
    Table,
    and_,
    bindparam,
    func,
    literal_column,
    select,
    true,
    tuple_,
)
from sqlalchemy.dialects.mysql import insert as mariadb_insert
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.dialects.postgresql import insert as postgresql_insert
from sqlalchemy.dialects.sqlite import insert as sqlite_insert
from sqlalchemy.dialects.sqlite.base import SQLiteTypeCompiler
from sqlalchemy.exc import DBAPIError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.dml import Insert
from sqlalchemy.sql.functions import FunctionElement

from penstock.clock import Clock
from penstock.db.checkpoint import LOG_BYTES
from penstock.db.onehop import ask, use_one_hop
from penstock.db.prepared import Answer, Prepared
from penstock.db.safety import Requirement, at_least, one_of
from penstock.db.shared_clock import asked, shared_now
from penstock.db.types import Json
from penstock.errors import Unavailable

__all__ = ["DIALECTS", "Dialect", "Trouble", "place_of"]

# How long a statement waits for a lock; below the 2 s margin in which a worker starts nothing before its lease ends.
LOCK_WAIT_S = 1.5
# How long a change of the schema waits for a table.
CHANGE_WAIT_S = 1.2
HEAR_S = 0.05
# A frozen process must not hold row locks for ever.
IDLE_TRANSACTION_S = 30
CONNECT_S = 5
# A silent partition is noticed after this: well under a lease of 10 s.
PARTITION_S = 5

Trouble = Literal["contended", "unavailable", "full", "refused", "damaged", "other"]


class Dialect(ABC):
    """One database. `is_file` says that it has one writer at a time and upgrades itself when opened."""

    name: ClassVar[str]
    schemes: ClassVar[tuple[str, ...]]
    driver: ClassVar[str]
    module: ClassVar[str]
    extra: ClassVar[str] = ""
    is_file: ClassVar[bool] = False

    begin_write: ClassVar[tuple[str, ...]]
    begin_read: ClassVar[tuple[str, ...]]
    on_connect: ClassVar[tuple[str, ...]] = ()
    # Asks to be the only one who upgrades the schema: 1 or 0. It does not wait: who waits in PostgreSQL has a snapshot,
    # and an index that is built beside others is not ready while there is an old one.
    upgrade_lock: ClassVar[str] = ""
    # What a connection is told before it changes a table.
    before_change: ClassVar[tuple[str, ...]] = ()
    # What to send in a transaction to wake those who `listen`; where there is nothing, they look by themselves.
    ring: ClassVar[str] = ""
    # Whether `among` takes a list as one value, so that the statement is the same however long it is.
    lists_are_values: ClassVar[bool] = False
    # Whether `listen` hears of what others do; and whether it cannot tell it from what we do.
    hears: ClassVar[bool] = False
    hears_itself: ClassVar[bool] = False

    # Rebuilds the indexes of a table, outside any transaction.
    rebuild_indexes: ClassVar[str]
    # What lets a connection wait for the locks of others as long as that takes.
    waits_for_locks: ClassVar[tuple[str, ...]] = ()

    # One query whose row holds the version and the settings, and what they must be.
    facts: ClassVar[str]
    requirements: ClassVar[tuple[Requirement, ...]]

    def arrange(self, url: URL) -> URL:
        """The URL with options spelled as our driver spells them."""
        return url

    @abstractmethod
    def connect_args(self, schema: str | None = None) -> dict[str, Any]:
        """Arguments for the driver; PostgreSQL has schemas."""

    def in_order(
        self,
        column: ColumnElement[Any],
        value: ColumnElement[Any],
        number: ColumnElement[int],
        after: ColumnElement[int],
    ) -> tuple[list[ColumnElement[bool]], list[ColumnElement[Any]]]:
        """Conditions and order for rows that have a value, by number, behind one; an index has (column, number)."""
        return [column == value, number > after], [number]

    def adapt(self, engine: AsyncEngine) -> None:  # noqa: B027  # most need nothing
        """Change what SQLAlchemy would do for this database."""

    async def listen(  # noqa: B027  # most cannot
        self, connection: AsyncConnection, heard: Callable[[], None]
    ) -> None:
        """Call `heard` whenever somebody rings or commits, until the connection is lost."""

    @abstractmethod
    async def send(self, connection: Any, prepared: Prepared, parameters: list[Any]) -> Answer:
        """Send a statement that was prepared, on the driver's connection."""

    @abstractmethod
    async def tell(self, connection: Any, text: str) -> None:
        """Send text that answers nothing, on the driver's connection."""

    @abstractmethod
    def trouble(self, error: DBAPIError) -> Trouble:
        """What an error asks for: repeat the transaction, come back later, make room, fix the settings, restore the
        data, or nothing.

        A disk is full by the database's own word, so a COMMIT that met it did not happen.
        """

    @abstractmethod
    def clock_expression(self, clock: Clock) -> ColumnElement[int]:
        """Microseconds since 1970 on the database's own clock."""

    def now(self, clock: Clock) -> ColumnElement[int]:
        """Microseconds since 1970: the database's clock, or the given one when that is not real."""
        return self.clock_expression(clock) if clock.is_real else asked(clock.now_us)

    @abstractmethod
    def upsert(self, table: Table, *, key: Sequence[str], update: Sequence[str]) -> Insert:
        """An INSERT that takes over the `update` columns where a row with that `key` exists, or leaves it as it is.

        Execute it with a list of rows. Its row count means nothing: MariaDB counts an update twice.
        """

    def least(self, *values: ColumnElement[int]) -> ColumnElement[int]:
        """The smallest of several numbers, none of them null."""
        return func.least(*values)

    def among(self, column: ColumnElement[Any], name: str) -> ColumnElement[bool]:
        """Whether a column has one of the values that are sent as a list of this name."""
        return column.in_(bindparam(name, expanding=True, type_=column.type))

    def among_of(
        self, owner: ColumnElement[Any], owned_by: str, column: ColumnElement[Any], name: str
    ) -> ColumnElement[bool]:
        """`among`, for the rows of one owner, which is sent too; an index has (owner, column)."""
        return and_(owner == bindparam(owned_by, type_=owner.type), self.among(column, name))

    def listed_rows(
        self,
        shown: Sequence[ColumnElement[Any]],
        owner: ColumnElement[Any],
        owned_by: str,
        column: ColumnElement[Any],
        name: str,
    ) -> FromClause:
        """The rows of `among_of` to select from, for values that differ: value by value through the index."""
        return select(*shown).where(self.among_of(owner, owned_by, column, name)).subquery("listed")


class _StrictTypes(SQLiteTypeCompiler):
    """STRICT tables know INTEGER, REAL, TEXT and BLOB only, and want them spelled so."""

    def visit_BIGINT(self, type_: Any, **kw: Any) -> str:
        return "INTEGER"

    visit_SMALLINT = visit_BOOLEAN = visit_BIGINT

    def visit_VARCHAR(self, type_: Any, **kw: Any) -> str:
        return "TEXT"


class Sqlite(Dialect):
    name = "sqlite"
    schemes = ("sqlite",)
    driver = "sqlite+aiosqlite"
    module = "aiosqlite"
    is_file = True
    hears = hears_itself = True
    lists_are_values = True

    # A deferred transaction that turns from reading to writing fails at once when another has written.
    begin_write = ("BEGIN IMMEDIATE",)
    begin_read = ("BEGIN",)
    on_connect = (
        "PRAGMA journal_mode=WAL",
        "PRAGMA synchronous=FULL",
        "PRAGMA foreign_keys=ON",
        # The log is folded by `checkpoint` alone.
        "PRAGMA wal_autocheckpoint=0",
        f"PRAGMA journal_size_limit={LOG_BYTES}",
    )
    rebuild_indexes = "REINDEX {table}"
    facts = "SELECT sqlite_version() AS version"
    requirements = (Requirement("version", "3.37 or newer", at_least(3, 37)),)

    async def listen(self, connection: AsyncConnection, heard: Callable[[], None]) -> None:
        # A number that changes when another connection commits; looking at it takes a few microseconds.
        seen = None
        while True:
            before, seen = seen, (await connection.exec_driver_sql("PRAGMA data_version")).scalar()
            if before not in (None, seen):
                heard()
            await asyncio.sleep(HEAR_S)

    def connect_args(self, schema: str | None = None) -> dict[str, Any]:
        return {"timeout": LOCK_WAIT_S}

    def adapt(self, engine: AsyncEngine) -> None:
        dialect = engine.dialect
        dialect.type_compiler_instance = dialect.type_compiler = _StrictTypes(dialect)
        use_one_hop(engine)

    async def send(self, connection: Any, prepared: Prepared, parameters: list[Any]) -> Answer:
        answer: Answer = await connection._execute(ask, connection._conn, prepared, parameters)
        return answer

    async def tell(self, connection: Any, text: str) -> None:
        await connection._execute(connection._conn.execute, text)

    def trouble(self, error: DBAPIError) -> Trouble:
        match getattr(error.orig, "sqlite_errorcode", 0) & 0xFF:
            case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED:
                return "contended"
            case sqlite3.SQLITE_FULL:
                return "full"
            case sqlite3.SQLITE_IOERR | sqlite3.SQLITE_READONLY | sqlite3.SQLITE_CANTOPEN:
                return "unavailable"
            case sqlite3.SQLITE_CORRUPT | sqlite3.SQLITE_NOTADB:
                return "damaged"
        return "other"

    def clock_expression(self, clock: Clock) -> ColumnElement[int]:
        # SQLite's own clock is the wall clock of whichever process asks, in milliseconds.
        return shared_now(clock)

    def upsert(self, table: Table, *, key: Sequence[str], update: Sequence[str]) -> Insert:
        insert = sqlite_insert(table)
        if not update:
            return insert.on_conflict_do_nothing(index_elements=key)
        return insert.on_conflict_do_update(index_elements=key, set_={name: insert.excluded[name] for name in update})

    def least(self, *values: ColumnElement[int]) -> ColumnElement[int]:
        # SQLite calls it min.
        return func.min(*values)

    def among(self, column: ColumnElement[Any], name: str) -> ColumnElement[bool]:
        # One parameter, however many values: SQLAlchemy takes longer to write a thousand of them than SQLite to find
        # their rows.
        listed = func.json_each(bindparam(name, type_=Json)).table_valued("value")
        return column.in_(select(listed.c.value))


class Postgresql(Dialect):
    name = "postgresql"
    schemes = ("postgresql", "postgres")
    driver = "postgresql+asyncpg"
    module = "asyncpg"
    extra = "postgres"

    begin_write = ("BEGIN ISOLATION LEVEL READ COMMITTED",)
    begin_read = ("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY",)
    # Those who queue behind a change wait for LOCK_WAIT_S; an autovacuum makes way after a second.
    before_change = ("SET statement_timeout = 0", f"SET lock_timeout = '{round(CHANGE_WAIT_S * 1000)}ms'")
    # The number is ours alone; the lock ends with the connection.
    upgrade_lock = "SELECT CAST(pg_try_advisory_lock(7308324469) AS INTEGER)"
    ring = "SELECT pg_notify('penstock', '')"
    hears = True
    lists_are_values = True
    rebuild_indexes = "REINDEX TABLE CONCURRENTLY {table}"
    waits_for_locks = ("SET statement_timeout = 0", "SET lock_timeout = 0")
    facts = (
        "SELECT current_setting('server_version') AS version, current_setting('fsync') AS fsync,"
        " current_setting('synchronous_commit') AS synchronous_commit,"
        " current_setting('full_page_writes') AS full_page_writes,"
        " current_setting('server_encoding') AS server_encoding"
    )
    requirements = (
        Requirement("version", "13 or newer", at_least(13)),
        Requirement("fsync", "on", one_of("on")),
        Requirement("synchronous_commit", "on", one_of("on", "local", "remote_write", "remote_apply")),
        Requirement("full_page_writes", "on", one_of("on")),
        Requirement("server_encoding", "UTF8", one_of("UTF8")),
    )

    def arrange(self, url: URL) -> URL:
        # libpq, and so every tutorial, says sslmode; asyncpg says ssl.
        if "sslmode" not in url.query:
            return url
        return url.difference_update_query(["sslmode"]).update_query_pairs([("ssl", str(url.query["sslmode"]))])

    def in_order(
        self,
        column: ColumnElement[Any],
        value: ColumnElement[Any],
        number: ColumnElement[int],
        after: ColumnElement[int],
    ) -> tuple[list[ColumnElement[bool]], list[ColumnElement[Any]]]:
        # With a plain comparison it goes through the primary key when many rows have the value, and meets none for long
        # where they are all at the end. Said like this only the index gives the order, and both ends are its bounds.
        begin = tuple_(column, number) > tuple_(value, after)
        return [begin, column <= value], [column, number]

    async def listen(self, connection: AsyncConnection, heard: Callable[[], None]) -> None:
        driver: Any = (await connection.get_raw_connection()).driver_connection
        is_lost = asyncio.Event()
        try:
            driver.add_termination_listener(lambda _: is_lost.set())
            await driver.add_listener("penstock", lambda *_: heard())
        except Exception as error:  # the driver's own kinds, when the server dies at this moment
            raise Unavailable(f"cannot listen: {error}") from error
        await is_lost.wait()

    def connect_args(self, schema: str | None = None) -> dict[str, Any]:
        return {
            "timeout": CONNECT_S,
            "server_settings": {
                "application_name": "penstock",
                "lock_timeout": f"{round(LOCK_WAIT_S * 1000)}ms",
                "idle_in_transaction_session_timeout": f"{IDLE_TRANSACTION_S}s",
                "tcp_user_timeout": f"{PARTITION_S}s",
                # This schema alone: a table that is missing there must not be found in another.
                **({"search_path": schema} if schema is not None else {}),
            },
        }

    async def send(self, connection: Any, prepared: Prepared, parameters: list[Any]) -> Answer:
        # The driver keeps what it prepared on a connection by its text.
        if prepared.is_many:
            await connection.executemany(prepared.text, parameters)
            return Answer([], -1)
        if prepared.has_rows:
            found = await connection.fetch(prepared.text, *parameters)
            return prepared.answer(found, len(found))
        status = await connection.execute(prepared.text, *parameters)  # such as "UPDATE 1" or "INSERT 0 1"
        return Answer([], int(status.rsplit(" ", 1)[-1]))

    async def tell(self, connection: Any, text: str) -> None:
        await connection.execute(text)

    def trouble(self, error: DBAPIError) -> Trouble:
        code = getattr(error.orig, "sqlstate", None) or ""
        # Serialization failure, deadlock, lock timeout.
        if code in {"40001", "40P01", "55P03"}:
            return "contended"
        if code == "53100":
            return "full"
        if code in {"XX001", "XX002"}:
            return "damaged"
        # Connection, resources, operator intervention, system; read only while it fails over.
        if error.connection_invalidated or code[:2] in {"08", "53", "57", "58"} or code == "25006":
            return "unavailable"
        return "refused" if code[:2] in {"28", "3D"} else "other"

    def clock_expression(self, clock: Clock) -> ColumnElement[int]:
        # now() stands still within a transaction. clock_timestamp() may differ from row to row, which would rule out
        # an index on the column it is compared with; as a sub-select it is asked once a statement.
        return select(
            literal_column("CAST(EXTRACT(EPOCH FROM clock_timestamp()) * 1000000 AS BIGINT)", BigInteger)
        ).scalar_subquery()

    def upsert(self, table: Table, *, key: Sequence[str], update: Sequence[str]) -> Insert:
        insert = postgresql_insert(table)
        if not update:
            return insert.on_conflict_do_nothing(index_elements=key)
        return insert.on_conflict_do_update(index_elements=key, set_={name: insert.excluded[name] for name in update})

    def among(self, column: ColumnElement[Any], name: str) -> ColumnElement[bool]:
        # One parameter, however many values, so the statement is written once. A join and not `= ANY`: while there are
        # no statistics, an index on a column with few values looks as good, and each of its rows is compared with all.
        return column.in_(select(func.unnest(bindparam(name, type_=ARRAY(column.type)))))

    def among_of(
        self, owner: ColumnElement[Any], owned_by: str, column: ColumnElement[Any], name: str
    ) -> ColumnElement[bool]:
        # While there are no statistics, it takes an owner's rows for few, and would go through all of them by any index
        # that begins with the owner. Joined by both columns at once, only the index on both will do.
        wanted = func.unnest(bindparam(name, type_=ARRAY(column.type)))
        return tuple_(owner, column).in_(select(bindparam(owned_by, type_=owner.type), wanted))

    def listed_rows(
        self,
        shown: Sequence[ColumnElement[Any]],
        owner: ColumnElement[Any],
        owned_by: str,
        column: ColumnElement[Any],
        name: str,
    ) -> FromClause:
        # While there are no statistics, it takes the table for small, and would compare each of its rows with each
        # value. With an OFFSET it cannot make one join of it.
        values = func.unnest(bindparam(name, type_=ARRAY(column.type))).table_valued("value").render_derived("wanted")
        is_of_value = (owner == bindparam(owned_by, type_=owner.type), column == values.c.value)
        each = select(*shown).where(*is_of_value).offset(literal_column("0")).lateral("each")
        return select(each).select_from(values.join(each, true())).subquery("listed")


class Mariadb(Dialect):
    name = "mariadb"
    schemes = ("mariadb", "mysql")
    driver = "mariadb+asyncmy"
    module = "asyncmy"
    extra = "mariadb"

    begin_write = ("START TRANSACTION",)
    # It has no one statement for both; the level holds for the next transaction only.
    begin_read = (
        "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ",
        "START TRANSACTION WITH CONSISTENT SNAPSHOT, READ ONLY",
    )
    on_connect = (
        "SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED",
        # Not strict, it cuts long text and clamps numbers. Notes would each cost a round trip to fetch.
        "SET SESSION sql_mode = 'STRICT_ALL_TABLES,ERROR_FOR_DIVISION_BY_ZERO,NO_ENGINE_SUBSTITUTION', sql_notes = 0,"
        f" innodb_lock_wait_timeout = {round(LOCK_WAIT_S)}, idle_transaction_timeout = {IDLE_TRANSACTION_S}",
    )
    # A named lock belongs to the whole server, hence the name of the database; DDL commits, so no row lock would do.
    upgrade_lock = "SELECT GET_LOCK(CONCAT('penstock.', DATABASE()), 0)"
    # Its default is a day, and whole seconds are all it knows.
    before_change = (f"SET SESSION lock_wait_timeout = {round(CHANGE_WAIT_S)}",)
    rebuild_indexes = "OPTIMIZE TABLE {table}"  # InnoDB makes the table and its indexes anew, beside those who use it
    waits_for_locks = ("SET lock_wait_timeout = 86400",)
    facts = (
        "SELECT VERSION() AS version, @@innodb_flush_log_at_trx_commit AS innodb_flush_log_at_trx_commit,"
        " @@innodb_doublewrite AS innodb_doublewrite, IF(@@log_bin, @@sync_binlog, 1) AS sync_binlog"
    )
    requirements = (
        # MySQL knows neither the collations nor the timeouts we set.
        Requirement("version", "MariaDB 10.6 or newer", at_least(10, 6, containing="MariaDB")),
        Requirement("innodb_flush_log_at_trx_commit", "1", one_of("1")),
        Requirement("innodb_doublewrite", "ON", lambda found: found.upper() not in {"0", "OFF"}),
        # With a binary log, recovery rolls back what that log lost, even if InnoDB has it.
        Requirement("sync_binlog", "1", lambda found: found != "0"),
    )

    def arrange(self, url: URL) -> URL:
        # The driver takes `ssl` as a value of Python only, and without an authority it believes every server.
        if "ssl" not in url.query:
            return url
        asked, plain = str(url.query["ssl"]), url.difference_update_query(["ssl"])
        if asked.lower() in ("false", "0", "") or plain.query.keys() & {"ssl_ca", "ssl_capath"}:
            return plain
        known = ssl.get_default_verify_paths()
        if asked.lower() not in ("true", "1"):
            return plain.update_query_pairs([("ssl_ca", asked)])
        return plain.update_query_pairs(
            [("ssl_ca", known.cafile) if known.cafile else ("ssl_capath", known.capath or "")]
        )

    def connect_args(self, schema: str | None = None) -> dict[str, Any]:
        return {"connect_timeout": CONNECT_S, "charset": "utf8mb4", "autocommit": True}

    async def send(self, connection: Any, prepared: Prepared, parameters: list[Any]) -> Answer:
        cursor = connection.cursor()  # it holds nothing that would have to be closed
        await (cursor.executemany if prepared.is_many else cursor.execute)(prepared.text, parameters)
        found = await cursor.fetchall() if prepared.has_rows else ()
        return prepared.answer(found, cursor.rowcount)

    async def tell(self, connection: Any, text: str) -> None:
        await connection.query(text)

    def trouble(self, error: DBAPIError) -> Trouble:
        code = error.orig.args[0] if error.orig and error.orig.args else 0
        # Lock timeout, deadlock, record or table definition changed since the snapshot.
        if code in {1205, 1213, 1020, 1412}:
            return "contended"
        if code in {1021, 1114}:
            return "full"
        # Too many connections, shutdown, killed, read only, idle transaction ended; 20xx are the client's.
        if error.connection_invalidated or code in {1040, 1053, 1203, 1290, 1317, 1836, 1927, 1969}:
            return "unavailable"
        if isinstance(code, int) and 2000 <= code < 2100:
            return "unavailable"
        return "refused" if code in {1044, 1045, 1049, 1698} else "other"

    def clock_expression(self, clock: Clock) -> ColumnElement[int]:
        # UTC whatever the session's time zone says, and one value a statement, so that an index can be used.
        return literal_column(
            "TIMESTAMPDIFF(MICROSECOND, TIMESTAMP'1970-01-01 00:00:00', UTC_TIMESTAMP(6))", BigInteger
        )

    def upsert(self, table: Table, *, key: Sequence[str], update: Sequence[str]) -> Insert:
        # It finds the key by itself. INSERT IGNORE would swallow other errors too, so a key is set to itself instead.
        insert = mariadb_insert(table)
        return insert.on_duplicate_key_update({name: insert.inserted[name] for name in update or key[:1]})


DIALECTS: tuple[Dialect, ...] = (Sqlite(), Postgresql(), Mariadb())


class place_of(FunctionElement[int]):
    """`place_of(part, whole)`: where one block of bytes begins in another, from 1; 0 when it is not there."""

    type = Integer()
    inherit_cache = True


@compiles(place_of)
def _instr(call: place_of, compiler: SQLCompiler, **kw: Any) -> str:
    part, whole = (compiler.process(clause, **kw) for clause in call.clauses)
    return f"instr({whole}, {part})"


@compiles(place_of, "postgresql")
def _position(call: place_of, compiler: SQLCompiler, **kw: Any) -> str:
    # Its function of the usual name is for text only.
    part, whole = (compiler.process(clause, **kw) for clause in call.clauses)
    return f"position({part} IN {whole})"


def notice_partitions(driver_connection: Any) -> None:
    """Make the kernel give up on a peer that fell silent; nothing to do where the driver shows no TCP socket."""
    transport = getattr(driver_connection, "_transport", None)
    sock = transport.get_extra_info("socket") if transport is not None else None
    if sock is None or sock.family == socket.AF_UNIX:
        return
    options = {"TCP_KEEPIDLE": 2, "TCP_KEEPINTVL": 1, "TCP_KEEPCNT": 3, "TCP_USER_TIMEOUT": PARTITION_S * 1000}
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in options.items():
        with suppress(AttributeError, OSError):  # not every system has them all
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
