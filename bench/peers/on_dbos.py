"""DBOS: a durable workflow per row on a queue, in one process; its own tables hold the outcome of every step."""

from __future__ import annotations

import csv
import time
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from dbos import DBOS

from bench.job import Row
from bench.records import expected

__all__ = ["workflows"]

QUEUE, LIMIT_S, LOOK_S = "rows", 600.0, 0.2


@DBOS.step()
def validate(raw: dict[str, str]) -> dict[str, Any]:
    return Row.model_validate(raw).model_dump(mode="json")


@DBOS.step()
def one(row: dict[str, Any]) -> None: ...


@DBOS.step()
def two(row: dict[str, Any]) -> None: ...


@DBOS.step()
def three(row: dict[str, Any]) -> None: ...


@DBOS.workflow()
def row_flow(raw: dict[str, str]) -> None:
    try:
        row = validate(raw)
    except ValueError:
        return
    one(row)
    two(row)
    three(row)


def workflows(*, file: str, rows: int, url: str) -> dict[str, Any]:
    """A workflow per row; each of its steps is committed."""
    DBOS(config={"name": "bench", "system_database_url": url, "log_level": "ERROR", "console_log_level": "ERROR"})
    DBOS.launch()
    DBOS.register_queue(QUEUE, worker_concurrency=50, polling_interval_sec=0.05)
    engine = sa.create_engine(url)
    with Path(file).open(newline="") as lines:
        raws = list(csv.DictReader(lines))
    began = time.perf_counter()
    for raw in raws:
        DBOS.enqueue_workflow(QUEUE, row_flow, raw)
    while _count(engine, "workflow_status WHERE status = 'SUCCESS'") < rows:
        assert time.perf_counter() - began < LIMIT_S, f"DBOS is not done after {LIMIT_S:.0f} s"
        time.sleep(LOOK_S)
    seconds = time.perf_counter() - began
    kept = _count(engine, "operation_outputs")
    assert kept == expected(rows), f"{kept:,} steps are recorded; {expected(rows):,} are right"
    DBOS.destroy(workflow_completion_timeout_sec=1)
    return {"seconds": seconds, "rows": rows}


def _count(engine: sa.Engine, what: str) -> int:
    with engine.connect() as connection:
        return connection.scalar(sa.text(f"SELECT count(*) FROM dbos.{what}")) or 0
