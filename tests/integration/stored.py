"""What an operation left in the database, read straight from the tables: the other witness beside the views."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
from sqlalchemy import func, select

from penstock.db.database import Database
from penstock.operations.chunk.ledger import INVALID, PENDING, STATES, Ledger
from penstock.operations.operation_ids import number_of
from penstock.operations.tables import chunk_rows, chunks, history, operations, row_records

__all__ = ["StoredRow", "StoredStep", "count_of", "history_of", "records_of", "rows_of", "stored_files"]


def stored_files(folder: Path) -> list[Path]:
    """The files in the storage folder of an engine, without the folder's mark."""
    found = (path for path in (folder / "files").rglob("*") if not path.is_dir())
    return sorted(path for path in found if not path.name.startswith("storage-"))


@dataclass(frozen=True)
class StoredStep:
    """One step a row has reached."""

    state: str
    attempt: int
    output: Any = None


@dataclass(frozen=True)
class StoredRow:
    """One row's verdict and its steps in order; validation is not among them."""

    number: int
    verdict: str
    steps: tuple[StoredStep, ...]
    lost: int
    in_flight: bool

    @property
    def states(self) -> list[str]:
        return [step.state for step in self.steps]

    @property
    def attempts(self) -> list[int]:
        return [step.attempt for step in self.steps]

    @property
    def outputs(self) -> list[Any]:
        return [step.output for step in self.steps]


async def rows_of(db: Database, operation: str) -> list[StoredRow]:
    """Every row of an operation in order, from its chunks' ledgers and the outputs that are in its records."""
    async with db.read() as tx:
        number = await number_of(tx, operation)
        plan = (await tx.execute(select(operations.c.plan).where(operations.c.number == number))).scalar_one()
        found = (
            await tx.execute(select(chunks).where(chunks.c.operation == number).order_by(chunks.c.first_row))
        ).all()
        of_records = await tx.execute(select(row_records).where(row_records.c.operation == number))
        large = {(record.row, record.step): record.output for record in of_records if record.output is not None}
    steps = len(plan["steps"])
    return [
        _row(Ledger.decode(chunk.ledger, rows=chunk.row_count, steps=steps, base=0), i, chunk.first_row + i, large)
        for chunk in found
        for i in range(chunk.row_count)
    ]


def _row(ledger: Ledger, i: int, number: int, large: Mapping[tuple[int, int], bytes]) -> StoredRow:
    reached = [(n, t) for n, t in enumerate(ledger.tracks[1:]) if t.state[i] != PENDING or t.attempt[i]]
    outputs = [large.get((number, n), track.outputs.get(i, b"null")) for n, track in reached]
    steps = tuple(
        StoredStep(STATES[track.state[i]], track.attempt[i], msgspec.json.decode(output))
        for (_, track), output in zip(reached, outputs, strict=True)
    )
    state = ledger.state(i)
    verdict = "Invalid" if state == INVALID else STATES[state]
    return StoredRow(number, verdict, steps, ledger.lost[i], bool(ledger.in_flight[i]))


async def records_of(db: Database, operation: str) -> list[Any]:
    """The row records of an operation, by row and step."""
    async with db.read() as tx:
        mine = row_records.c.operation == await number_of(tx, operation)
        return list(await tx.execute(select(row_records).where(mine).order_by(row_records.c.row, row_records.c.step)))


async def history_of(db: Database, operation: str) -> list[Any]:
    """The history lines of an operation, oldest first."""
    async with db.read() as tx:
        mine = history.c.operation == await number_of(tx, operation)
        return list(await tx.execute(select(history).where(mine).order_by(history.c.id)))


async def count_of(db: Database) -> dict[str, int]:
    """How many records each table of operations holds."""
    async with db.read() as tx:
        tables = {"operations": operations, "chunks": chunks, "rows": chunk_rows, "records": row_records}
        return {
            name: int((await tx.execute(select(func.count()).select_from(table))).scalar_one())
            for name, table in tables.items()
        }
