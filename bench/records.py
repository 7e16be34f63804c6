"""What a hand-written job keeps: one record for each step of each row, and for its validation.

Scripts and queues write these records; Penstock keeps its own. Nothing here imports Penstock.
"""

from __future__ import annotations

import time
from typing import Any

import sqlalchemy as sa

from bench.job import STEPS, bad_rows

__all__ = ["COMPLETED", "FAILED", "INSERT", "expected", "now_us", "record", "table"]

COMPLETED, FAILED = 3, 4
_metadata = sa.MetaData()

table = sa.Table(
    "step_record",
    _metadata,
    sa.Column("operation_id", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("row_number", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("step_index", sa.SmallInteger, primary_key=True, autoincrement=False),
    sa.Column("state", sa.SmallInteger, nullable=False),
    sa.Column("attempt", sa.SmallInteger, nullable=False),
    sa.Column("started_at", sa.BigInteger),
    sa.Column("finished_at", sa.BigInteger),
    sa.Column("error", sa.Text),
    sa.Column("row_data", sa.Text),
)
# For drivers that are used without SQLAlchemy.
INSERT = (
    f"INSERT INTO step_record ({', '.join(column.name for column in table.columns)}) "
    f"VALUES ({', '.join(f'%({column.name})s' for column in table.columns)})"
)


def now_us() -> int:
    """The time, in microseconds."""
    return time.time_ns() // 1000


def record(
    row: int, step: int, state: int, started_us: int, *, error: str | None = None, data: str | None = None
) -> dict[str, Any]:
    """One record; validation is step 0."""
    return {
        "operation_id": 1,
        "row_number": row,
        "step_index": step,
        "state": state,
        "attempt": 1,
        "started_at": started_us,
        "finished_at": now_us(),
        "error": error,
        "row_data": data,
    }


def expected(rows: int) -> int:
    """How many records there are when every row has its verdict."""
    return rows + (rows - bad_rows(rows)) * STEPS
