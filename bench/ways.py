"""Creating records in a PostgreSQL table: a transaction for each, a hundred statements in one, a hundred in a call."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

import asyncpg  # type: ignore[import-untyped]

from bench.people import COLUMNS, Record, record
from penstock.targets import PostgresTarget

__all__ = ["in_calls", "in_transactions", "singly"]

AT_ONCE = 5
TOGETHER = 100
TABLE = "CREATE TABLE people (id integer PRIMARY KEY, email text, name text, amount float8, quantity integer)"
INSERT = f"INSERT INTO people ({', '.join(COLUMNS)}) VALUES ($1, $2, $3, $4, $5)"


def singly(*, file: str, rows: int, url: str, folder: str) -> dict[str, Any]:
    """By hand, a record in each transaction."""
    return asyncio.run(_measured(url, rows, lambda records: _by_hand(url, records, 1)))


def in_transactions(*, file: str, rows: int, url: str, folder: str) -> dict[str, Any]:
    """By hand, a hundred statements in each transaction."""
    return asyncio.run(_measured(url, rows, lambda records: _by_hand(url, records, TOGETHER)))


def in_calls(*, file: str, rows: int, url: str, folder: str) -> dict[str, Any]:
    """Penstock, a hundred records in each call."""

    async def create(records: list[Record]) -> None:
        async with PostgresTarget(url, connections=AT_ONCE) as target:
            result = await target.create_multiple("people", records, batch_size=TOGETHER, batch_size_max=TOGETHER)
        assert result.success_count == len(records)

    return asyncio.run(_measured(url, rows, create))


async def _measured(url: str, rows: int, create: Callable[[list[Record]], Awaitable[None]]) -> dict[str, Any]:
    connection = await asyncpg.connect(url)
    await connection.execute(TABLE)
    records = [record(n) for n in range(1, rows + 1)]
    began = time.perf_counter()
    await create(records)
    seconds = time.perf_counter() - began
    assert await connection.fetchval("SELECT count(*) FROM people") == rows
    await connection.close()
    return {"rows": rows, "seconds": seconds}


async def _by_hand(url: str, records: list[Record], together: int) -> None:
    left = iter([records[start : start + together] for start in range(0, len(records), together)])

    async def work() -> None:
        connection = await asyncpg.connect(url)
        for some in left:
            async with connection.transaction():
                for each in some:
                    await connection.execute(INSERT, *each.values())
        await connection.close()

    await asyncio.gather(*(work() for _ in range(AT_ONCE)))
