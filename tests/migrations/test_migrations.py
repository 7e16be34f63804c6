"""An upgraded schema equals a fresh one, on every database, whatever happened on the way."""

from __future__ import annotations

import asyncio
import importlib
import pkgutil
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from sqlalchemy import Connection, event, inspect, text

import penstock
from penstock.clock import SystemClock
from penstock.db.database import Database
from penstock.db.schema import VERSION_TABLE, metadata
from penstock.db.upgrade import HEAD, MIGRATIONS, REVISIONS, check, prepare_schema, revision_of, upgrade
from penstock.errors import DatabaseUnready

for module in pkgutil.walk_packages(penstock.__path__, "penstock."):
    if module.name.endswith(".tables"):
        importlib.import_module(module.name)


def test_the_known_revisions_are_those_of_the_folder():
    from alembic.script import ScriptDirectory

    found = [script.revision for script in ScriptDirectory(str(MIGRATIONS)).walk_revisions()]
    assert tuple(reversed(found)) == REVISIONS


@pytest.mark.covers("I-46")
async def test_an_upgraded_schema_has_no_difference_to_the_tables(fresh_url):
    await upgrade(fresh_url, SystemClock())
    assert await inside(fresh_url, differences) == []


@pytest.mark.covers("I-46")
async def test_an_upgraded_schema_equals_a_fresh_one_in_every_detail(fresh_url):
    await upgrade(fresh_url, SystemClock())
    upgraded = await inside(fresh_url, catalogue)
    await inside(fresh_url, metadata.drop_all)
    await inside(fresh_url, metadata.create_all)
    assert await inside(fresh_url, catalogue) == upgraded
    assert len(upgraded) > 2


@pytest.mark.covers("I-46")
async def test_an_upgrade_killed_after_any_statement_can_be_run_again(fresh_url, database_kind):
    # Where a transaction undoes what changes the schema, some statements stand for all.
    each = 1 if database_kind == "mariadb" else 5
    await upgrade(fresh_url, SystemClock())
    expected = await inside(fresh_url, catalogue)
    await inside(fresh_url, drop_everything)
    kills, killed_after, left = 0, 0, {}
    while await upgrade_killed_after(fresh_url, killed_after):
        kills += 1
        assert (await check(fresh_url, SystemClock())).revision in (None, *REVISIONS[:-1])
        before, left = left, await inside(fresh_url, catalogue)
        # What a killed upgrade left is where the next one begins.
        killed_after = 1 if left != before else killed_after + each
    assert await inside(fresh_url, catalogue) == expected
    assert kills * each > len(metadata.tables)


async def test_an_upgrade_keeps_the_rows_that_were_stored_without_marks(fresh_url):
    await inside(fresh_url, lambda connection: upgrade_to(connection, "0001"))
    stored = {"chunk": 7, "data": bytes(range(256)) * 1000}
    before = text("INSERT INTO penstock_chunk_rows (chunk, data) VALUES (:chunk, :data)")
    await inside(fresh_url, lambda connection: connection.execute(before, stored))
    assert await upgrade(fresh_url, SystemClock()) == ("0001", HEAD)
    after = text("SELECT chunk, key_marks, data FROM penstock_chunk_rows")
    assert await inside(fresh_url, lambda connection: connection.execute(after).all()) == [(7, None, stored["data"])]
    assert await inside(fresh_url, differences) == []


@pytest.mark.databases("sqlite")
async def test_marks_stand_before_the_data_where_that_makes_them_quick_to_read(fresh_url):
    await upgrade(fresh_url, SystemClock())
    columns = await inside(fresh_url, lambda connection: inspect(connection).get_columns("penstock_chunk_rows"))
    assert [column["name"] for column in columns] == ["chunk", "key_marks", "data"]


@pytest.mark.databases("postgresql")
async def test_marks_are_kept_in_the_row_where_they_could_be_moved_out_of_it(fresh_url):
    await upgrade(fresh_url, SystemClock())
    kept = text("SELECT attstorage FROM pg_attribute WHERE attname = 'key_marks'")
    assert await inside(fresh_url, lambda connection: connection.execute(kept).scalar()) in ("m", b"m")


async def test_upgrades_at_once_happen_once(fresh_url):
    before = await asyncio.gather(*(upgrade(fresh_url, SystemClock()) for _ in range(4)))
    assert sorted(before, key=str) == [(HEAD, HEAD)] * 3 + [(None, HEAD)]
    assert await inside(fresh_url, differences) == []


async def test_an_upgrade_tells_the_revisions_before_and_after(fresh_url):
    assert await upgrade(fresh_url, SystemClock()) == (None, HEAD)
    assert await upgrade(fresh_url, SystemClock()) == (HEAD, HEAD)


@pytest.mark.databases("sqlite")
async def test_sqlite_upgrades_itself_when_opened(fresh_url):
    database = await Database.open(fresh_url, clock=SystemClock())
    async with database.read() as tx:
        assert await revision_of(tx) == HEAD
    await database.close()


@pytest.mark.databases("postgresql", "mariadb")
async def test_a_server_refuses_to_work_until_it_is_upgraded(fresh_url):
    with pytest.raises(DatabaseUnready, match=r"schema is missing; this release needs .*: run `penstock db upgrade`"):
        await Database.open(fresh_url, clock=SystemClock())
    await upgrade(fresh_url, SystemClock())
    await (await Database.open(fresh_url, clock=SystemClock())).close()


