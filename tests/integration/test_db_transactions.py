"""Write transactions are whole or absent, and repeated when they collide; reads are snapshots."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import Any

import pytest
import servers
from patience import HANG_S
from sqlalchemy import Column, Integer, MetaData, Table, bindparam, func, insert, make_url, select, update
from sqlalchemy.exc import DBAPIError, IntegrityError
from sqlalchemy.ext.asyncio import AsyncConnection

from penstock.clock import SystemClock
from penstock.db.connection import Connection, Link, raise_known
from penstock.db.database import CommitUnknown, Database
from penstock.db.onehop import Direct
from penstock.db.schema import table_options
from penstock.errors import Unavailable

accounts = Table(
    "account",
    MetaData(),
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("amount", Integer, nullable=False),
    **table_options(is_numbered=False),
)


@pytest.fixture
async def db(database: Database) -> AsyncIterator[Database]:
    """A database with two accounts holding nothing."""
    await create_accounts(database)
    yield database
    async with database.connection() as connection:
        await connection.run_sync(accounts.drop)


async def create_accounts(database: Database) -> None:
    async with database.connection() as connection:
        await connection.run_sync(accounts.drop, checkfirst=True)
        await connection.run_sync(accounts.create)
        await connection.execute(insert(accounts), [{"id": 1, "amount": 0}, {"id": 2, "amount": 0}])


async def pay(tx: AsyncConnection, account: int, amount: int = 1) -> None:
    await tx.execute(
        update(accounts).where(accounts.c.id == account).values(amount=accounts.c.amount + amount),
    )


async def amounts(database: Database) -> list[int]:
    async with database.read() as tx:
        return list((await tx.scalars(select(accounts.c.amount).order_by(accounts.c.id))).all())


async def test_a_transaction_answers_what_its_work_answers_and_is_kept(db):
    async def work(tx: AsyncConnection) -> str:
        await pay(tx, 1)
        return "paid"

    assert await db.transaction(work) == "paid"
    assert await amounts(db) == [1, 0]


async def test_an_error_leaves_nothing_behind(db):
    async def work(tx: AsyncConnection) -> None:
        await pay(tx, 1)
        raise LookupError("no")

    with pytest.raises(LookupError):
        await db.transaction(work)
    assert await amounts(db) == [0, 0]


async def test_an_error_of_the_database_propagates_and_is_not_repeated(db):
    runs = []

    async def work(tx: AsyncConnection) -> None:
        runs.append(1)
        await pay(tx, 2)
        await tx.execute(insert(accounts), [{"id": 1, "amount": 0}])

    with pytest.raises(IntegrityError):
        await db.transaction(work)
    assert runs == [1]
    assert await amounts(db) == [0, 0]


async def test_a_cancelled_transaction_leaves_nothing_and_harms_no_later_one(db):
    entered = asyncio.Event()

    async def work(tx: AsyncConnection) -> None:
        await pay(tx, 1)
        entered.set()
        await asyncio.Event().wait()

    task = asyncio.create_task(db.transaction(work))
    await entered.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await db.transaction(lambda tx: pay(tx, 2))
    assert await amounts(db) == [0, 1]


SLOW = {
    "postgresql": "SELECT pg_sleep(30)",
    "mariadb": "SELECT SLEEP(30)",
    "sqlite": "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 100000) SELECT max(i) FROM n",
}


async def test_callers_cancelled_in_the_middle_of_a_statement_leave_no_broken_connection(db):
    for _ in range(7):  # more often than there are connections
        task = asyncio.create_task(db.transaction(lambda tx: tx.exec_driver_sql(SLOW[db.dialect.name])))
        for _ in range(100):
            await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    await asyncio.gather(*(db.transaction(lambda tx: pay(tx, 1)) for _ in range(20)))
    assert await amounts(db) == [20, 0]


@pytest.mark.databases("postgresql", "mariadb")
@pytest.mark.parametrize("turns", [1, 2, 3, 5])
async def test_callers_cancelled_twice_leave_no_broken_connection_and_do_not_hang(db, turns):
    """The second time comes while the connection of the first is being given up."""

    async def look() -> None:
        async with db.read() as tx:
            await tx.tell(SLOW[db.dialect.name])

    for _ in range(7):
        task = asyncio.create_task(look())
        for _ in range(100):
            await asyncio.sleep(0)
        task.cancel()
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        async with asyncio.timeout(HANG_S):
            with pytest.raises(asyncio.CancelledError):
                await task
    await asyncio.gather(*(db.transaction(lambda tx: pay(tx, 1)) for _ in range(20)))
    assert await amounts(db) == [20, 0]


@pytest.mark.databases("sqlite")
async def test_a_caller_cancelled_while_its_file_is_opened_leaves_no_open_file(database_url, monkeypatch):
    loop, connect = asyncio.get_running_loop(), sqlite3.connect
    opening, go_on, files = asyncio.Event(), threading.Event(), []

    def connect_when_told(*given: Any, **options: Any) -> sqlite3.Connection:
        loop.call_soon_threadsafe(opening.set)
        go_on.wait()
        files.append(connect(*given, **(options | {"check_same_thread": False})))
        return files[0]

    monkeypatch.setattr(sqlite3, "connect", connect_when_told)
    database = Database.connect(database_url, clock=SystemClock())
    task = asyncio.create_task(database.findings())
    await opening.wait()
    task.cancel()
    go_on.set()
    with pytest.raises(asyncio.CancelledError):
        await task
    await database.close()
    (file,) = files
    with pytest.raises(sqlite3.ProgrammingError, match="closed"):
        file.execute("SELECT 1")


async def test_a_cancel_that_a_driver_loses_while_it_connects_is_a_cancel_all_the_same(db, database_url, monkeypatch):
    start, connecting = Link.start, asyncio.Event()

    async def start_and_lose(link: Link, is_ctxmanager: bool = False) -> Link:
        with suppress(asyncio.CancelledError):
            connecting.set()
            await asyncio.Event().wait()
        return await start(link, is_ctxmanager)

    with monkeypatch.context() as patch:
        patch.setattr(Link, "start", start_and_lose)
        elsewhere = Database.connect(database_url, clock=SystemClock())
        task = asyncio.create_task(elsewhere.transaction(lambda tx: pay(tx, 1)))
        await connecting.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    await elsewhere.transaction(lambda tx: pay(tx, 2))  # even on the only connection of a file
    await elsewhere.close()
    assert await amounts(db) == [0, 1]


async def test_many_transactions_at_once_all_count(db):
    await asyncio.gather(*(db.transaction(lambda tx: pay(tx, 1)) for _ in range(50)))
    assert await amounts(db) == [50, 0]


@pytest.mark.covers("F10")
async def test_two_transactions_that_lock_in_opposite_order_both_happen_in_the_end(db):
    both_hold_one = asyncio.Barrier(2)
    runs = []

    async def work(tx: AsyncConnection, first: int, second: int) -> None:
        runs.append(first)
        await pay(tx, first)
        if len(runs) <= 2 and not db.dialect.is_file:
            await both_hold_one.wait()
        await pay(tx, second, 10)

    await asyncio.gather(
        db.transaction(lambda tx: work(tx, 1, 2)),
        db.transaction(lambda tx: work(tx, 2, 1)),
    )
    assert await amounts(db) == [11, 11]
    # SQLite's writers queue. On a server one of the two was the victim and ran again; more than
    # once where it took its first row back before the other one woke up.
    assert len(runs) == 2 if db.dialect.is_file else len(runs) >= 3


@pytest.mark.covers("F10")
@pytest.mark.databases("postgresql", "mariadb")
async def test_a_lock_held_too_long_undoes_and_repeats_the_whole_transaction(db):
    holds, again, runs = asyncio.Event(), asyncio.Event(), []

    async def hold(tx: AsyncConnection) -> None:
        await pay(tx, 2)
        holds.set()
        await again.wait()

    async def work(tx: AsyncConnection) -> None:
        runs.append(1)
        if len(runs) == 2:
            again.set()
        await pay(tx, 1)
        await pay(tx, 2)

    holder = asyncio.create_task(db.transaction(hold))
    await holds.wait()
    await db.transaction(work)
    await holder
    assert await amounts(db) == [1, 2]
    assert len(runs) >= 2


@pytest.mark.databases("postgresql", "mariadb")
async def test_a_statement_that_an_administrator_kills_leaves_nothing_and_may_be_tried_again_later(db):
    kinds = {
        "postgresql": ("pg_backend_pid()", "SELECT pg_cancel_backend({})"),
        "mariadb": ("CONNECTION_ID()", "KILL QUERY {}"),
    }
    own, kill = kinds[db.dialect.name]
    holds, over = asyncio.Event(), asyncio.Event()
    sessions = list[int]()

    async def hold(tx: AsyncConnection) -> None:
        await pay(tx, 2)
        holds.set()
        await over.wait()

    async def work(tx: AsyncConnection) -> None:
        sessions.append((await tx.exec_driver_sql(f"SELECT {own}")).scalar_one())
        await pay(tx, 1)
        await pay(tx, 2)

    holder = asyncio.create_task(db.transaction(hold))
    await holds.wait()
    victim = asyncio.create_task(db.transaction(work))
    async with asyncio.timeout(HANG_S), db.connection() as administrator:
        while not victim.done():
            await asyncio.sleep(0)
            for session in sessions[-1:]:
                await administrator.exec_driver_sql(kill.format(session))
    with pytest.raises(Unavailable):
        await victim
    over.set()
    await holder
    assert await amounts(db) == [0, 1]


@pytest.mark.databases("sqlite")
async def test_a_sqlite_file_locked_by_another_process_is_waited_for(db, monkeypatch):
    monkeypatch.setattr(asyncio, "sleep", lambda _: unlock())
    other = sqlite3.connect(str(db._engine.url.database), isolation_level=None)
    other.execute("BEGIN IMMEDIATE")

    async def unlock() -> None:
        """Let go when the first try has failed and the transaction backs off."""
        other.execute("COMMIT")

    await db.transaction(lambda tx: pay(tx, 1))
    other.close()
    assert await amounts(db) == [1, 0]


async def test_collisions_without_end_are_given_up_as_unavailable(db, monkeypatch):
    monkeypatch.setattr("penstock.db.database.BACKOFF_MAX_S", 0)
    monkeypatch.setattr(type(db.dialect), "trouble", lambda self, error: "contended")
    runs = []

    async def work(tx: AsyncConnection) -> None:
        runs.append(1)
        await tx.execute(insert(accounts), [{"id": 1, "amount": 0}])

    with pytest.raises(Unavailable, match="collided with others 10 times"):
        await db.transaction(work)
    assert len(runs) == 10


async def test_a_read_is_one_snapshot_and_blocks_no_writer(db):
    total = select(func.sum(accounts.c.amount))
    async with db.read() as tx:
        before = await tx.scalar(total)
        await db.transaction(lambda tx: pay(tx, 1))
        assert await tx.scalar(total) == before
    async with db.read() as tx:
        assert await tx.scalar(total) == before + 1


@pytest.mark.databases("postgresql", "mariadb")
async def test_a_read_on_a_server_cannot_write(db):
    with pytest.raises((DBAPIError, Unavailable), match=r"(?i)read.only"):
        async with db.read() as tx:
            await pay(tx, 1)


@pytest.mark.databases("postgresql", "mariadb")
async def test_a_write_sees_what_others_committed_meanwhile(db):

    async def work(tx: AsyncConnection) -> int | None:
        await tx.scalar(select(accounts.c.amount).where(accounts.c.id == 1))
        await db.transaction(lambda other: pay(other, 1, 5))
        return await tx.scalar(select(accounts.c.amount).where(accounts.c.id == 1))

    assert await db.transaction(work) == 5


class Cable:
    """A proxy that forwards until told to cut at a word, before or after the server has seen it."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.cut_at: bytes | None = None
        self.is_delivered = False
        self._writers: list[asyncio.StreamWriter] = []

    async def __aenter__(self) -> int:
        self._server = await asyncio.start_server(self._carry, "127.0.0.1", 0)
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    async def __aexit__(self, *_: object) -> None:
        self._cut()
        self._server.close()
        await self._server.wait_closed()

    def _cut(self) -> None:
        for writer in self._writers:
            writer.transport.abort()
        self._writers.clear()

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self.port)
        self._writers += [writer, far_writer]
        await asyncio.gather(
            self._pump(reader, far_writer, watch=True),
            self._pump(far_reader, writer, watch=False),
            return_exceptions=True,
        )

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, watch: bool) -> None:
        while data := await reader.read(65536):
            if watch and self.cut_at and self.cut_at in data:
                self.cut_at = None
                await self._let_through(writer, data)
                return self._cut()
            writer.write(data)
            await writer.drain()
        writer.close()
        return None

    async def _let_through(self, writer: asyncio.StreamWriter, data: bytes) -> None:
        if self.is_delivered:
            writer.write(data)
            await writer.drain()


