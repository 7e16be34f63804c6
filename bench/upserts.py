"""Upserts into a table: Penstock with its defaults, and the best that we would write by hand.

The loop by hand reports nothing; Penstock tells created from updated for every record.
"""

from __future__ import annotations

import asyncio
import sqlite3
import time
from collections.abc import Awaitable, Callable
from operator import itemgetter
from typing import Any

import asyncmy
import asyncpg  # type: ignore[import-untyped]
from sqlalchemy import make_url
from sqlalchemy.ext.asyncio import create_async_engine

from bench.people import CHANGED, COLUMNS, Record, batches, check, fill, record
from penstock.db.address import parse
from penstock.targets import open_target

__all__ = ["by_hand", "penstock"]

CONNECTIONS = 4
STAGE = "CREATE TEMP TABLE IF NOT EXISTS stage (LIKE people) ON COMMIT DELETE ROWS"
INSERT = f"INSERT INTO people ({', '.join(COLUMNS)})"
ON_CONFLICT = "ON CONFLICT (id) DO UPDATE SET " + ", ".join(f"{name} = excluded.{name}" for name in CHANGED)
ON_DUPLICATE = "ON DUPLICATE KEY UPDATE " + ", ".join(f"{name} = VALUES({name})" for name in CHANGED)

Upsert = Callable[[str, list[Record]], Awaitable[None]]


def penstock(*, file: str, rows: int, url: str, folder: str) -> dict[str, Any]:
    """The executor, as it is without options; its driver is imported before, as it is by hand."""
    target = open_target(url)

    async def upsert(url: str, records: list[Record]) -> None:
        async with target:
            result = await target.upsert_multiple("people", records)
        assert result.created_count == result.updated_count == len(records) // 2

    return asyncio.run(_measured(url, rows, upsert))


def by_hand(*, file: str, rows: int, url: str, folder: str) -> dict[str, Any]:
    """Batches on several connections, as the database takes them fastest."""
    ways = {"postgresql": _copy_and_merge, "mariadb": _many_values, "sqlite": _prepared}
    return asyncio.run(_measured(url, rows, ways[make_url(url).get_backend_name()]))


async def _measured(url: str, rows: int, upsert: Upsert) -> dict[str, Any]:
    records = [record(n) for n in range(1, rows + 1)]
    engine = create_async_engine(parse(url)[0])
    async with engine.begin() as connection:
        await connection.run_sync(fill, rows)
    began = time.perf_counter()
    await upsert(url, records)
    seconds = time.perf_counter() - began
    async with engine.begin() as connection:
        await connection.run_sync(check, rows)
    await engine.dispose()
    return {"seconds": seconds, "rows": rows}


async def _copy_and_merge(url: str, records: list[Record]) -> None:
    opened = [await asyncpg.connect(url) for _ in range(CONNECTIONS)]
    pick, left = itemgetter(*COLUMNS), iter(batches(records))

    async def work(connection: Any) -> None:
        for some in left:
            async with connection.transaction():
                await connection.execute(STAGE)
                await connection.copy_records_to_table("stage", records=list(map(pick, some)), columns=COLUMNS)
                await connection.execute(f"{INSERT} SELECT * FROM stage {ON_CONFLICT}")
        await connection.close()

    await asyncio.gather(*map(work, opened))


async def _many_values(url: str, records: list[Record]) -> None:
    at = make_url(url)
    where = {"host": at.host, "port": at.port, "user": at.username, "password": at.password or "", "db": at.database}
    opened = [await asyncmy.connect(**where) for _ in range(CONNECTIONS)]
    pick, left = itemgetter(*COLUMNS), iter(batches(records))
    statement = f"{INSERT} VALUES ({', '.join('%s' for _ in COLUMNS)}) {ON_DUPLICATE}"

    async def work(connection: Any) -> None:
        for some in left:
            async with connection.cursor() as cursor:
                await cursor.executemany(statement, list(map(pick, some)))  # sends many values with one INSERT
            await connection.commit()
        connection.close()

    await asyncio.gather(*map(work, opened))


async def _prepared(url: str, records: list[Record]) -> None:
    connection = sqlite3.connect(str(make_url(url).database))
    pick = itemgetter(*COLUMNS)
    for setting in ("journal_mode=WAL", "synchronous=FULL"):
        connection.execute(f"PRAGMA {setting}")
    for some in batches(records):
        with connection:
            connection.executemany(
                f"{INSERT} VALUES ({', '.join('?' for _ in COLUMNS)}) {ON_CONFLICT}", map(pick, some)
            )
    connection.close()
