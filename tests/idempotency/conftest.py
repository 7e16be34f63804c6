"""Stores for tests of idempotency keys: SQLite, PostgreSQL, MariaDB and Redis in turn, each test on an empty one."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from sqlalchemy import delete, make_url

from penstock.clock import Clock, ManualClock, SystemClock
from penstock.db.database import Database
from penstock.idempotency import Idempotency
from penstock.idempotency.redis import RedisStore
from penstock.idempotency.sql import SqlStore
from penstock.idempotency.store import Store
from penstock.idempotency.tables import idempotency_keys

DATABASES = ("sqlite", "postgresql", "mariadb")
STORES = (*DATABASES, "redis")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "store_kind" in metafunc.fixturenames:
        marker = metafunc.definition.get_closest_marker("databases")
        wanted = metafunc.config.getoption("--db") or STORES
        kinds = [kind for kind in (marker.args if marker else STORES) if kind in wanted]
        metafunc.parametrize("store_kind", kinds, scope="session")


@pytest.fixture
async def store_url(
    store_kind: str,
    worker_database: Callable[[str], str],
    server_url: Callable[[str], str],
    worker_id: str,
    tmp_path: Path,
) -> str:
    """Where an empty store is, of each kind in turn."""
    if store_kind == "redis":
        from redis.asyncio import Redis

        # Each worker process has a database of its own.
        number = 1 if worker_id == "master" else 2 + int(worker_id.removeprefix("gw"))
        url = server_url("redis").rsplit("/", 1)[0] + f"/{number}"
        async with Redis.from_url(url) as client:
            await client.flushdb()
        return url
    url = worker_database(store_kind)
    if store_kind == "sqlite":
        return f"sqlite:///{shutil.copy(str(make_url(url).database), tmp_path / 'keys.db')}"
    db = await Database.open(url, clock=SystemClock())
    async with db.write() as tx:
        await tx.execute(delete(idempotency_keys))
    await db.close()
    return url


@pytest.fixture
def open_store(store_url: str) -> Callable[[Clock], AsyncIterator[Store]]:
    """Opens the store once more, as another process would."""

    async def opened(clock: Clock) -> AsyncIterator[Store]:
        if store_url.startswith("redis"):
            redis = RedisStore.connect(store_url, clock=clock)
            yield redis
            await redis.close()
            return
        db = await Database.open(store_url, clock=clock)
        yield SqlStore(db)
        await db.close()

    return opened


@pytest.fixture
async def store(open_store: Callable[[Clock], AsyncIterator[Store]], clock: ManualClock) -> AsyncIterator[Store]:
    """An empty store on the manual clock."""
    async for opened in open_store(clock):
        yield opened


@pytest.fixture
async def real_store(open_store: Callable[[Clock], AsyncIterator[Store]]) -> AsyncIterator[Store]:
    """An empty store on the real clock."""
    async for opened in open_store(SystemClock()):
        yield opened


@pytest.fixture
def keys(store: Store) -> Idempotency:
    """The service on that store, with a lease of 30 s and a retention of a day."""
    return Idempotency(store, lease=30, retention=86_400)
