"""Databases for tests: one suite on SQLite, PostgreSQL and MariaDB, each test on an empty, upgraded schema."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import shutil
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Coroutine, Hashable, Iterator
from pathlib import Path
from threading import Thread
from typing import Any, ClassVar, TypeVar, cast
from weakref import WeakKeyDictionary

import pytest
import servers
from hypothesis import HealthCheck, settings
from sqlalchemy import inspect, make_url
from sqlalchemy.util import LRUCache
from xdist.scheduler import LoadScopeScheduling

from penstock.clock import Clock, ManualClock, SystemClock
from penstock.db.database import Database
from penstock.db.schema import VERSION_TABLE
from penstock.db.upgrade import upgrade

DATABASES = ("sqlite", "postgresql", "mariadb")

T = TypeVar("T")

# An example takes as long as it takes: the machine may be slow.
# The same examples at each run; `pytest --hypothesis-profile=search` looks for others.
settings.register_profile("search", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("penstock", settings.get_profile("search"), derandomize=True)
settings.load_profile("penstock")


# Files whose tests share what is slow to make: one process runs all of them, before the others.
TOGETHER = ("test_typing.py", "test_dashboard_browser.py", "test_api_openapi.py", "test_cli_url.py")


class FilesTogether(LoadScopeScheduling):
    """Gives a process one test at a time, and some files whole."""

    def _split_scope(self, nodeid: str) -> str:
        file = nodeid.partition("::")[0]
        return file if file.endswith(TOGETHER) else nodeid


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> FilesTogether:
    return FilesTogether(config, log)


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


def pytest_collection_finish() -> None:
    """Leave what was imported and collected alone when garbage is looked for, and look more seldom."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 50, 100)


class CompiledStatements:
    """What was compiled for one database, kept when it is closed for the next of its kind: every test opens some.

    Statements read the clock when they are sent, through this object: the next database may have another clock. Tests
    that patch something share nothing, for it may be part of a statement.
    """

    is_shared: ClassVar[bool] = True
    free: ClassVar[defaultdict[Hashable, list[CompiledStatements]]] = defaultdict(list)
    cached: ClassVar[LRUCache[Any, Any]] = LRUCache(10_000)

    def __init__(self, database: Database) -> None:
        self.clock = database.clock
        self.now = database.dialect.now(cast("Clock", self))
        self.prepared, self.statements = database._prepared, database._statements

    def __getattr__(self, name: str) -> Any:
        return getattr(self.clock, name)

    def now_us(self) -> int:
        return self.clock.now_us()

    def ticks_ns(self) -> int:
        return self.clock.ticks_ns()

    @classmethod
    def give_to(cls, database: Database) -> Callable[[], None]:
        """Let a new database use what another of its kind has left; the answer is to be called when it is closed."""
        if not cls.is_shared:
            return lambda: None
        engine = database._engine.sync_engine
        engine._compiled_cache = cls.cached
        kind = type(engine.dialect)
        kind.__eq__ = lambda one, other: type(one) is type(other)
        kind.__hash__ = lambda one: hash(type(one))
        left = cls.free[kind, database.clock.is_real, database.clock.boot, database.schema]
        found = left.pop() if left else cls(database)
        found.clock = database.clock
        database._now, database._prepared, database._statements = found.now, found.prepared, found.statements
        return lambda: left.append(found)


def pytest_runtest_setup(item: pytest.Item) -> None:
    CompiledStatements.is_shared = "monkeypatch" not in getattr(item, "fixturenames", ())
    ours = logging.getLogger("penstock")  # a command that ran in an earlier test has set it up for a terminal
    ours.setLevel(logging.NOTSET)
    ours.handlers.clear()


def share_compiled_statements() -> None:
    """Let the databases of this process use what was compiled for others before them."""
    connect, close = Database.connect.__func__, Database.close
    leave: WeakKeyDictionary[Database, Callable[[], None]] = WeakKeyDictionary()

    def connected(cls: type[Database], url: str, **options: Any) -> Database:
        database: Database = connect(cls, url, **options)
        leave[database] = CompiledStatements.give_to(database)
        return database

    async def closed(database: Database) -> None:
        await close(database)
        leave.pop(database, lambda: None)()

    Database.connect = classmethod(connected)
    Database.close = closed


share_compiled_statements()


class Apart:
    """An event loop on a thread of its own, which sets databases up beside the loops of tests."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._databases: dict[str, Database] = {}

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine to its end."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def database(self, url: str) -> Database:
        """A connection to a server, kept for the next test."""
        if url not in self._databases:
            self._databases[url] = Database.connect(url, clock=SystemClock(), pool_size=1)
        return self._databases[url]

    async def _close(self) -> None:
        for database in self._databases.values():
            await database.close()

    def close(self) -> None:
        self.run(self._close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


@pytest.fixture(scope="session")
def apart() -> Iterator[Apart]:
    """Where databases are set up."""
    made = Apart()
    yield made
    made.close()


@pytest.fixture(scope="session")
def server_url(request: pytest.FixtureRequest, worker_id: str) -> Callable[[str], str]:
    """The URL of a shared server, started when first asked for."""
    owner = os.getpid() if worker_id == "master" else os.getppid()
    return lambda kind: servers.shared(kind, owner)


@pytest.fixture(scope="session")
def worker_database(
    apart: Apart, server_url: Callable[[str], str], worker_id: str, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], str]:
    """An upgraded database of this worker process, made when first asked for; a template file for SQLite."""
    made: dict[str, str] = {}

    def url(kind: str) -> str:
        if kind not in made:
            if kind == "sqlite":
                made[kind] = f"sqlite:///{tmp_path_factory.mktemp('template') / 'template.db'}"
            else:
                made[kind] = apart.run(_create_database(server_url(kind), f"penstock_{worker_id}"))
            apart.run(upgrade(made[kind], SystemClock()))
        return made[kind]

    return url


@pytest.fixture
def database_url(database_kind: str, worker_database: Callable[[str], str], apart: Apart, tmp_path: Path) -> str:
    """An empty, upgraded database, on each of the three in turn."""
    url = worker_database(database_kind)
    if database_kind == "sqlite":
        copy = shutil.copy(str(make_url(url).database), tmp_path / "penstock.db")
        return f"sqlite:///{copy}"
    apart.run(_empty(apart.database(url)))
    return url


@pytest.fixture
def fresh_url(
    database_kind: str, apart: Apart, server_url: Callable[[str], str], worker_id: str, tmp_path: Path
) -> str:
    """A database with no schema at all, on each of the three in turn."""
    if database_kind == "sqlite":
        return f"sqlite:///{tmp_path / 'fresh.db'}"
    return apart.run(_create_database(server_url(database_kind), f"penstock_fresh_{worker_id}"))


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


_looks: WeakKeyDictionary[Database, str] = WeakKeyDictionary()


async def _empty(database: Database) -> None:
    """Delete all rows: look first, because most tables of a test are empty and a DELETE costs more than a look."""
    async with database.write() as tx:
        if database not in _looks:
            names = await tx.run_sync(lambda connection: inspect(connection).get_table_names())
            quoted = [tx.dialect.identifier_preparer.quote(name) for name in names if name != VERSION_TABLE]
            _looks[database] = " UNION ALL ".join(f"(SELECT '{name}' FROM {name} LIMIT 1)" for name in quoted)
        for (name,) in (await tx.exec_driver_sql(_looks[database])).all():
            await tx.exec_driver_sql(f"DELETE FROM {name}")
