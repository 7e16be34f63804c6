"""Connections: what cannot be reached, what is busy, what is let go."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import asyncmy
import asyncpg
import pytest
import servers
from patience import HANG_S
from sql_places import Place, batch, maria_place, mariadb_hand, open_target, outcomes, postgres_hand

from penstock.errors import SettingsInvalid
from penstock.targets import BulkExecutor, Outcome, RetryPolicy
from penstock.targets.model import BadInput, BulkOptions, ErrorKind, Mode, TargetError
from penstock.targets.sql import MariaDbTarget, PostgresTarget, SqliteTarget
from penstock.targets.sql.target import SqlTarget


def product(n: int, **more: object) -> dict[str, object]:
    return {"id": n, "name": f"product {n}", "price": n, **more}


async def refusal(target: SqlTarget, *, table: str = "products") -> TargetError:
    with pytest.raises(TargetError) as caught:
        await target.describe(table, Mode.CREATE, BulkOptions(), "default")
    await target.aclose()
    return caught.value


@pytest.mark.parametrize("target", [PostgresTarget, MariaDbTarget])
async def test_a_server_that_is_not_there_is_a_lost_connection(target: type[SqlTarget], unused_tcp_port: int):
    scheme = "postgresql" if target is PostgresTarget else "mariadb"
    error = await refusal(target(f"{scheme}://a:b@127.0.0.1:{unused_tcp_port}/x"))  # type: ignore[call-arg, arg-type]
    assert (error.kind, error.maybe_applied) == (ErrorKind.CONNECTION, False)


@pytest.mark.databases("mariadb")
async def test_a_wrong_password_is_a_stale_credential(place: Place):
    address = maria_place(place.url)
    url = f"mariadb://{address['user']}:wrong@{address['host']}:{address['port']}/{address['database']}"
    assert (await refusal(MariaDbTarget(url))).kind is ErrorKind.TOKEN


@pytest.mark.parametrize("url", ["mariadb://host", "postgresql://a@b/c", "just text"])
def test_an_address_that_is_no_mariadb_database_is_refused(url: str):
    with pytest.raises(BadInput, match="mariadb://user:password@host:3306/name"):
        MariaDbTarget(url)


def test_a_target_needs_a_connection():
    with pytest.raises(SettingsInvalid, match="connections is 0"):
        PostgresTarget("postgresql://localhost/x", connections=0)


@pytest.mark.databases("sqlite")
async def test_a_sqlite_file_that_another_holds_is_tried_again_like_a_deadlock(place: Place):
    await place.products()
    target = place.new_target(busy_timeout_s=0.01)
    holder = sqlite3.connect(place.url, isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    with pytest.raises(TargetError) as caught:
        await target.send(batch(Mode.CREATE, [product(1)]), "default")
    assert (caught.value.kind, caught.value.code) == (ErrorKind.DEADLOCK, "SQLITE_BUSY")
    holder.execute("COMMIT")
    holder.close()
    assert outcomes(await target.send(batch(Mode.CREATE, [product(1)]), "default")) == ["created"]


@pytest.mark.databases("sqlite")
@pytest.mark.parametrize("is_checked, outcome", [(True, "SQLITE_CONSTRAINT_FOREIGNKEY"), (False, "created")])
async def test_sqlite_checks_foreign_keys_unless_told_otherwise(place: Place, is_checked: bool, outcome: str):
    await place.make("parents", "CREATE TABLE parents (id integer PRIMARY KEY)")
    await place.make("children", "CREATE TABLE children (id integer PRIMARY KEY, parent integer REFERENCES parents)")
    target = place.new_target(foreign_keys=is_checked)
    answer = await target.send_each(batch(Mode.CREATE, [{"id": 1, "parent": 5}], table="children"), "default")
    assert outcomes(answer) == [outcome]


def make_folder(path: str) -> None:
    Path(path).unlink(missing_ok=True)
    Path(path).mkdir()


@pytest.mark.databases("sqlite")
async def test_a_sqlite_file_that_cannot_be_opened_says_so(place: Place):
    target = SqliteTarget(place.url)
    make_folder(place.url)
    error = await refusal(target)
    assert (error.kind, error.code) == (ErrorKind.CONNECTION, "SQLITE_CANTOPEN")


@pytest.mark.databases("sqlite")
async def test_a_cancelled_call_that_was_still_waiting_does_not_disturb_the_running_one(place: Place):
    await place.products()
    await place.target.describe("products", Mode.CREATE, BulkOptions(), "default")
    first = asyncio.ensure_future(place.target.send(batch(Mode.CREATE, [product(n) for n in range(20_000)]), "default"))
    second = asyncio.ensure_future(place.target.send(batch(Mode.CREATE, [product(50_000)]), "default"))
    await asyncio.sleep(0)
    second.cancel()
    assert len((await first).verdicts) == 20_000
    assert second.cancelled()
    assert await place.rows("SELECT count(*) FROM products") == [(20_000,)]


ROOM_FOR_TWO = {
    "postgresql": (
        "DO $$ BEGIN IF to_regrole('narrow') IS NOT NULL THEN DROP OWNED BY narrow; DROP ROLE narrow; END IF; END $$",
        "CREATE ROLE narrow LOGIN PASSWORD 'narrow' CONNECTION LIMIT 2",
        "GRANT ALL ON ALL TABLES IN SCHEMA public TO narrow",
    ),
    "mariadb": (
        "DROP USER IF EXISTS narrow@localhost",
        "CREATE USER narrow@localhost IDENTIFIED BY 'narrow' WITH MAX_USER_CONNECTIONS 2",
        "GRANT ALL ON *.* TO narrow@localhost",
    ),
}


@pytest.mark.databases("postgresql", "mariadb")
@pytest.mark.covers("BX-058")
async def test_a_server_with_room_for_few_connections_is_used_with_those(place: Place, monkeypatch: pytest.MonkeyPatch):
    await place.products()
    parts = urlsplit(place.url)
    root = parts._replace(netloc=f"root:@{parts.hostname}:{parts.port}").geturl()
    async with postgres_hand(place.url) if place.kind == "postgresql" else mariadb_hand(root) as ask:
        for statement in ROOM_FOR_TWO[place.kind]:
            await ask(statement)
    url = parts._replace(netloc=f"narrow:narrow@{parts.hostname}:{parts.port}").geturl()
    driver = asyncpg if place.kind == "postgresql" else asyncmy
    connect, asked, turn = driver.connect, [], asyncio.Lock()

    async def counted(*given: Any, **named: Any) -> Any:
        async with turn:  # PostgreSQL may refuse two that come at once, though it has room for one of them
            asked.append("refused")
            connection = await connect(*given, **named)
            asked[-1] = "opened"
        return connection

    monkeypatch.setattr(driver, "connect", counted)
    target = open_target(place.kind, url)
    records = [{"id": n, "name": "a"} for n in range(2000)]
    result = await BulkExecutor(target).upsert_multiple("products", records, batch_size=100)
    await target.aclose()
    assert (result.is_success, result.statistics.throttles) == (True, 0)
    assert asked[:3] == ["opened", "opened", "refused"]
    assert "opened" not in asked[3:]


class SilentConnection:
    """A driver's connection that was opened, and never answers."""

    def __init__(self) -> None:
        self.is_open, self.is_asked = True, asyncio.Event()

    async def set_type_codec(self, *_: object, **__: object) -> None:
        await self.execute()

    @asynccontextmanager
    async def cursor(self) -> AsyncIterator[SilentConnection]:
        yield self

    async def execute(self, *_: object) -> None:
        self.is_asked.set()
        await asyncio.Event().wait()

    def is_closed(self) -> bool:
        return not self.is_open

    def close(self) -> None:
        self.is_open = False

    terminate = close


