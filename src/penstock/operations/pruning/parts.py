"""Removing a part of what is stored about an operation that has ended, in short transactions: its record stays.

A part is noted on the operation before anything of it goes, and once more when all of it is gone; so what a crash has
left is found and removed later. Each slice is found by what is still there.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping
from functools import partial
from typing import Any

from sqlalchemy import delete, exists, select, update

from penstock.db.connection import Connection
from penstock.db.database import Database
from penstock.operations.chunk.ledger import Ledger
from penstock.operations.moves import touch
from penstock.operations.pruning.removal import IS_OVER
from penstock.operations.tables import chunk_rows, chunks, history, operations, row_records

__all__ = ["begin_part", "end_part", "remove_part"]

CHUNKS_EACH = 10
RECORDS_EACH = 1000

Slice = Callable[[int, Connection], Awaitable[bool]]  # removes a little of an operation; False when nothing is left


async def begin_part(
    tx: Connection, number: int, part: str, *, ended_us: int, pruned: Mapping[str, bool], revision: int
) -> bool:
    """Note that a part goes; False when the operation was retried, held or changed since it was looked at."""
    as_seen = (operations.c.revision == revision, operations.c.finished_at == ended_us, operations.c.hold.is_(None))
    return await touch(tx, number, IS_OVER, *as_seen, pruned={**pruned, part: False}) is not None


async def end_part(tx: Connection, number: int, part: str) -> None:
    """Note that a part is gone."""
    await touch(tx, number)  # whoever ends another part does so after us
    pruned = (await tx.execute(select(operations.c.pruned).where(operations.c.number == number))).scalar()
    await touch(tx, number, pruned={**(pruned or {}), part: True})


async def remove_part(db: Database, number: int, part: str, budget: Iterator[None]) -> bool:
    """Remove a part that has been begun; False when the budget of transactions is spent before that."""
    for slice_ in _SLICES[part]:
        while True:
            if next(budget, _SPENT) is _SPENT:
                return False
            if not await db.transaction(partial(slice_, number), "prune_part"):
                break
    return True


_SPENT = object()


async def _rows(number: int, tx: Connection) -> bool:
    query = select(chunk_rows.c.chunk).join(chunks, chunks.c.id == chunk_rows.c.chunk)
    found = (await tx.execute(query.where(chunks.c.operation == number).limit(CHUNKS_EACH))).scalars().all()
    await tx.execute(delete(chunk_rows).where(chunk_rows.c.chunk.in_(found)))
    return bool(found)


async def _edits(number: int, tx: Connection) -> bool:
    """What was typed in for rows is row data as well."""
    mine = exists().where(row_records.c.chunk == chunks.c.id, row_records.c.data.is_not(None))
    query = select(chunks.c.id).where(chunks.c.operation == number, mine).limit(CHUNKS_EACH)
    found = (await tx.execute(query)).scalars().all()
    await tx.execute(update(row_records).where(row_records.c.chunk.in_(found)).values(data=None))
    return bool(found)


async def _history_data(number: int, tx: Connection) -> bool:
    query = select(history.c.id).where(history.c.operation == number, history.c.data.is_not(None))
    found = (await tx.execute(query.limit(RECORDS_EACH))).scalars().all()
    await tx.execute(update(history).where(history.c.id.in_(found)).values(data=None))
    return bool(found)


async def _history(number: int, tx: Connection) -> bool:
    found = (await tx.execute(select(history.c.id).where(history.c.operation == number).limit(RECORDS_EACH))).scalars()
    ids: list[Any] = list(found)
    await tx.execute(delete(history).where(history.c.id.in_(ids)))
    return bool(ids)


async def _outputs(number: int, tx: Connection) -> bool:
    """Outputs are in the ledgers: each that has some is written anew without."""
    query = select(chunks.c.id, chunks.c.row_count, chunks.c.ledger).where(chunks.c.operation == number)
    last, written = 0, 0
    while written < CHUNKS_EACH:
        found = (await tx.execute(query.where(chunks.c.id > last).order_by(chunks.c.id).limit(CHUNKS_EACH))).all()
        if not found:
            return written > 0
        for chunk in found:
            ledger = Ledger.decode(chunk.ledger, rows=chunk.row_count, steps=0, base=0) if chunk.ledger else None
            if ledger is not None and ledger.drop_outputs():
                values = {"ledger": ledger.encode(), "version": chunks.c.version + 1}
                await tx.execute(update(chunks).where(chunks.c.id == chunk.id).values(values))
                written += 1
        last = found[-1].id
    return True


_SLICES: Mapping[str, tuple[Slice, ...]] = {
    "rows": (_rows, _edits, _history_data),
    "outputs": (_outputs,),
    "history": (_history,),
    "files": (),
}
