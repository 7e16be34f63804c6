"""Removing operations that ended long ago: their records, in short transactions, then their file, then their own row.

Once its removal has begun, an operation is gone for callers and cannot be retried (`stop_outcome` is Removed, `reading`
abandoned). Its row goes last; so what was cut off in between is found and finished by the next purge.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate, repeat

from sqlalchemy import ColumnElement, case, delete, func, or_, select

from penstock.blobs import queries as blob_queries
from penstock.blobs.model import BlobDescriptor
from penstock.blobs.storage import Storage
from penstock.blobs.sweeping import clear
from penstock.blobs.tables import rows as blobs
from penstock.clock import Clock, from_micros
from penstock.db.connection import Connection
from penstock.db.database import Database
from penstock.errors import FileUnreadable, NotFound
from penstock.journal.numbering import start_counter
from penstock.journal.tables import transitions
from penstock.operations.model import Purged
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

__all__ = ["Retention", "purge", "purgeable", "reference_of"]

log = logging.getLogger("penstock")

OPERATIONS_EACH = 100  # emptied before their files are looked at and their rows go
ROWS_EACH = 5000  # in one transaction, with their records; at least one chunk
RECORDS_EACH = 1000  # of each other table, in one transaction
PASS_OPERATIONS = 10  # by a worker at a time, for it has more to do
PASS_TRANSACTIONS = 10
LOOK_AGAIN_S = 3600.0
DAY_US = 86_400_000_000

_IS_OVER = operations.c.state.in_(sorted(OPERATION.settled))
_IS_BEGUN = operations.c.stop_outcome.is_not_distinct_from(REMOVED)


@dataclass(frozen=True, slots=True)
class _Due:
    """An operation to be removed."""

    number: int
    id: str
    file_key: str
    file_sha256: str
    blob: str | None
    is_begun: bool


def reference_of(operation: str) -> str:
    """How the blob of an operation names what uses it."""
    return f"operation:{operation}"


async def purge(db: Database, files: Storage, before: int) -> Purged:
    """Remove every operation that settled before an instant with all that is stored about it, the oldest first.

    A retry that comes before its removal has begun wins.
    """
    work, last = _Purge(db, files, before), 0
    while found := await work.due(after=last, limit=OPERATIONS_EACH):
        last = await work.remove(found, repeat(None))
    await asyncio.to_thread(files.remove_stale)
    return work.done


async def purgeable(db: Database, before: int) -> Purged:
    """What `purge` would remove now."""
    due = _is_due(before)
    file = func.coalesce(operations.c.blob, operations.c.file_sha256)
    freed = (
        select(func.max(operations.c.file_bytes).label("size"))
        .outerjoin(blobs, blobs.c.id == operations.c.blob)
        .where(operations.c.blob.is_(None) | (blobs.c.is_temporary == 1))
        .group_by(file)
        .having(func.sum(case((due, 0), else_=1)) == 0)
        .subquery()
    )
    async with db.read() as tx:
        counted = select(func.count(), func.coalesce(func.sum(operations.c.rows_read), 0)).where(due)
        many, rows = (await tx.execute(counted)).one()
        size = (await tx.execute(select(func.coalesce(func.sum(freed.c.size), 0)))).scalar_one()
    return Purged(operations=many, rows=int(rows), file_bytes=int(size))


class Retention:
    """Purges by a worker: small passes, one after the other, if a setting says how long operations are kept."""

    def __init__(self, db: Database, files: Storage, clock: Clock, *, days: float) -> None:
        self._db, self._files, self._clock, self._days = db, files, clock, days
        self._last, self._next_look = 0, 0.0

    async def tick(self) -> None:
        """Remove some of what is too old; when nothing more is, look again after a while."""
        if not self._days or self._clock.monotonic() < self._next_look:
            return
        work = _Purge(self._db, self._files, self._clock.now_us() - round(self._days * DAY_US))
        found = await work.due(after=self._last, limit=PASS_OPERATIONS)
        if found:
            self._last = await work.remove(found, repeat(None, PASS_TRANSACTIONS)) or self._last
            return
        self._last, self._next_look = 0, self._clock.monotonic() + LOOK_AGAIN_S
        await asyncio.to_thread(self._files.remove_stale)


def _is_due(before: int) -> ColumnElement[bool]:
    return or_(_IS_OVER & (operations.c.finished_at < before), _IS_BEGUN)


@dataclass(slots=True)
class _Purge:
    """A purge of what settled before an instant, and what it has removed so far."""

    db: Database
    files: Storage
    before: int
    done: Purged = field(default_factory=Purged)

    async def due(self, *, after: int, limit: int) -> list[_Due]:
        """The next operations to be removed, by number."""
        names = ("number", "id", "file_key", "file_sha256", "blob")
        columns = (*(operations.c[name] for name in names), operations.c.stop_outcome)
        is_due = (_is_due(self.before), operations.c.number > after)
        async with self.db.read() as tx:
            found = await tx.execute(select(*columns).where(*is_due).order_by(operations.c.number).limit(limit))
            return [
                _Due(row.number, row.id, row.file_key, row.file_sha256, row.blob, row.stop_outcome == REMOVED)
                for row in found
            ]

    async def remove(self, found: Sequence[_Due], budget: Iterator[None]) -> int:
        """Remove operations while the budget of transactions lasts; the number of the last one dealt with, or 0."""
        emptied, last = [], 0
        for due in found:
            if due.is_begun or await self.db.transaction(partial(self._begin, due), "purge_begin"):
                if not await self._empty(due, budget):
                    break
                emptied.append(due)
            last = due.number
        await self._end(emptied)
        return last

    async def _begin(self, due: _Due, tx: Connection) -> bool:
        """From now on the operation is gone for callers; False when it was retried, or another purge was first."""
        is_old = operations.c.finished_at < self.before
        if await touch(tx, due.number, _IS_OVER, is_old, stop_outcome=REMOVED, reading="abandoned") is None:
            return False
        await start_counter(self.db, tx)  # or the numbers of moves that are removed could be given out again
        return True

    async def _empty(self, due: _Due, budget: Iterator[None]) -> bool:
        """Remove all records of an operation but its row; False when the budget is spent before that."""
        has_removed = False
        for _ in budget:
            rows, records, is_empty = await self.db.transaction(partial(_remove_some, due), "purge")
            self.done.rows += rows
            has_removed |= bool(rows or records)
            if is_empty:
                self.done.operations += has_removed
                return True
        return False

    async def _end(self, emptied: Sequence[_Due]) -> None:
        """Remove the files that nobody else uses, then the rows of operations that have nothing else left."""
        if not emptied:
            return
        async with self.db.read() as tx:
            keepers = await _keepers(tx, {due.file_sha256 for due in emptied if due.blob is None})
        gone = []
        for due in emptied:
            if due.blob is not None:
                is_ready = await self._let_go_of_blob(due, due.blob)
            else:
                # Of several operations with one file that are being removed, the last one removes the file.
                is_ready = keepers.get(due.file_sha256, 0) > due.number or await self._remove_file(due)
            if is_ready:
                gone.append(due)
        if gone:
            await self.db.transaction(partial(_remove_rows, gone), "purge_end")

    async def _let_go_of_blob(self, due: _Due, blob: str) -> bool:
        """Use a blob no more, and remove its bytes if it was made for the operation and nobody else needs it."""
        try:
            over = await self.db.transaction(partial(_release_blob, self.db, due, blob), "purge_blob")
            if over is not None and over.has_bytes:
                await clear(self.db, self.files, over)
                self.done.file_bytes += over.size_bytes or 0
        except (OSError, FileUnreadable) as error:
            log.warning("the file of operation %s cannot be removed: %s", due.id, error)
            self.done.files_left += 1
            return False
        return True

    async def _remove_file(self, due: _Due) -> bool:
        """Remove an operation's file; False when it must wait for a later purge."""
        try:
            size = await asyncio.to_thread(self.files.remove, due.file_key)
        except (OSError, FileUnreadable) as error:
            log.warning("the file of operation %s cannot be removed: %s", due.id, error)
            size = None
        self.done.file_bytes += size or 0
        self.done.files_left += size is None
        return size is not None