@pytest.mark.parametrize("kind, driver", [("postgresql", asyncpg), ("mariadb", asyncmy)])
async def test_a_connection_whose_opening_is_cancelled_is_let_go(
    kind: str, driver: Any, monkeypatch: pytest.MonkeyPatch
):
    connection = SilentConnection()

    async def connect(*_: object, **__: object) -> Any:
        return connection

    monkeypatch.setattr(driver, "connect", connect)
    target = open_target(kind, f"{kind}://u:p@h/db")
    opening = asyncio.ensure_future(target.describe("products", Mode.CREATE, BulkOptions(), "default"))
    await connection.is_asked.wait()
    opening.cancel()
    with pytest.raises(asyncio.CancelledError):
        await opening
    assert not connection.is_open


async def test_the_options_of_a_mariadb_address_are_not_dropped(monkeypatch: pytest.MonkeyPatch):
    seen: list[dict[str, Any]] = []

    async def connect(**given: Any) -> Any:
        seen.append(given)
        raise OSError("no server")

    monkeypatch.setattr(asyncmy, "connect", connect)
    for options in ("ssl=true&connect_timeout=3&unix_socket=/run/x", "ssl=false"):
        await refusal(MariaDbTarget(f"mariadb://u:p@h/db?{options}"))
    first, second = seen
    assert (first["connect_timeout"], first["unix_socket"], first["ssl"].check_hostname) == (3, "/run/x", True)
    assert "ssl" not in second
    with pytest.raises(BadInput, match="sslmode is no option of a MariaDB address"):
        MariaDbTarget("mariadb://u:p@h/db?sslmode=require")


