"""What all queues need: worker processes, a table of records, and the wait for the last record.

The addresses are in the environment, as workers are started by commands of their own.
"""

from __future__ import annotations

import csv
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

import psycopg

from bench.job import STEPS
from bench.records import COMPLETED, INSERT, expected, now_us, record, table
from bench.script import judge

__all__ = ["DATABASE", "REDIS", "Numbered", "crew", "save", "timed", "verdicts"]

DATABASE = os.environ.get("BENCH_DATABASE_URL", "")
REDIS = os.environ.get("BENCH_REDIS_URL", "")
LIMIT_S, LOOK_S, STOP_S = 600.0, 0.05, 10.0
WARM_ROWS, WARM_ROUNDS = 20, 4

Numbered = Sequence[tuple[int, dict[str, str]]]
_thread = threading.local()


def verdicts(number: int, raw: dict[str, str]) -> Iterator[dict[str, Any]]:
    """The records of one row, as its steps end."""
    row, told = judge(number, raw)
    yield told
    for step in range(1, STEPS + 1) if row is not None else ():
        yield record(number, step, COMPLETED, now_us())


def save(records: Sequence[dict[str, Any]]) -> None:
    """Write records in one transaction, over the connection of this thread."""
    if not hasattr(_thread, "connection"):
        _thread.connection = psycopg.connect(DATABASE, autocommit=True)
    if len(records) == 1:
        _thread.connection.execute(INSERT, records[0])
    else:
        with _thread.connection.transaction(), _thread.connection.cursor() as cursor:
            cursor.executemany(INSERT, records)


@contextmanager
def crew(*commands: Sequence[str]) -> Iterator[None]:
    """Worker processes, given as arguments of Python."""
    with Path(os.devnull).open("w") as nowhere:
        workers = [
            subprocess.Popen([sys.executable, *command], stdout=nowhere, stderr=nowhere, start_new_session=True)
            for command in commands
        ]
    try:
        yield
    finally:
        for worker in workers:
            worker.terminate()
        for worker in workers:
            _end(worker)


def timed(file: str, rows: int, produce: Callable[[Numbered], None]) -> dict[str, Any]:
    """From the first row that is handed over to the last record; the workers have met a few rows before."""
    with psycopg.connect(DATABASE, autocommit=True) as connection:
        _create(connection)
        with Path(file).open(newline="") as lines:
            numbered = enumerate(csv.DictReader(lines), 1)
            for turn in range(1, WARM_ROUNDS + 1):
                produce(list(islice(numbered, WARM_ROWS)))
                _await(connection, expected(WARM_ROWS * turn))
        connection.execute("TRUNCATE step_record")
        connection.execute("CHECKPOINT")
        began = time.perf_counter()
        with Path(file).open(newline="") as lines:
            produce(list(enumerate(csv.DictReader(lines), 1)))
        _await(connection, expected(rows))
        return {"seconds": time.perf_counter() - began, "rows": rows}


def _create(connection: psycopg.Connection[Any]) -> None:
    import sqlalchemy as sa
    from sqlalchemy.dialects import postgresql

    dialect = postgresql.dialect()  # type: ignore[no-untyped-call]
    connection.execute(str(sa.schema.CreateTable(table).compile(dialect=dialect)))


def _await(connection: psycopg.Connection[Any], records: int) -> None:
    """Look until so many records are there, and no more."""
    end = time.monotonic() + LIMIT_S
    while (found := _count(connection)) < records:
        if time.monotonic() > end:
            raise TimeoutError(f"after {LIMIT_S:.0f} s there are {found:,} of {records:,} records")
        time.sleep(LOOK_S)
    assert found == records, f"there are {found:,} records; {records:,} are right"


def _count(connection: psycopg.Connection[Any]) -> int:
    found = connection.execute("SELECT count(*) FROM step_record").fetchone()
    return int(found[0]) if found else 0


def _end(worker: subprocess.Popen[bytes]) -> None:
    try:
        worker.wait(STOP_S)
    except subprocess.TimeoutExpired:
        os.killpg(worker.pid, signal.SIGKILL)
        worker.wait()
