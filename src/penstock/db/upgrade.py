"""The schema's version: is it ours, and how it becomes ours. Alembic is imported only when there is work for it."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import Connection as SyncConnection
from sqlalchemy import inspect

from penstock.clock import Clock
from penstock.db.connection import Connection
from penstock.db.database import Database
from penstock.db.safety import Finding
from penstock.db.schema import VERSION_TABLE
from penstock.errors import DatabaseUnready, Unavailable

__all__ = ["HEAD", "REVISIONS", "Report", "check", "prepare_schema", "revision_of", "upgrade"]

# Every revision, oldest first; a test keeps it equal to the folder of migrations.
REVISIONS = tuple(f"{number:04}" for number in range(1, 16))
HEAD = REVISIONS[-1]
MIGRATIONS = Path(__file__).parent / "migrations"
LOCK_PAUSE_S = 0.1
LOCK_TRIES = 600


@dataclass(frozen=True, slots=True)
class Report:
    """What `penstock db check` found; `problems` is empty when Penstock can work here."""

    database: str
    version: str
    revision: str | None
    findings: tuple[Finding, ...]
    problems: tuple[str, ...]


async def upgrade(url: str, clock: Clock) -> tuple[str | None, str]:
    """Bring the schema to this release; the revisions before and after."""
    database = await Database.open(url, clock=clock, upgrade=False)
    try:
        return await prepare_schema(database, upgrade=True), HEAD
    finally:
        await database.close()


async def check(url: str, clock: Clock, *, pages: bool = False) -> Report:
    """Look at version, settings and schema, at every page of a SQLite file if wanted, and name all problems at once."""
    database = Database.connect(url, clock=clock)
    try:
        findings = await database.findings()
        async with database.connection() as connection:
            revision = await revision_of(connection)
        damage = await database.damage() if pages else ()
    finally:
        await database.close()
    problems = [str(finding) for finding in findings if not finding.is_ok]
    if revision != HEAD:
        problems.append(_unready(revision))
    problems += damage
    version = next(finding.found for finding in findings if finding.setting == "version")
    return Report(database.dialect.name, version, revision, findings, tuple(problems))


async def prepare_schema(database: Database, *, upgrade: bool) -> str | None:
    """See that the schema is this release's, upgrading it if allowed; the revision it had."""
    # Not in a snapshot: MariaDB refuses to read a table that was made after it, and another process may be upgrading.
    async with database.connection() as connection:
        revision = await revision_of(connection)
    if revision == HEAD:
        return revision
    if not upgrade or not _is_older(revision):
        raise DatabaseUnready(_unready(revision))
    if database.dialect.is_file:
        return await database.transaction(_upgrade)
    return await _upgrade_server(database)


async def revision_of(tx: Connection) -> str | None:
    """The schema's revision; None when there is none."""
    if not await tx.run_sync(lambda connection: inspect(connection).has_table(VERSION_TABLE)):
        return None
    return (await tx.exec_driver_sql(f"SELECT version_num FROM {VERSION_TABLE}")).scalar()


def _is_older(revision: str | None) -> bool:
    return revision is None or revision in REVISIONS


def _unready(revision: str | None) -> str:
    if not _is_older(revision):
        return f"the schema is at {revision}, newer than this release, which knows {HEAD}; upgrade Penstock"
    found = "is missing" if revision is None else f"is at {revision}"
    return f"the schema {found}; this release needs {HEAD}: run `penstock db upgrade`"


async def _upgrade(tx: Connection) -> str | None:
    revision = await revision_of(tx)
    if revision != HEAD:
        await tx.run_sync(_run_migrations)
    return revision


async def _upgrade_server(database: Database) -> str | None:
    """Upgrade alone, so that of several processes one works and the others find it done.

    Each statement commits by itself: in one transaction, all tables would stay locked until the last one is through.
    """
    async with database.connection() as connection:
        try:
            await _lock(database, connection)
            if database.schema is not None:
                await connection.exec_driver_sql(f"CREATE SCHEMA IF NOT EXISTS {database.schema}")
            return await _upgrade(connection)
        finally:
            await connection.invalidate()  # with it end the lock and what it was told


async def _lock(database: Database, connection: Connection) -> None:
    for _ in range(LOCK_TRIES):
        if (await connection.exec_driver_sql(database.dialect.upgrade_lock)).scalar():
            return
        await asyncio.sleep(LOCK_PAUSE_S)
    raise Unavailable("another process has been upgrading the schema for a minute; try again")


def _run_migrations(connection: SyncConnection) -> None:
    from alembic import command
    from alembic.config import Config

    # Alembic would name the primary key, which MariaDB ignores with a warning.
    connection.exec_driver_sql(f"CREATE TABLE IF NOT EXISTS {VERSION_TABLE} (version_num VARCHAR(32) PRIMARY KEY)")
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
    config.attributes["connection"] = connection
    command.upgrade(config, "head")
