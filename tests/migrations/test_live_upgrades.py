"""An upgrade beside workers of the release before: it waits for them, and they never wait for it."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager

import pytest
from patience import HANG_S
from pydantic import BaseModel
from sqlalchemy import Connection, event, inspect, text
from sqlalchemy.exc import DBAPIError
from test_migrations import differences, inside, upgrade_to

from penstock import Context, Penstock, operation
from penstock.clock import SystemClock
from penstock.db import changes
from penstock.db.connection import Link
from penstock.db.database import Database
from penstock.db.schema import VERSION_TABLE, metadata
from penstock.db.upgrade import HEAD, MIGRATIONS, REVISIONS, check, prepare_schema, upgrade
from penstock.settings import Settings
from penstock.testing import json_lines

pytestmark = pytest.mark.databases("postgresql", "mariadb")

CHANGE = re.compile(r'^ +(?:add_column\(|create_index\("(?P<index>\w+)", )"(?P<table>\w+)"', re.MULTILINE)
# What each revision changes of tables that were there before, for which it has to wait for those who use them: the
# table, and the index if it adds one.
CHANGES = {
    revision: [(found["table"], found["index"]) for found in CHANGE.finditer(script.read_text())]
    for revision in REVISIONS
    for script in (MIGRATIONS / "versions").glob(f"{revision}_*.py")
}
CHANGED = sorted({(revision, table) for revision, found in CHANGES.items() for table, _ in found})
TABLES = {table for _, table in CHANGED}
INDEXES = {index: table for found in CHANGES.values() for table, index in found if index is not None}


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(changes, "PAUSE_S", 0.05)


@asynccontextmanager
async def connected(url: str) -> AsyncIterator[Database]:
    database = Database.connect(url, clock=SystemClock())
    try:
        yield database
    finally:
        await database.close()


@asynccontextmanager
async def verifying(url: str, tables: Collection[str]) -> AsyncIterator[None]:
    """A long look at these tables is under way."""
    async with connected(url) as database, database.read() as tx:
        is_postgresql = database.dialect.name == "postgresql"
        endless = "idle_in_transaction_session_timeout" if is_postgresql else "SESSION idle_transaction_timeout"
        await tx.execute(text(f"SET {endless} = 0"))
        for table in tables:
            await tx.execute(text(f"SELECT COUNT(*) FROM {table}"))
        yield


@asynccontextmanager
async def upgrade_held_up(url: str, tables: Collection[str]) -> AsyncIterator[Callable[[], bool]]:
    """Inside, an upgrade has come to where it must wait for a long look at these tables; afterwards it goes on.

    What is given says whether it has ended.
    """
    async with connected(url) as database:
        refused = asyncio.Event()
        event.listen(database._engine.sync_engine, "handle_error", lambda _: refused.set())
        async with verifying(url, tables):
            task = asyncio.create_task(prepare_schema(database, upgrade=True))
            try:
                async with asyncio.timeout(HANG_S):
                    while not (refused.is_set() or await is_building(url)):  # noqa: ASYNC110  # in the server
                        await asyncio.sleep(0.01)
                yield task.done
            except BaseException:
                task.cancel()
                raise
        await asyncio.wait_for(task, HANG_S)


async def is_building(url: str) -> bool:
    """Whether PostgreSQL is busy with an index that is not ready yet."""
    if not url.startswith("postgresql"):
        return False
    async with connected(url) as database, database.connection() as connection:
        return bool(await connection.scalar(text("SELECT COUNT(*) FROM pg_index WHERE NOT indisvalid")))


@pytest.mark.databases("sqlite", "postgresql", "mariadb")
async def test_every_change_of_a_table_that_was_there_is_known_here(fresh_url):
    changed, before = set(), await inside(fresh_url, columns_and_indexes)
    for revision in REVISIONS:
        await inside(fresh_url, lambda connection, revision=revision: upgrade_to(connection, revision))
        after = await inside(fresh_url, columns_and_indexes)
        changed |= {(revision, table) for table in before.keys() & after.keys() if before[table] != after[table]}
        before = after
    assert sorted(changed) == CHANGED


def columns_and_indexes(connection: Connection) -> dict[str, set[str]]:
    seen = inspect(connection)
    tables = set(seen.get_table_names()) - {VERSION_TABLE}
    return {table: {str(it["name"]) for it in seen.get_columns(table) + seen.get_indexes(table)} for table in tables}


@pytest.mark.parametrize("revision, table", CHANGED)
async def test_an_upgrade_waits_for_a_long_look_and_holds_nobody_up(fresh_url, revision, table):
    before = REVISIONS[REVISIONS.index(revision) - 1]
    await inside(fresh_url, lambda connection: upgrade_to(connection, before))
    there = TABLES & (await inside(fresh_url, columns_and_indexes)).keys()
    store = text("INSERT INTO penstock_chunk_rows (chunk, data) VALUES (1, :data)")

    async def write(tx: Link) -> None:
        await tx.execute(store, {"data": b"rows"})
        for name in there:
            (column, *_) = metadata.tables[name].primary_key.columns.keys()
            await tx.execute(text(f"UPDATE {name} SET {column} = {column} WHERE 1 = 0"))

    async with connected(fresh_url) as worker, upgrade_held_up(fresh_url, [table]) as has_ended:
        async with asyncio.timeout(HANG_S):
            await worker.transaction(write)
        assert not has_ended()
    assert (await check(fresh_url, SystemClock())).revision == HEAD
    assert await inside(fresh_url, differences) == []
    kept = text("SELECT data FROM penstock_chunk_rows")
    assert await inside(fresh_url, lambda connection: connection.execute(kept).scalars().all()) == [b"rows"]


class Item(BaseModel):
    n: int


async def test_an_operation_goes_on_during_an_upgrade_and_its_worker_keeps_its_lease(fresh_url, tmp_path):
    runs: Counter[int] = Counter()
    in_work, upgraded = asyncio.Event(), asyncio.Event()

    @operation("items", max_row_concurrency=5)
    async def items(item: Item, ctx: Context) -> None:
        runs[item.n] += 1
        if item.n > 50:
            in_work.set()
            await upgraded.wait()

    await upgrade(fresh_url, SystemClock())
    settings = Settings(
        database_url=fresh_url,
        storage_url=str(tmp_path / "files"),
        chunk_rows=10,
        flush_s=0.05,
        control_poll_s=0.05,
        lease_s=600,
    )
    async with Penstock.open(operations=[items], settings=settings) as penstock, penstock.worker() as worker:
        stop = asyncio.Event()
        working = asyncio.create_task(worker.run(stop))
        await inside(fresh_url, as_of_the_first_release)
        file = json_lines([{"n": n} for n in range(1, 101)])
        async with upgrade_held_up(fresh_url, TABLES) as has_ended:
            made = await penstock.operations.create(items, file=file, file_name="items.jsonl")
            await asyncio.wait_for(in_work.wait(), HANG_S)  # the file was read and rows ran meanwhile
            assert not has_ended()
            assert worker.lease.may_start()
        upgraded.set()
        done = await penstock.operations.wait(made.id)
        stop.set()
        await working
    assert (done.status, done.successful_rows) == ("Completed", 100)
    assert set(runs.values()) == {1}
    assert await inside(fresh_url, differences) == []


def as_of_the_first_release(connection: Connection) -> None:
    """Make the upgrade do all its work again on a schema that this release's workers can use meanwhile."""
    for index, table in INDEXES.items():
        on = "" if connection.dialect.name == "postgresql" else f" ON {table}"
        connection.execute(text(f"DROP INDEX {index}{on}"))
    connection.execute(text(f"UPDATE {VERSION_TABLE} SET version_num = '0001'"))


