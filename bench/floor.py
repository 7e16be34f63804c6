"""The floor: what the job costs on one core when nothing at all is kept."""

from __future__ import annotations

import asyncio
import csv
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from bench.job import STEPS, Row, bad_rows

__all__ = ["no_tracking", "sleeping"]

# No DictReader, and the model's validator without the class around it: the floor shall not be slower than need be.
_validate = Row.__pydantic_validator__.validate_python


def no_tracking(*, file: str, rows: int) -> dict[str, Any]:
    """Parse, validate, await three steps that do nothing."""

    async def step(row: Row) -> None: ...

    async def go(lines: Iterable[str]) -> int:
        validate, good = _validate, 0
        reader = csv.reader(lines)
        header = next(reader)
        for cells in reader:
            try:
                row = validate(dict(zip(header, cells)))  # noqa: B905
            except ValidationError:
                continue
            await step(row)
            await step(row)
            await step(row)
            good += 1
        return good

    return _timed(go, file, rows)


def sleeping(*, file: str, rows: int, at_once: int, sleep_s: float) -> dict[str, Any]:
    """Tasks that share one reader and sleep in every step: what the event loop can do."""

    async def work(shared: Iterator[Row]) -> int:
        good = 0
        for _ in shared:
            for _ in range(STEPS):
                await asyncio.sleep(sleep_s)
            good += 1
        return good

    async def go(lines: Iterable[str]) -> int:
        shared = _valid(csv.DictReader(lines))
        return sum(await asyncio.gather(*(work(shared) for _ in range(at_once))))

    return _timed(go, file, rows)


def _valid(records: Iterable[Any]) -> Iterator[Row]:
    for record in records:
        try:
            row = _validate(record)
        except ValidationError:
            continue
        yield row


def _timed(work: Callable[[Iterable[str]], Coroutine[Any, Any, int]], file: str, rows: int) -> dict[str, Any]:
    began = time.perf_counter()
    with Path(file).open(newline="") as lines:
        good = asyncio.run(work(lines))
    seconds = time.perf_counter() - began
    assert good == rows - bad_rows(rows), f"{good:,} rows were good; {rows - bad_rows(rows):,} are"
    return {"seconds": seconds, "rows": rows}