@pytest.fixture
async def cable(database_kind: str, database_url: str) -> AsyncIterator[tuple[Cable, Database]]:
    """A database reached through a cable that can be cut."""
    url = make_url(database_url)
    cable = Cable(url.port or 0)
    async with cable as port:
        through = url.set(port=port).render_as_string(hide_password=False)
        database = await Database.open(through, clock=SystemClock())
        await create_accounts(database)
        yield cable, database
        async with database.connection() as connection:
            await connection.run_sync(accounts.drop)
        await database.close()


@pytest.mark.covers("I-42", "F06")
@pytest.mark.databases("postgresql", "mariadb")
@pytest.mark.parametrize("is_delivered", [False, True])
async def test_a_connection_lost_at_commit_is_reported_as_unknown_and_never_repeated(cable, is_delivered):
    line, database = cable
    runs = []

    async def work(tx: AsyncConnection) -> None:
        runs.append(1)
        await pay(tx, 1)
        line.cut_at, line.is_delivered = b"COMMIT", is_delivered

    with pytest.raises(CommitUnknown):
        await database.transaction(work)
    assert runs == [1]
    assert await amounts(database) in ([[1, 0], [0, 0]] if is_delivered else [[0, 0]])


@pytest.mark.covers("F06")
@pytest.mark.databases("postgresql", "mariadb")
async def test_a_connection_lost_before_commit_is_unavailable_and_nothing_happened(cable):
    line, database = cable

    async def work(tx: AsyncConnection) -> None:
        await pay(tx, 1)
        line.cut_at = b"account"
        await tx.exec_driver_sql("UPDATE account SET amount = 99")

    with pytest.raises(Unavailable) as caught:
        await database.transaction(work)
    assert not isinstance(caught.value, CommitUnknown)
    assert await amounts(database) == [0, 0]


