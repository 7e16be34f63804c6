"""Procrastinate: a job per row in PostgreSQL, handed over a thousand at a time."""

from __future__ import annotations

import asyncio
from itertools import islice
from typing import Any

import procrastinate
from psycopg_pool import AsyncConnectionPool

from bench.peers.crew import DATABASE, Numbered, crew, timed, verdicts
from bench.records import INSERT
from bench.script import BATCH

__all__ = ["row_jobs"]

connector = procrastinate.PsycopgConnector(conninfo=DATABASE, min_size=4, max_size=20)
app = procrastinate.App(connector=connector)
WORKER = ("-m", "procrastinate", "--app", "bench.peers.on_procrastinate.app", "worker", "-q", "rows", "-c", "20")
_pools: list[AsyncConnectionPool] = []


@app.task(name="row", queue="rows")
async def whole_row(number: int, raw: dict[str, str]) -> None:
    async with (await _pool()).connection() as connection, connection.transaction(), connection.cursor() as cursor:
        await cursor.executemany(INSERT, list(verdicts(number, raw)))


def row_jobs(*, file: str, rows: int, url: str) -> dict[str, Any]:
    """A job per row; it commits the row's records together."""

    async def defer(numbered: Numbered) -> None:
        rest = iter(numbered)
        while batch := list(islice(rest, BATCH)):
            await whole_row.batch_defer_async(*({"number": number, "raw": raw} for number, raw in batch))

    async def prepare() -> None:
        await app.open_async()
        await app.schema_manager.apply_schema_async()

    with asyncio.Runner() as runner:
        runner.run(prepare())
        with crew(WORKER, WORKER):
            found = timed(file, rows, lambda numbered: runner.run(defer(numbered)))
        runner.run(app.close_async())
    return found


async def _pool() -> AsyncConnectionPool:
    if not _pools:
        _pools.append(AsyncConnectionPool(DATABASE, min_size=4, max_size=10, open=False, kwargs={"autocommit": True}))
        await _pools[0].open()
    return _pools[0]
