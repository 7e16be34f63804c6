"""Tables on real databases for the tests of SQL targets, and a wire between that can be cut."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager, closing, suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any, TypeAlias
from urllib.parse import urlsplit

import asyncmy
import asyncpg
import pytest

from penstock.targets.model import BulkOptions, Mode, TargetError
from penstock.targets.sql import MariaDbTarget, PostgresTarget, SqliteTarget, SqlOptions
from penstock.targets.sql.target import SqlTarget
from penstock.targets.target import Answer, Batch

KEYS = count()
PRODUCTS = {
    "postgresql": """CREATE TABLE products (id integer PRIMARY KEY, name varchar(20) NOT NULL,
        price numeric(8,2) CHECK (price >= 0), code text UNIQUE, note text DEFAULT 'none')""",
    "mariadb": """CREATE TABLE products (id integer PRIMARY KEY, name varchar(20) NOT NULL,
        price numeric(8,2) CHECK (price >= 0), code varchar(50) UNIQUE, note text DEFAULT 'none')""",
    "sqlite": """CREATE TABLE products (id integer PRIMARY KEY, name text NOT NULL CHECK (length(name) <= 20),
        price numeric CHECK (price >= 0), code text UNIQUE, note text COLLATE NOCASE DEFAULT 'none')""",
}


Ask: TypeAlias = Callable[[str], Awaitable[list[tuple[Any, ...]]]]


@asynccontextmanager
async def postgres_hand(url: str) -> AsyncIterator[Ask]:
    connection = await asyncpg.connect(url)

    async def ask(text: str) -> list[tuple[Any, ...]]:
        return [tuple(row) for row in await connection.fetch(text)]

    try:
        yield ask
    finally:
        await connection.close()


@asynccontextmanager
async def mariadb_hand(url: str) -> AsyncIterator[Ask]:
    connection = await asyncmy.connect(**maria_place(url), autocommit=True)

    async def ask(text: str) -> list[tuple[Any, ...]]:
        async with connection.cursor() as cursor:
            await cursor.execute("SET sql_notes = 0")
            await cursor.execute(text)
            return list(await cursor.fetchall())

    try:
        yield ask
    finally:
        await connection.ensure_closed()


@asynccontextmanager
async def sqlite_hand(url: str) -> AsyncIterator[Ask]:
    with closing(sqlite3.connect(url, isolation_level=None)) as connection:

        async def ask(text: str) -> list[tuple[Any, ...]]:
            return connection.execute(text).fetchall()

        yield ask


HANDS = {"postgresql": postgres_hand, "mariadb": mariadb_hand, "sqlite": sqlite_hand}


@dataclass
class Place:
    """A database of one kind, with a target on it and a hand of our own."""

    kind: str
    url: str
    target: SqlTarget
    opened: list[SqlTarget] = field(default_factory=list)

    async def make(self, table: str, ddl: str) -> None:
        """A new table in place of any of that name."""
        await self.run(f"DROP TABLE IF EXISTS {table}" + (" CASCADE" if self.kind == "postgresql" else ""))
        await self.run(ddl)

    async def products(self) -> None:
        """The table most tests use."""
        await self.make("products", PRODUCTS[self.kind])

    async def run(self, statement: str) -> None:
        """Execute a statement, apart from the target."""
        async with self.hand() as execute:
            await execute(statement)

    async def rows(self, query: str) -> list[tuple[Any, ...]]:
        """What a query finds, apart from the target."""
        async with self.hand() as execute:
            return await execute(query)

    @asynccontextmanager
    async def hand(self) -> AsyncIterator[Ask]:
        """A connection of our own."""
        async with HANDS[self.kind](self.url) as ask:
            yield ask

    def new_target(self, url: str | None = None, **settings: Any) -> SqlTarget:
        """Another target on the same database; it is closed with the place."""
        self.opened.append(open_target(self.kind, url or self.url, **settings))
        return self.opened[-1]

    async def send(
        self, mode: Mode, records: Sequence[Any], *, table: str = "products", each: bool = False, **options: Any
    ) -> Answer:
        """Send records to the target as one batch."""
        send = self.target.send_each if each else self.target.send
        return await send(batch(mode, records, table=table, **options), "default")

    async def refused(self, mode: Mode, records: Sequence[Any], **more: Any) -> TargetError:
        """The error a batch fails with."""
        with pytest.raises(TargetError) as caught:
            await self.send(mode, records, **more)
        return caught.value


def batch(mode: Mode, records: Sequence[Any], *, table: str = "products", **options: Any) -> Batch:
    """A batch with a key of its own."""
    return Batch(table, mode, records, SqlOptions(**options) if options else BulkOptions(), f"batch-{next(KEYS)}")


def outcomes(answer: Answer) -> list[str]:
    """What became of the records: an outcome, or the code of the error."""
    return [str(v.error.code if v.error else v.outcome) for v in answer.verdicts]


def maria_place(url: str) -> dict[str, Any]:
    """A MariaDB URL as the driver's arguments."""
    parts = urlsplit(url)
    place = {"host": parts.hostname, "port": parts.port, "user": parts.username, "password": parts.password}
    return {**place, "database": parts.path[1:]}