async def test_a_single_statement_is_a_transaction_by_itself(db):
    paid = update(accounts).where(accounts.c.id == bindparam("of")).values(amount=accounts.c.amount + 1)
    assert (await db.single(paid, {"of": 1})).matched == 1
    assert (await db.single(paid, {"of": 99})).matched == 0
    assert await amounts(db) == [1, 0]


async def test_single_statements_at_once_are_all_carried_out(db):
    paid = update(accounts).where(accounts.c.id == bindparam("of")).values(amount=accounts.c.amount + 1)
    await asyncio.gather(*(db.single(paid, {"of": 1 + number % 2}) for number in range(40)))
    assert await amounts(db) == [20, 20]


async def test_a_single_statement_that_is_refused_harms_no_other(db):
    add = insert(accounts)
    answers = await asyncio.gather(
        *(db.single(add, {"id": number, "amount": 0}) for number in (3, 1, 4, 2, 5)), return_exceptions=True
    )
    assert [isinstance(answer, IntegrityError) for answer in answers] == [False, True, False, True, False]
    assert len(await amounts(db)) == 5


@pytest.mark.covers("I-42")
@pytest.mark.databases("postgresql", "mariadb")
@pytest.mark.parametrize("is_delivered", [False, True])
async def test_a_connection_lost_at_a_single_statement_is_reported_as_unknown(cable, is_delivered):
    line, database = cable
    paid = update(accounts).where(accounts.c.id == bindparam("of")).values(amount=7)
    line.cut_at, line.is_delivered = b"UPDATE account", is_delivered
    with pytest.raises(CommitUnknown):
        await database.single(paid, {"of": 1})
    assert await amounts(database) in ([[7, 0], [0, 0]] if is_delivered else [[0, 0]])