@pytest.mark.parametrize("is_asked", [None, True])
async def test_a_schema_newer_than_the_release_is_refused(fresh_url, is_asked):
    await upgrade(fresh_url, SystemClock())
    await inside(
        fresh_url, lambda connection: connection.execute(text(f"UPDATE {VERSION_TABLE} SET version_num='9999'"))
    )
    with pytest.raises(DatabaseUnready, match="at 9999, newer than this release"):
        await Database.open(fresh_url, clock=SystemClock(), upgrade=is_asked)


async def test_a_check_reports_version_revision_and_settings(fresh_url, database_kind):
    report = await check(fresh_url, SystemClock())
    assert (report.database, report.revision) == (database_kind, None)
    assert report.problems == (f"the schema is missing; this release needs {HEAD}: run `penstock db upgrade`",)
    await upgrade(fresh_url, SystemClock())
    report = await check(fresh_url, SystemClock())
    assert (report.revision, report.problems) == (HEAD, ())
    assert report.version in {finding.found for finding in report.findings}


async def test_opening_a_ready_database_does_not_load_alembic(database_url):
    program = (
        "import asyncio, sys\n"
        "from penstock.clock import SystemClock\n"
        "from penstock.db.database import Database\n"
        "async def main():\n"
        "    await (await Database.open(sys.argv[1], clock=SystemClock())).close()\n"
        "asyncio.run(main())\n"
        "sys.exit('alembic' in sys.modules)\n"
    )
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", program, database_url)
    assert await process.wait() == 0


class Killed(BaseException):
    """The process is gone."""


async def upgrade_killed_after(url: str, statements: int) -> bool:
    """Upgrade, killed after that many statements of the migrations; False when it came to its end before."""
    database = Database.connect(url, clock=SystemClock())
    try:
        with killing(database, statements):
            await prepare_schema(database, upgrade=True)
    except Killed:
        return True
    finally:
        await database.close()
    return False


@contextmanager
def killing(database: Database, statements: int) -> Iterator[None]:
    seen = 0

    def count(connection: Any, cursor: Any, statement: str, *_: Any) -> None:
        nonlocal seen
        if statement.lstrip().startswith(("CREATE", "INSERT", "UPDATE", "ALTER", "DROP")):
            if seen == statements:
                raise Killed
            seen += 1

    event.listen(database._engine.sync_engine, "before_cursor_execute", count)
    yield


async def inside(url: str, work: Any) -> Any:
    """Run a function on a plain connection of the database."""
    database = Database.connect(url, clock=SystemClock())
    try:
        async with database.connection() as connection:
            return await connection.run_sync(work)
    finally:
        await database.close()


def upgrade_to(connection: Connection, revision: str) -> None:
    """Bring an empty database to an earlier release's schema."""
    from alembic import command
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    config.attributes["connection"] = connection
    command.upgrade(config, revision)


def differences(connection: Connection) -> list[Any]:
    """What Alembic would change."""
    from alembic.autogenerate import compare_metadata
    from alembic.migration import MigrationContext

    context = MigrationContext.configure(connection, opts={"compare_type": True, "version_table": VERSION_TABLE})
    return list(compare_metadata(context, metadata))


def drop_everything(connection: Connection) -> None:
    metadata.drop_all(connection)
    connection.execute(text(f"DROP TABLE IF EXISTS {VERSION_TABLE}"))


def catalogue(connection: Connection) -> dict[str, Any]:
    """Everything the database knows about its tables, as it would say it."""
    match connection.dialect.name:
        case "sqlite":
            query = "SELECT name, sql FROM sqlite_master WHERE name NOT LIKE 'sqlite_%' AND tbl_name <> :version"
            # A column that was added later stands behind the constraints, and on their last line.
            found = {
                name: sorted(filter(None, re.split(r"\s*[,()\n]\s*", sql)))
                for name, sql in connection.execute(text(query), VERSION)
            }
        case "postgresql":
            found = dict(connection.execute(text(POSTGRESQL_CATALOGUE), VERSION).all())
        case _:
            names = [name for (name,) in connection.execute(text("SHOW TABLES")) if name != VERSION_TABLE]
            found = {name: connection.execute(text(f"SHOW CREATE TABLE `{name}`")).one()[1] for name in names}
            found = {name: sorted(str(sql).replace(",\n", "\n").splitlines()) for name, sql in found.items()}
    return found


VERSION = {"version": VERSION_TABLE}
POSTGRESQL_CATALOGUE = """
SELECT 'column ' || table_name || '.' || column_name,
       concat_ws(' ', data_type, character_maximum_length, collation_name, is_nullable, column_default)
FROM information_schema.columns WHERE table_schema = 'public' AND table_name <> :version
UNION ALL
SELECT 'constraint ' || conrelid::regclass || '.' || conname, pg_get_constraintdef(oid)
FROM pg_constraint WHERE connamespace = 'public'::regnamespace AND conrelid::regclass::text <> :version
UNION ALL
SELECT 'index ' || indexname, indexdef FROM pg_indexes WHERE schemaname = 'public' AND tablename <> :version
"""