def open_target(kind: str, url: str, **settings: Any) -> SqlTarget:
    """A target of that kind."""
    if kind == "postgresql":
        return PostgresTarget(url, **settings)
    return MariaDbTarget(url, **settings) if kind == "mariadb" else SqliteTarget(url, **settings)


@pytest.fixture
async def place(
    database_kind: str, server_url: Callable[[str], str], worker_id: str, tmp_path: Path
) -> AsyncIterator[Place]:
    """A place on each of the three databases in turn."""
    if database_kind == "sqlite":
        url = str(tmp_path / "target.db")
    else:
        url = await _own_database(database_kind, server_url(database_kind), f"penstock_sql_{worker_id}")
    place = Place(database_kind, url, open_target(database_kind, url))
    yield place
    for target in (place.target, *place.opened):
        await target.aclose()


async def _own_database(kind: str, url: str, name: str) -> str:
    async with HANDS[kind](url) as execute:
        if kind == "mariadb":
            await execute(f"CREATE DATABASE IF NOT EXISTS {name}")
        elif not await execute(f"SELECT 1 FROM pg_database WHERE datname = '{name}'"):
            await execute(f"CREATE DATABASE {name}")
    return url.rpartition("/")[0] + f"/{name}"


class Wire:
    """A proxy to a database server that is cut when a word passes: before it arrives, or before its answer does.

    The word is a commit unless told otherwise; the first `spare` of them pass. The answer can also be held. A late word
    arrives when another connection is opened.
    """

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._server = (parts.hostname, parts.port)
        self._url = url
        self.word = b"COMMIT"
        self.cut: str | None = None
        self.is_once = False
        self._late = asyncio.Event()
        self.spare = 0
        self.held, self.released = asyncio.Event(), asyncio.Event()
        self.url = ""
        self._tasks: set[asyncio.Task[None]] = set()
        self._sides: list[asyncio.StreamWriter] = []

    async def __aenter__(self) -> Wire:
        self._listener = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        port = self._listener.sockets[0].getsockname()[1]
        self.url = self._url.replace(f":{self._server[1]}/", f":{port}/")
        return self

    async def __aexit__(self, *_: object) -> None:
        self._listener.close()
        for side in self._sides:
            side.close()
        await asyncio.gather(*self._tasks)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self._late.set()
        theirs, ours = await asyncio.open_connection(*self._server)
        self._sides += [writer, ours]
        is_cut = asyncio.Event()
        both = [
            asyncio.ensure_future(self._to_server(reader, ours, writer, is_cut)),
            asyncio.ensure_future(self._to_client(theirs, writer, is_cut)),
        ]
        try:
            await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for one in both:
                one.cancel()
            await asyncio.gather(*both, return_exceptions=True)
            for side in (writer, ours):
                side.close()
                with suppress(OSError):
                    await side.wait_closed()

    async def _to_server(
        self,
        client: asyncio.StreamReader,
        server: asyncio.StreamWriter,
        answers: asyncio.StreamWriter,
        is_cut: asyncio.Event,
    ) -> None:
        while data := await client.read(65536):
            if self.cut and self._has_word(data):
                self.spare -= 1
                if self.spare >= 0:
                    pass
                elif (cut := self._cut_now()) == "before":
                    return
                else:
                    is_cut.set()
                    if cut == "late":
                        answers.transport.abort()
                        self._late.clear()
                        await self._late.wait()
            server.write(data)
            await server.drain()

    def _cut_now(self) -> str | None:
        cut, self.cut = self.cut, None if self.is_once else self.cut
        return cut

    def _has_word(self, data: bytes) -> bool:
        return self.word in data.replace(b"ON COMMIT", b"").replace(b"READ COMMITTED", b"")

    async def _to_client(
        self, server: asyncio.StreamReader, client: asyncio.StreamWriter, is_cut: asyncio.Event
    ) -> None:
        while data := await server.read(65536):
            if is_cut.is_set() and self.cut != "hold":
                return
            if is_cut.is_set():
                self.held.set()
                await self.released.wait()
            client.write(data)
            await client.drain()