@pytest.mark.databases("sqlite")
async def test_a_write_for_which_the_disk_has_no_room_is_undone_and_says_so(database_url):
    database = await Database.open(database_url, clock=SystemClock(), pool_size=1)
    await create_accounts(database)
    async with database.connection() as connection:
        await connection.exec_driver_sql("PRAGMA max_page_count = 1")  # no more than there are

    async def work(tx: AsyncConnection) -> None:
        await pay(tx, 1)
        await tx.execute(insert(accounts), [{"id": n, "amount": 0} for n in range(3, 10_000)])

    with pytest.raises(Unavailable, match=r"the disk of .* is full"):
        await database.transaction(work)
    await database.transaction(lambda tx: pay(tx, 2))
    assert await amounts(database) == [0, 1]
    await database.close()


@pytest.mark.databases("sqlite")
async def test_a_commit_for_which_the_disk_has_no_room_has_not_happened(db, monkeypatch):
    tell = Direct.tell

    async def tell_full(connection: Direct, text: str) -> None:
        if text == "COMMIT":  # SQLite undoes the transaction by itself, then says why
            monkeypatch.undo()
            await tell(connection, "ROLLBACK")
            error = sqlite3.OperationalError("database or disk is full")
            error.sqlite_errorcode = sqlite3.SQLITE_FULL
            raise_known(error, text, (), connection._sync)
        await tell(connection, text)

    monkeypatch.setattr(Direct, "tell", tell_full)
    with pytest.raises(Unavailable, match=r"the disk of .* is full") as caught:
        await db.transaction(lambda tx: pay(tx, 1))
    assert not isinstance(caught.value, CommitUnknown)
    await db.transaction(lambda tx: pay(tx, 2))
    assert await amounts(db) == [0, 1]


