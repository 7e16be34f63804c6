"""The hand-written script: csv, pydantic, SQLAlchemy Core; a thousand rows at a time, each step saved and committed."""

from __future__ import annotations

import asyncio
import csv
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from pydantic import ValidationError
from sqlalchemy.ext.asyncio import create_async_engine

from bench.job import STEPS, Row
from bench.records import COMPLETED, FAILED, expected, now_us, record, table

__all__ = ["BATCH", "asynchronous", "judge", "nothing", "steps_of", "synchronous"]

BATCH = 1000
Records = list[dict[str, Any]]


def synchronous(*, file: str, rows: int, url: str) -> dict[str, Any]:
    """With a driver that blocks: sqlite3, psycopg or PyMySQL."""
    engine = sa.create_engine(url)
    if engine.dialect.name == "sqlite":
        sa.event.listen(engine, "connect", _make_durable)
    table.create(engine)
    insert = sa.insert(table)

    def save(records: Records) -> None:
        with engine.begin() as connection:
            connection.execute(insert, records)

    began = time.perf_counter()
    for records in _groups(Path(file)):
        save(records)
    seconds = time.perf_counter() - began
    with engine.connect() as connection:
        _check(connection.scalar(sa.select(sa.func.count()).select_from(table)), rows)
    engine.dispose()
    return {"seconds": seconds, "rows": rows}


def asynchronous(*, file: str, rows: int, url: str) -> dict[str, Any]:
    """The same with asyncpg, which takes many records at once faster than psycopg does."""

    async def go() -> float:
        engine = create_async_engine(url)
        insert = sa.insert(table)
        async with engine.begin() as connection:
            await connection.run_sync(table.create)
        began = time.perf_counter()
        for records in _groups(Path(file)):
            async with engine.begin() as connection:
                await connection.execute(insert, records)
        seconds = time.perf_counter() - began
        async with engine.connect() as connection:
            _check(await connection.scalar(sa.select(sa.func.count()).select_from(table)), rows)
        await engine.dispose()
        return seconds

    return {"seconds": asyncio.run(go()), "rows": rows}


def judge(number: int, raw: Any) -> tuple[Row | None, dict[str, Any]]:
    """A row, if it is one, and the record of its validation."""
    began = now_us()
    try:
        row = Row.model_validate(raw)
    except ValidationError as error:
        return None, record(number, 0, FAILED, began, error=str(error))
    return row, record(number, 0, COMPLETED, began, data=row.model_dump_json())


def steps_of(numbered: Sequence[tuple[int, Any]], step: Callable[[Row], None]) -> Iterator[Records]:
    """The records of a batch, group by group as they are saved: its validation, then each of its steps."""
    judged = [(number, *judge(number, raw)) for number, raw in numbered]
    yield [told for _, _, told in judged]
    good = [(number, row) for number, row, _ in judged if row is not None]
    for index in range(1, STEPS + 1):
        records = []
        for number, row in good:
            began = now_us()
            step(row)
            records.append(record(number, index, COMPLETED, began))
        yield records


def nothing(row: Row) -> None:
    """The step."""


def _groups(file: Path) -> Iterator[Records]:
    with file.open(newline="") as lines:
        numbered = enumerate(csv.DictReader(lines), 1)
        while batch := list(islice(numbered, BATCH)):
            yield from steps_of(batch, nothing)


def _make_durable(connection: Any, _: Any) -> None:
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA synchronous=FULL")


def _check(found: int | None, rows: int) -> None:
    assert found == expected(rows), f"{found:,} records were written; {expected(rows):,} are right"
