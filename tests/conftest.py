"""Databases for tests: one suite on SQLite, PostgreSQL and MariaDB, each test on an empty, upgraded schema."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import AsyncIterator, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import servers
from hypothesis import HealthCheck, settings
from sqlalchemy import inspect, make_url
from sqlalchemy.util import LRUCache

from penstock.clock import ManualClock, SystemClock
from penstock.db.database import Database
from penstock.db.schema import VERSION_TABLE
from penstock.db.upgrade import upgrade

DATABASES = ("sqlite", "postgresql", "mariadb")

# An example takes as long as it takes: the machine may be slow.
# The same examples at each run; `pytest --hypothesis-profile=search` looks for others.
settings.register_profile("search", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("penstock", settings.get_profile("search"), derandomize=True)
settings.load_profile("penstock")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--db", action="append", choices=DATABASES, help="run database tests on this one only")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "databases(*kinds): the databases this test is about, if not all")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "database_kind" in metafunc.fixturenames:
        marker = metafunc.definition.get_closest_marker("databases")
        wanted = metafunc.config.getoption("--db") or DATABASES
        kinds = [kind for kind in (marker.args if marker else DATABASES) if kind in wanted]
        metafunc.parametrize("database_kind", kinds, scope="session")


def share_compiled_statements() -> None:
    """Let all engines of this process share what SQLAlchemy compiles: every test opens some."""
    shared: LRUCache[Any, Any] = LRUCache(10_000)
    connect = Database.connect.__func__

    def connected(cls: type[Database], url: str, **options: Any) -> Database:
        database: Database = connect(cls, url, **options)
        engine = database._engine.sync_engine
        engine._compiled_cache = shared
        kind = type(engine.dialect)
        kind.__eq__ = lambda one, other: type(one) is type(other)
        kind.__hash__ = lambda one: hash(type(one))
        return database

    Database.connect = classmethod(connected)


share_compiled_statements()


def run_apart(work: Coroutine[Any, Any, Any]) -> Any:
    """Run a coroutine to its end on a loop of its own, whether or not a test's loop exists here."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(asyncio.run, work).result()


@pytest.fixture(scope="session")
def server_url(request: pytest.FixtureRequest, worker_id: str) -> Callable[[str], str]:
    """The URL of a shared server, started when first asked for."""
    owner = os.getpid() if worker_id == "master" else os.getppid()
    return lambda kind: servers.shared(kind, owner)


@pytest.fixture(scope="session")
def worker_database(
    server_url: Callable[[str], str], worker_id: str, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], str]:
    """An upgraded database of this worker process, made when first asked for; a template file for SQLite."""
    made: dict[str, str] = {}

    def url(kind: str) -> str:
        if kind not in made:
            if kind == "sqlite":
                made[kind] = f"sqlite:///{tmp_path_factory.mktemp('template') / 'template.db'}"
            else:
                made[kind] = run_apart(_create_database(server_url(kind), f"penstock_{worker_id}"))
            run_apart(upgrade(made[kind], SystemClock()))
        return made[kind]

    return url


@pytest.fixture
def database_url(database_kind: str, worker_database: Callable[[str], str], tmp_path: Path) -> str:
    """An empty, upgraded database, on each of the three in turn."""
    url = worker_database(database_kind)
    if database_kind == "sqlite":
        copy = shutil.copy(str(make_url(url).database), tmp_path / "penstock.db")
        return f"sqlite:///{copy}"
    run_apart(_empty(url))
    return url


@pytest.fixture
def fresh_url(database_kind: str, server_url: Callable[[str], str], worker_id: str, tmp_path: Path) -> str:
    """A database with no schema at all, on each of the three in turn."""
    if database_kind == "sqlite":
        return f"sqlite:///{tmp_path / 'fresh.db'}"
    url: str = run_apart(_create_database(server_url(database_kind), f"penstock_fresh_{worker_id}"))
    return url


@pytest.fixture
async def database(database_url: str) -> AsyncIterator[Database]:
    """An opened database on the real clock."""
    opened = await Database.open(database_url, clock=SystemClock())
    yield opened
    await opened.close()


@pytest.fixture
def clock() -> ManualClock:
    """A clock that moves when told."""
    return ManualClock()


@pytest.fixture
async def manual_database(database_url: str, clock: ManualClock) -> AsyncIterator[Database]:
    """An opened database on the manual clock."""
    opened = await Database.open(database_url, clock=clock)
    yield opened
    await opened.close()


async def _create_database(server: str, name: str) -> str:
    database = Database.connect(server, clock=SystemClock(), pool_size=1)
    try:
        async with database.connection() as connection:
            await connection.exec_driver_sql(f"DROP DATABASE IF EXISTS {name}")
            await connection.exec_driver_sql(f"CREATE DATABASE {name}")
    finally:
        await database.close()
    return make_url(server).set(database=name).render_as_string(hide_password=False)


_tables: dict[str, list[str]] = {}


async def _empty(url: str) -> None:
    """Delete all rows: look first, because most tables of a test are empty and a DELETE costs more than a look."""
    database = Database.connect(url, clock=SystemClock(), pool_size=1)
    try:
        async with database.write() as tx:
            if url not in _tables:
                names = await tx.run_sync(lambda connection: inspect(connection).get_table_names())
                _tables[url] = [tx.dialect.identifier_preparer.quote(name) for name in names if name != VERSION_TABLE]
            looks = (f"(SELECT '{name}' FROM {name} LIMIT 1)" for name in _tables[url])
            for (name,) in (await tx.exec_driver_sql(" UNION ALL ".join(looks))).all():
                await tx.exec_driver_sql(f"DELETE FROM {name}")
    finally:
        await database.close()