@pytest.mark.databases("sqlite")
async def test_what_a_stopped_call_could_not_write_into_a_locked_file_is_not_run(
    place: Place, monkeypatch: pytest.MonkeyPatch
):
    await place.products()
    begun, loop, transact = asyncio.Event(), asyncio.get_running_loop(), SqliteTarget._transact

    def watched(*given: Any) -> Any:
        loop.call_soon_threadsafe(begun.set)
        return transact(*given)

    monkeypatch.setattr(SqliteTarget, "_transact", watched)
    target = place.new_target(busy_timeout_s=0.5)
    executor = BulkExecutor(target, policy=RetryPolicy(grace_s=0))
    async with place.hand() as execute:
        await execute("BEGIN IMMEDIATE")
        call = executor.start(Mode.CREATE, "products", [product(1)])
        await begun.wait()
        result = await call.cancel()
        await execute("ROLLBACK")
    assert (result.stopped_reason, result.outcomes) == ("cancelled", [Outcome.NOT_RUN])
    assert (await target.send(batch(Mode.CREATE, [product(1)]), "default")).verdicts[0].outcome == "created"


@pytest.mark.databases("sqlite")
async def test_a_call_stopped_while_a_file_is_written_hears_what_was_written(
    place: Place, monkeypatch: pytest.MonkeyPatch
):
    await place.products()
    written, answering = asyncio.Event(), threading.Event()
    loop, transact = asyncio.get_running_loop(), SqliteTarget._transact

    def slow(*given: Any) -> Any:
        verdicts = transact(*given)
        loop.call_soon_threadsafe(written.set)
        answering.wait(HANG_S)
        return verdicts

    monkeypatch.setattr(SqliteTarget, "_transact", slow)
    call = BulkExecutor(place.target, policy=RetryPolicy(grace_s=0)).start(Mode.CREATE, "products", [product(1)])
    await written.wait()
    stopping = asyncio.ensure_future(call.cancel())
    for _ in range(20):
        await asyncio.sleep(0)
    assert not stopping.done()
    answering.set()
    assert (await stopping).outcomes == [Outcome.CREATED]


@pytest.mark.databases("mariadb")
def test_long_texts_are_sent_in_statements_that_a_server_takes(database_kind: str):
    with servers.private(database_kind, "--max-allowed-packet=1M") as server:
        asyncio.run(_load_long_texts(server.url))


async def _load_long_texts(url: str) -> None:
    async with mariadb_hand(url) as ask:
        await ask("CREATE TABLE notes (id integer PRIMARY KEY, note longtext, more longblob)")
    lengths = {0: 100_000, 7: 2**21, 30: 300_000}
    notes = [{"id": n, "note": "'é" * (lengths.get(n, 15_000) // 2), "more": None} for n in range(300)]
    async with MariaDbTarget(url) as target:
        for mode, done in ((Mode.CREATE, "created"), (Mode.UPSERT, "updated"), (Mode.UPDATE, "updated")):
            result = await target.start(mode, "notes", notes if mode is Mode.CREATE else [*notes[:7], *notes[8:]])
            assert (result.outcomes.count(done), dict(result.statistics.retries)) == (299, {})
            assert [(error.index, error.kind, error.code) for error in result.errors] == (
                [(7, ErrorKind.DATA, "1153")] if mode is Mode.CREATE else []
            )
    async with mariadb_hand(url) as ask:
        assert await ask("SELECT sum(char_length(note)) FROM notes") == [(297 * 15_000 + 400_000,)]
