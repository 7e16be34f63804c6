"""Rows that wait for signals: how fast signals are accepted, and how soon the next step begins elsewhere."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

from bench.figures import percentile
from bench.hands import working
from bench.job import BAD_EVERY, bad_rows
from bench.ours import check, opened, settings_for
from bench.pipelines import Waiting
from penstock import Penstock
from penstock.operations.model import Operation

__all__ = ["accept", "latency"]

LOOK_S = 0.05
CALLERS = 32


def accept(*, file: str, rows: int, url: str, folder: str) -> dict[str, Any]:
    """Park every row; then, with nobody working, send all signals from one core; then let the rows go on."""

    async def go() -> dict[str, Any]:
        async with opened(url, folder, "Waiting") as penstock:
            began = time.perf_counter()
            made = await penstock.operations.create(Waiting, file=Path(file))
            await _park(penstock, made, rows)
            parked = time.perf_counter()
            _stay_on_one_core()
            await _send_all(penstock, made, rows)
            accepted = time.perf_counter()
            done = await penstock.run_until_done(made.id, owns_process=True)
            ended = time.perf_counter()
        check(done, rows, 0)
        return {"seconds": accepted - parked, "park_s": parked - began, "finish_s": ended - accepted}

    return {**asyncio.run(go()), "rows": rows - bad_rows(rows)}


def latency(*, file: str, rows: int, url: str, folder: str, per_second: int) -> dict[str, Any]:
    """Milliseconds from the call that sends a signal to the beginning of the next step in a worker process."""

    async def go() -> list[float]:
        async with opened(url, folder, "Waiting") as penstock:
            made = await penstock.operations.create(Waiting, file=Path(file))
            await _parked(penstock, made, rows)
            sent = await _send_paced(penstock, made, rows, per_second)
            check(await penstock.operations.wait(made.id), rows, 0)
            return [(began - sent[row]) / 1e6 async for row, began in _beginnings(penstock, made)]

    with working(settings_for(url, folder), "Waiting", 1):
        found = asyncio.run(go())
    assert len(found) == rows - bad_rows(rows), f"{len(found):,} rows have gone on"
    return {"p50_ms": percentile(found, 50), "p99_ms": percentile(found, 99), "rows": rows}


async def _parked(penstock: Penstock, made: Operation, rows: int) -> None:
    """Wait until a worker elsewhere has parked every row."""
    while (await penstock.operations.get(made.id)).waiting_rows < rows - bad_rows(rows):  # noqa: ASYNC110
        await asyncio.sleep(LOOK_S)


async def _park(penstock: Penstock, made: Operation, rows: int) -> None:
    stop = asyncio.Event()

    def leave_when_all_wait(now: Operation) -> None:
        if now.waiting_rows == rows - bad_rows(rows):
            stop.set()

    await penstock.run_until_done(made.id, every_s=LOOK_S, watch=leave_when_all_wait, stop=stop, owns_process=True)


async def _send_all(penstock: Penstock, made: Operation, rows: int) -> None:
    """Callers that share one list, as a web server has requests at once."""
    waiting = _valid_numbers(rows)

    async def call() -> None:
        for number in waiting:
            receipt = await penstock.signals.complete(made.id, f"row-{number}", payload={"by": "bench"})
            assert receipt.outcome == "delivered", f"signal {number} was {receipt.outcome}"

    async with asyncio.TaskGroup() as group:
        for _ in range(CALLERS):
            group.create_task(call())


async def _send_paced(penstock: Penstock, made: Operation, rows: int, per_second: int) -> dict[int, int]:
    """Send at an even pace, whether or not earlier calls have returned; when each was sent, by row."""
    sent: dict[int, int] = {}

    async def send(number: int) -> None:
        sent[number] = time.monotonic_ns()
        await penstock.signals.complete(made.id, f"row-{number}")

    began = time.monotonic()
    async with asyncio.TaskGroup() as group:
        for turn, number in enumerate(_valid_numbers(rows)):
            await asyncio.sleep(max(0.0, began + turn / per_second - time.monotonic()))
            group.create_task(send(number))
    return sent


async def _beginnings(penstock: Penstock, made: Operation) -> AsyncIterator[tuple[int, int]]:
    """When the step after the wait began, row by row: its output says so."""
    cursor = None
    while True:
        page = await penstock.operations.rows(made.id, state="Completed", cursor=cursor, limit=1000)
        for row in page.items:
            yield row.number, row.steps[-1].output
        cursor = page.next_cursor
        if cursor is None:
            return


def _valid_numbers(rows: int) -> Iterator[int]:
    return (number for number in range(1, rows + 1) if number % BAD_EVERY)


def _stay_on_one_core() -> None:
    core = min(os.sched_getaffinity(0))
    for thread in os.listdir("/proc/self/task"):
        os.sched_setaffinity(int(thread), {core})
