"""Looking at a large operation: how long a page of rows takes, by what is asked for."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from bench.figures import percentile
from bench.job import HEADER, bad_rows
from bench.ours import check, opened
from bench.pipelines import Failing
from penstock import Penstock

__all__ = ["QUERIES", "pages"]

LIMIT = 100
PATIENCE_S = 5.0  # a query that is slow is not asked as often
Query = Callable[[Penstock, str, int], Awaitable[int]]
assert HEADER[0] == "id", "rows are looked up by their number, which is their key"


async def _first_page(penstock: Penstock, operation: str, row: int) -> int:
    return len((await penstock.operations.rows(operation, limit=LIMIT)).items)


async def _page_inside(penstock: Penstock, operation: str, row: int) -> int:
    return len((await penstock.operations.rows(operation, cursor=str(row), limit=LIMIT)).items)


async def _failed(penstock: Penstock, operation: str, row: int) -> int:
    return len((await penstock.operations.rows(operation, state="Failed", limit=LIMIT)).items)


async def _failed_inside(penstock: Penstock, operation: str, row: int) -> int:
    return len((await penstock.operations.rows(operation, state="Failed", first=row, limit=LIMIT)).items)


async def _completed_inside(penstock: Penstock, operation: str, row: int) -> int:
    return len((await penstock.operations.rows(operation, state="Completed", first=row, limit=LIMIT)).items)


async def _by_key(penstock: Penstock, operation: str, row: int) -> int:
    return len((await penstock.operations.rows(operation, row_key=str(row), limit=LIMIT)).items)


async def _one_row(penstock: Penstock, operation: str, row: int) -> int:
    return (await penstock.operations.row(operation, row)).number


async def _errors(penstock: Penstock, operation: str, row: int) -> int:
    return len((await penstock.operations.errors(operation, first=row, limit=LIMIT)).items)


async def _operations(penstock: Penstock, operation: str, row: int) -> int:
    return len((await penstock.operations.list()).items)


QUERIES: dict[str, Query] = {
    "first page": _first_page,
    "page somewhere": _page_inside,
    "failed rows": _failed,
    "failed rows from somewhere": _failed_inside,
    "completed rows from somewhere": _completed_inside,
    "row by key": _by_key,
    "row by number": _one_row,
    "errors from somewhere": _errors,
    "list of operations": _operations,
}


def pages(*, file: str, rows: int, url: str, folder: str, times: int) -> dict[str, Any]:
    """Run a file in which one row of a hundred fails and one is invalid; then ask each query, up to `times`."""

    async def go() -> dict[str, list[float]]:
        async with opened(url, folder, "Failing") as penstock:
            made = await penstock.operations.create(Failing, file=Path(file), metadata={"percent": 1})
            check(await penstock.run_until_done(made.id, owns_process=True), rows, bad_rows(rows))
        async with opened(url, folder, "Failing") as penstock:
            return {name: await _time(penstock, made.id, rows, query, times) for name, query in QUERIES.items()}

    found = asyncio.run(go())
    numbers = {name: [percentile(ms, 50), percentile(ms, 99)] for name, ms in found.items()}
    return {"ms": numbers, "rows": rows}


async def _time(penstock: Penstock, operation: str, rows: int, query: Query, times: int) -> list[float]:
    chance, found = random.Random(7), list[float]()
    await query(penstock, operation, 1)
    end = time.perf_counter() + PATIENCE_S
    while len(found) < times and time.perf_counter() < end:
        row = chance.randint(1, max(1, rows - LIMIT * 100))
        began = time.perf_counter()
        answered = await query(penstock, operation, row)
        found.append((time.perf_counter() - began) * 1000)
        assert answered, f"{query.__name__} found nothing at row {row:,}"
    return found