@pytest.mark.databases("postgresql")
async def test_an_index_that_was_given_up_half_way_is_built_again(fresh_url):
    await inside(fresh_url, lambda connection: upgrade_to(connection, "0002"))
    build = text("CREATE INDEX CONCURRENTLY ix_penstock_row_record_key ON penstock_row_record (row_key, operation)")

    def give_up(connection: Connection) -> None:
        connection.execute(text("SET lock_timeout = 1"))
        with pytest.raises(DBAPIError):
            connection.execute(build)

    async with verifying(fresh_url, {"penstock_row_record"}):
        await inside(fresh_url, give_up)
        assert await is_building(fresh_url)
    await upgrade(fresh_url, SystemClock())
    assert not await is_building(fresh_url)
    assert await inside(fresh_url, differences) == []


@pytest.mark.databases("sqlite", "postgresql", "mariadb")
async def test_events_of_the_release_before_are_numbered_as_they_were_stored(fresh_url):
    await inside(fresh_url, lambda connection: upgrade_to(connection, "0003"))
    add = text(
        "INSERT INTO penstock_transition (sequence, machine, subject, event, target, at, actor)"
        " VALUES (:sequence, 'operation', 'x', 'created', 'Pending', 1, 'ana')"
    )
    stored = [{"sequence": n} for n in (3, 10_002, 10_003, 35_000)]  # they are numbered in parts of ten thousand
    await inside(fresh_url, lambda connection: connection.execute(add, stored))
    await upgrade(fresh_url, SystemClock())
    numbers = text("SELECT position FROM penstock_transition ORDER BY sequence")
    found = await inside(fresh_url, lambda connection: connection.execute(numbers).scalars().all())
    assert found == [row["sequence"] for row in stored]
