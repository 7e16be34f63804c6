"""Removing operations that ended long ago: their records, in short transactions, then their file, then their own row.

Once its removal has begun, an operation is gone for callers and cannot be retried (`stop_outcome` is Removed, `reading`
abandoned). Its row goes last; so what was cut off in between is found and finished by the next time.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate
from typing import Any

from sqlalchemy import Row, delete, or_, select

from penstock.blobs import queries as blob_queries
from penstock.blobs.model import BlobDescriptor
from penstock.blobs.storage import Storage
from penstock.blobs.sweeping import clear
from penstock.clock import from_micros
from penstock.db.connection import Connection
from penstock.db.database import Database
from penstock.errors import Conflict, FileUnreadable, NotFound
from penstock.journal.numbering import start_counter
from penstock.journal.tables import transitions
from penstock.operations.auditing import log_act
from penstock.operations.model import Pruned
from penstock.operations.moves import touch
from penstock.operations.states import OPERATION
from penstock.operations.tables import (
    REMOVED,
    chunk_rows,
    chunks,
    history,
    limit_shares,
    operations,
    requests,
    row_records,
    signals,
)
from penstock.outbox.states import DELIVERY
from penstock.outbox.tables import deliveries, subscriptions

__all__ = ["DUE", "IS_BEGUN", "IS_OVER", "Due", "Removal", "reference_of", "require_over"]

log = logging.getLogger("penstock")

ROWS_EACH = 5000  # in one transaction, with their records; at least one chunk
RECORDS_EACH = 1000  # of each other table, in one transaction

IS_OVER = operations.c.state.in_(sorted(OPERATION.settled))
IS_BEGUN = operations.c.stop_outcome.is_not_distinct_from(REMOVED)


@dataclass(frozen=True, slots=True)
class Due:
    """An operation of which something is to be removed, as it was when we looked: what is due, and some columns."""

    parts: tuple[str, ...]
    number: int
    id: str
    file_key: str
    file_sha256: str
    file_bytes: int
    blob: str | None
    rows_read: int
    finished_at: int
    revision: int
    pruned: Mapping[str, bool] | None
    stop_outcome: str | None

    @classmethod
    def of(cls, row: Any, parts: tuple[str, ...]) -> Due:
        """From a record that begins with the columns `DUE`."""
        return cls(parts, *row[: len(DUE)])


DUE = [operations.c[name] for name in Due.__dataclass_fields__ if name != "parts"]


def require_over(operation: Row[Any]) -> None:
    """`Conflict` while the operation is held, or not over."""
    if operation.hold is not None:
        raise Conflict(f"operation {operation.id} is held ({operation.hold}); release it first")
    if not OPERATION.is_settled(operation.state):
        raise Conflict(f"operation {operation.id} is {operation.state}; cancel it first, or wait for its end")


def reference_of(operation: str) -> str:
    """How the blob of an operation names what uses it."""
    return f"operation:{operation}"


@dataclass(slots=True)
class Removal:
    """Removes whole operations and their files, and counts what it has removed so far."""

    db: Database
    files: Storage
    actor: str | None = None  # who asks for it; None when a policy does
    done: Pruned = field(default_factory=Pruned)
    emptied: list[Due] = field(default_factory=list)

    async def empty(self, due: Due, budget: Iterator[None]) -> bool:
        """Remove all records of an operation but its row; False when the budget of transactions is spent before that.

        One that was retried or held since we looked stays as it is.
        """
        if due.stop_outcome == REMOVED or await self.db.transaction(partial(self._begin, due), "prune_begin"):
            if not await self._empty(due, budget):
                return False
            self.emptied.append(due)
        return True

    async def _begin(self, due: Due, tx: Connection) -> bool:
        """From now on the operation is gone for callers; False when it was retried or held, or another was first."""
        as_seen = (operations.c.finished_at == due.finished_at, operations.c.hold.is_(None))
        if await touch(tx, due.number, IS_OVER, *as_seen, stop_outcome=REMOVED, reading="abandoned") is None:
            return False
        await start_counter(self.db, tx)  # or the numbers of moves that are removed could be given out again
        if self.actor is not None:
            await log_act(self.db, tx, due.number, "delete", actor=self.actor)
        return True

    async def _empty(self, due: Due, budget: Iterator[None]) -> bool:
        has_removed = False
        for _ in budget:
            rows, records, is_empty = await self.db.transaction(partial(_remove_some, due), "prune")
            self.done.rows += rows
            has_removed |= bool(rows or records)
            if is_empty:
                self.done.operations += has_removed
                return True
        return False

    async def end(self) -> None:
        """Of the emptied operations remove the files that nobody else uses, then their rows."""
        gone = [due for due in self.emptied if await self.remove_file(due)]
        self.emptied.clear()
        if gone:
            await self.db.transaction(partial(_remove_rows, gone), "prune_end")

    async def remove_file(self, due: Due) -> bool:
        """Remove an operation's file, unless somebody else uses it; False when it must wait for a later time."""
        size: int | None = 0
        try:
            if due.blob is not None:
                size = await self._let_go_of_blob(due, due.blob)
            else:
                async with self.db.read() as tx:
                    is_needed = await _is_needed(tx, due)
                if not is_needed:
                    size = await asyncio.to_thread(self.files.remove, due.file_key)
        except (OSError, FileUnreadable) as error:
            log.warning("the file of operation %s cannot be removed: %s", due.id, error)
            size = None
        self.done.file_bytes += size or 0
        self.done.files_left += size is None
        return size is not None

    async def _let_go_of_blob(self, due: Due, blob: str) -> int:
        """Use a blob no more, and remove its bytes if it was made for the operation and nobody else needs it."""
        over = await self.db.transaction(partial(_release_blob, self.db, due, blob), "prune_blob")
        if over is None or not over.has_bytes:
            return 0
        await clear(self.db, self.files, over)
        return over.size_bytes or 0


