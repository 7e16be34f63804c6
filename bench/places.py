"""Where measurements happen: throwaway servers, started when first needed, and a fresh database for each measurement.

The servers are those of the tests with the memory a stock server has; every commit is synced to disk.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import sqlite3
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

from sqlalchemy import make_url

from bench.job import write_file
from penstock.clock import SystemClock
from penstock.db.database import Database
from penstock.db.upgrade import upgrade
from tests.servers import KINDS, Server, private

__all__ = ["DATABASES", "Place", "Places"]

DATABASES = {"sqlite": "SQLite", "postgresql": "PostgreSQL", "mariadb": "MariaDB"}
STOCK = {
    "postgresql": ("-c", "shared_buffers=128MB", "-c", "max_connections=100"),
    "mariadb": ("--innodb-buffer-pool-size=128M", "--innodb-log-file-size=96M"),
    "redis": (),
}
# What the files of one database take, in bytes.
SIZES = {
    "postgresql": "SELECT pg_database_size('{name}')",
    "mariadb": "SELECT SUM(FILE_SIZE) FROM information_schema.INNODB_SYS_TABLESPACES WHERE NAME LIKE '{name}/%%'",
}
VERSIONS = {"postgresql": "SHOW server_version", "mariadb": "SELECT VERSION()"}


class RedisServer(Server):
    """A Redis that appends to a file and syncs it once a second."""

    package = "redis-server"
    scheme = "redis"
    user = "redis"
    binaries = ("redis-server", "redis-cli")

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def _create(self) -> None:
        (self.folder / "data").mkdir()
        self._own(self.folder / "data")

    def _create_database(self) -> None: ...

    def _command(self) -> list[str]:
        given = {"port": self.port, "bind": "127.0.0.1", "dir": self.folder / "data", "appendonly": "yes"}
        settings = [part for name, value in given.items() for part in (f"--{name}", str(value))]
        return ["redis-server", *settings, "--appendfsync", "everysec", "--save", ""]

    def _answers(self) -> bool:
        done = subprocess.run(["redis-cli", "-p", str(self.port), "ping"], capture_output=True, check=False)
        return done.stdout == b"PONG\n"


@dataclass(frozen=True)
class Place:
    """An empty, upgraded database, and a folder for files."""

    kind: str
    url: str
    folder: Path
    bytes_empty: int

    def driver_url(self, driver: str) -> str:
        """The same place as another driver of SQLAlchemy spells it."""
        scheme = {"mariadb": "mysql"}.get(self.kind, self.kind)
        return make_url(self.url).set(drivername=f"{scheme}+{driver}").render_as_string(hide_password=False)


class Places:
    """Servers and files of one run; everything is gone when it ends."""

    def __init__(self) -> None:
        KINDS.setdefault("redis", RedisServer)
        self._stack = ExitStack()
        self._servers: dict[str, str] = {}
        self._numbers = count(1)

    def __enter__(self) -> Places:
        made = tempfile.mkdtemp(prefix="penstock-bench-")
        self._stack.callback(shutil.rmtree, made, ignore_errors=True)
        self.folder = Path(made)
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def file(self, rows: int) -> Path:
        """The job's file with so many rows."""
        path = self.folder / f"rows-{rows}.csv"
        if not path.exists():
            write_file(path, rows)
        return path

    def server(self, kind: str) -> str:
        """The URL of a server, started when first asked for."""
        if kind not in self._servers:
            self._servers[kind] = self._stack.enter_context(private(kind, *STOCK[kind])).url
        return self._servers[kind]

    def version(self, kind: str) -> str:
        """The release of a database."""
        if kind == "sqlite":
            return sqlite3.sqlite_version
        return str(self._ask(kind, VERSIONS[kind])).partition(" ")[0].partition("-")[0]

    def redis(self) -> str:
        """The URL of an empty Redis."""
        url = self.server("redis")
        subprocess.run(["redis-cli", "-u", url, "flushall"], stdout=subprocess.DEVNULL, check=True)
        return url

    @contextmanager
    def fresh(self, kind: str) -> Iterator[Place]:
        """A new place, with nothing left to write of what was before."""
        folder = self.folder / str(next(self._numbers))
        folder.mkdir()
        try:
            url = self._new_database(kind, folder)
            asyncio.run(upgrade(url, SystemClock()))
            os.sync()
            yield Place(kind, url, folder, self.bytes_of(kind, url))
            self._drop(kind, url)
        finally:
            shutil.rmtree(folder)

    def bytes_of(self, kind: str, url: str) -> int:
        """What a database takes on disk."""
        if kind == "sqlite":
            return sum(path.stat().st_size for path in Path(str(make_url(url).database)).parent.glob("bench.db*"))
        return int(self._ask(kind, SIZES[kind].format(name=make_url(url).database)) or 0)

    def _new_database(self, kind: str, folder: Path) -> str:
        if kind == "sqlite":
            return f"sqlite:///{folder / 'bench.db'}"
        name = f"bench_{folder.name}"
        self._ask(kind, f"CREATE DATABASE {name}")
        if kind == "postgresql":
            self._ask(kind, "CHECKPOINT")
        return make_url(self.server(kind)).set(database=name).render_as_string(hide_password=False)

    def _drop(self, kind: str, url: str) -> None:
        if kind != "sqlite":
            force = " WITH (FORCE)" if kind == "postgresql" else ""
            self._ask(kind, f"DROP DATABASE {make_url(url).database}{force}")

    def _ask(self, kind: str, statement: str) -> Any:
        async def go() -> Any:
            database = Database.connect(self.server(kind), clock=SystemClock(), pool_size=1)
            try:
                async with database.connection() as connection:
                    found = await connection.exec_driver_sql(statement)
                    return found.scalar() if found.returns_rows else None
            finally:
                await database.close()

        return asyncio.run(go())
