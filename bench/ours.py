"""Penstock runs the job: everything validated first, every outcome durable."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from bench.hands import working
from bench.job import bad_rows
from bench.pipelines import PIPELINES
from penstock import Penstock
from penstock.operations.model import Operation
from penstock.settings import Settings

__all__ = ["check", "opened", "retry", "run", "settings_for"]


def run(
    *,
    file: str,
    rows: int,
    url: str,
    folder: str,
    pipeline: str = "Plain",
    workers: int = 1,
    failed: int = 0,
    metadata: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """From the file to the last verdict, opening the database included.

    With more than one worker, the others are processes that wait for work when time begins.
    """

    async def go() -> float:
        began = time.perf_counter()
        async with opened(url, folder, pipeline) as penstock:
            made = await penstock.operations.create(PIPELINES[pipeline], file=Path(file), metadata=metadata)
            done = await penstock.run_until_done(made.id, owns_process=True)
        seconds = time.perf_counter() - began
        check(done, rows, failed)
        return seconds

    with working(settings_for(url, folder), pipeline, workers - 1):
        return {"seconds": asyncio.run(go()), "rows": rows}


def retry(*, file: str, rows: int, url: str, folder: str) -> dict[str, Any]:
    """Every row fails; then all are retried and succeed. Only the retry is timed."""

    async def go() -> float:
        async with opened(url, folder, "Failing") as penstock:
            operation = PIPELINES["Failing"]
            made = await penstock.operations.create(operation, file=Path(file), metadata={"percent": 100})
            check(await penstock.run_until_done(made.id, owns_process=True), rows, rows - bad_rows(rows))
            began = time.perf_counter()
            await penstock.operations.retry(made.id)
            done = await penstock.run_until_done(made.id, owns_process=True)
            seconds = time.perf_counter() - began
        check(done, rows, 0)
        return seconds

    return {"seconds": asyncio.run(go()), "rows": rows - bad_rows(rows)}


@asynccontextmanager
async def opened(url: str, folder: str, *pipelines: str) -> AsyncIterator[Penstock]:
    """Penstock as it comes, with its files in `folder`."""
    operations = [PIPELINES[name] for name in pipelines]
    async with Penstock.open(operations=operations, settings=settings_for(url, folder)) as penstock:
        yield penstock


def settings_for(url: str, folder: str) -> Settings:
    """Every setting at its default, but for the places."""
    return Settings(database_url=url, storage_url=str(Path(folder) / "files"))


def check(done: Operation, rows: int, failed: int) -> None:
    """Every row has the verdict it should have."""
    good, bad = rows - bad_rows(rows) - failed, bad_rows(rows)
    found = (done.total_rows, done.successful_rows, done.invalid_rows, done.failed_rows)
    right = (rows, good, bad, bad + failed)
    assert found == right, f"{done.status} with (total, good, invalid, failed) rows of {found}; right is {right}"