async def _remove_some(due: Due, tx: Connection) -> tuple[int, int, bool]:
    """Remove a slice of an operation's records: how many rows and other records, and whether that was all."""
    if await touch(tx, due.number, IS_BEGUN) is None:
        return 0, 0, True  # another has ended it
    rows, is_empty = await _remove_chunks(due, tx)
    records = 0
    told = select(deliveries.c.id).where(deliveries.c.subject == due.id)
    # The chunks first: a late result is written only while its chunk is there, and locks it meanwhile.
    for key, is_mine in (
        (requests.c.id, requests.c.operation == due.number),
        (signals.c.id, signals.c.operation == due.number),
        (history.c.id, history.c.operation == due.number),
        (transitions.c.sequence, (transitions.c.machine == OPERATION.name) & (transitions.c.subject == due.id)),
        (transitions.c.sequence, (transitions.c.machine == DELIVERY.name) & transitions.c.subject.in_(told)),
        (deliveries.c.number, deliveries.c.subject == due.id),
        (subscriptions.c.id, subscriptions.c.subject == due.id),
    ):
        found = (await tx.execute(select(key).where(is_mine).limit(RECORDS_EACH))).scalars().all()
        if found:
            await tx.execute(delete(key.table).where(key.in_(found)))
        records += len(found)
        if len(found) == RECORDS_EACH:
            return rows, records, False  # what comes after it is found by way of it
    return rows, records, is_empty


async def _remove_chunks(due: Due, tx: Connection) -> tuple[int, bool]:
    """Remove some chunks with what belongs to them: how many rows that were, and whether no chunk is left."""
    query = select(chunks.c.id, chunks.c.row_count).where(chunks.c.operation == due.number).order_by(chunks.c.id)
    found = (await tx.execute(query.limit(RECORDS_EACH))).all()
    counts = list(accumulate(chunk.row_count for chunk in found))
    many = sum(1 for count in counts if count <= ROWS_EACH) or min(1, len(found))
    ids = [chunk.id for chunk in found[:many]]
    if ids:
        for column in (chunks.c.id, row_records.c.chunk, chunk_rows.c.chunk, requests.c.chunk):
            await tx.execute(delete(column.table).where(column.in_(ids)))
    return counts[many - 1] if many else 0, many == len(found) < RECORDS_EACH


async def _is_needed(tx: Connection, due: Due) -> bool:
    """Whether another operation uses the same file, or will remove it: of several, the last one does."""
    shares = (operations.c.blob.is_(None), operations.c.file_sha256 == due.file_sha256)
    others = (operations.c.number != due.number, or_(~IS_BEGUN, operations.c.number > due.number))
    return (await tx.execute(select(operations.c.number).where(*shares, *others).limit(1))).first() is not None


async def _release_blob(db: Database, due: Due, blob: str, tx: Connection) -> BlobDescriptor | None:
    """Note that the operation uses its blob no more; the blob, if it was made for operations and is over with that."""
    await blob_queries.lock(tx, blob)
    await blob_queries.drop_reference(tx, blob, reference_of(due.id))
    try:
        found = await blob_queries.find(tx, blob)
    except NotFound:
        return None
    if not found.is_temporary:
        return None
    if found.status == "Valid" and not await blob_queries.is_used(tx, blob):
        now = (await tx.execute(select(db.now()))).scalar_one()
        after = found.mark_as_deleted(from_micros(now), "its operation was pruned")
        return await blob_queries.move(db, tx, found, after, "deleted", actor="prune", cause=after.deletion_reason)
    return found if found.status == "Deleted" else None


async def _remove_rows(gone: Sequence[Due], tx: Connection) -> None:
    numbers = [due.number for due in gone]
    await blob_queries.forget_purged(tx, [due.blob for due in gone if due.blob is not None])
    await tx.execute(delete(operations).where(operations.c.number.in_(numbers), IS_BEGUN))
    await tx.execute(delete(limit_shares).where(limit_shares.c.operation.in_(numbers)))