@pytest.mark.covers("F05")
@pytest.mark.databases("postgresql", "mariadb")
@pytest.mark.parametrize("end", ["stop", "kill"])
async def test_the_pool_recovers_by_itself_after_a_restart(database_kind, end):
    with servers.private(database_kind) as server:
        database = await Database.open(server.url, clock=SystemClock(), upgrade=False)
        await create_accounts(database)
        await database.transaction(lambda tx: pay(tx, 1))
        ending: Callable[[], None] = getattr(server, end)
        ending()
        with pytest.raises(Unavailable):
            await database.transaction(lambda tx: pay(tx, 1))
        server.start()
        await database.transaction(lambda tx: pay(tx, 2))
        assert await amounts(database) == [1, 1]
        await database.close()


@pytest.mark.databases("sqlite", "postgresql")
async def test_what_another_process_commits_is_heard(db: Database, database_url: str):
    elsewhere, heard = Database.connect(database_url, clock=SystemClock()), asyncio.Event()

    async def work(tx: Connection) -> None:
        await tx.execute(update(accounts).values(amount=accounts.c.amount + 1))
        await elsewhere.ring(tx)

    listening = asyncio.create_task(db.listen(heard.set))
    try:
        async with asyncio.timeout(HANG_S):
            while not heard.is_set():  # it may not listen yet when the first is committed
                await elsewhere.transaction(work)
                await asyncio.sleep(0.01)
    finally:
        listening.cancel()
        await asyncio.gather(listening, return_exceptions=True)
        await elsewhere.close()


@pytest.mark.databases("sqlite", "postgresql")
async def test_nothing_is_heard_while_nobody_commits(db: Database):
    heard = asyncio.Event()
    listening = asyncio.create_task(db.listen(heard.set))
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.3):
            await heard.wait()
    listening.cancel()
    await asyncio.gather(listening, return_exceptions=True)
