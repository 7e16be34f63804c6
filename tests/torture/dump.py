"""All that is stored of one operation, as text, for whoever looks into a finding."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sqlalchemy import Row, Table, select

from penstock import Penstock
from penstock.journal.tables import transitions
from penstock.operations.chunk.ledger import STATES, Ledger
from penstock.operations.tables import chunks, history, operations, requests, row_records, signals, workers

__all__ = ["dump"]

LINES_MAX = 500  # of each table
_LONG = {"plan", "ledger", "metadata"}


async def dump(penstock: Penstock, operation: str, folder: Path) -> Path:
    """Write it to a file of the operation's id; returns which."""
    lines: list[str] = []
    async with penstock.db.read() as tx:
        one = (await tx.execute(select(operations).where(operations.c.id == operation))).one()
        lines += ["operation", _line(one), "workers", *[_line(row) for row in await tx.execute(select(workers))]]
        log = select(transitions).where(transitions.c.subject == operation).order_by(transitions.c.sequence)
        lines += ["log", *[_line(row) for row in await tx.execute(log)], "chunks"]
        for chunk in await tx.execute(select(chunks).where(chunks.c.operation == one.number).order_by(chunks.c.id)):
            lines += [_line(chunk), *_rows(chunk, len(one.plan["steps"]))]
        for table in (row_records, requests, signals, history):
            lines += [table.name, *[_line(row) for row in await tx.execute(_of(table, one.number))]]
    file = folder / f"operation-{operation}.txt"
    file.write_text("\n".join(lines))
    return file


def _of(table: Table, number: int) -> Any:
    return select(table).where(table.c.operation == number).order_by(*table.primary_key).limit(LINES_MAX)


def _line(row: Row[Any]) -> str:
    return "  " + ", ".join(f"{name} {value!r}" for name, value in row._mapping.items() if name not in _LONG)


def _rows(chunk: Row[Any], steps: int) -> Iterator[str]:
    """Where its rows stand, those that stand alike in one line."""
    ledger = Ledger.decode(chunk.ledger, rows=chunk.row_count, steps=steps, base=0)
    alike = Counter(
        (ledger.at[i], ledger.state(i), ledger.in_flight[i], ledger.generation[i], ledger.lost[i])
        for i in range(ledger.rows)
    )
    for (at, state, in_flight, generation, lost), many in sorted(alike.items()):
        yield f"    {many} rows at place {at}: {STATES[state]}, in flight {in_flight}, gen {generation}, lost {lost}"