async def _remove_some(due: _Due, tx: Connection) -> tuple[int, int, bool]:
    """Remove a slice of an operation's records: how many rows and other records, and whether that was all."""
    if await touch(tx, due.number, _IS_BEGUN) is None:
        return 0, 0, True  # another purge has ended it
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


async def _remove_chunks(due: _Due, tx: Connection) -> tuple[int, bool]:
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


async def _keepers(tx: Connection, digests: set[str]) -> dict[str, float]:
    """By file: the highest number of an operation that uses it; of one that stays, beyond all numbers."""
    stays = func.sum(case((_IS_BEGUN, 0), else_=1))
    shares = operations.c.blob.is_(None), operations.c.file_sha256.in_(digests)
    query = select(operations.c.file_sha256, func.max(operations.c.number), stays)
    found = await tx.execute(query.where(*shares).group_by(operations.c.file_sha256))
    return {digest: float("inf") if staying else highest for digest, highest, staying in found}


async def _release_blob(db: Database, due: _Due, blob: str, tx: Connection) -> BlobDescriptor | None:
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
        after = found.mark_as_deleted(from_micros(now), "its operation was purged")
        return await blob_queries.move(db, tx, found, after, "deleted", actor="purge", cause=after.deletion_reason)
    return found if found.status == "Deleted" else None


async def _remove_rows(gone: Sequence[_Due], tx: Connection) -> None:
    numbers = [due.number for due in gone]
    await blob_queries.forget_purged(tx, [due.blob for due in gone if due.blob is not None])
    await tx.execute(delete(operations).where(operations.c.number.in_(numbers), _IS_BEGUN))
    await tx.execute(delete(limit_shares).where(limit_shares.c.operation.in_(numbers)))
