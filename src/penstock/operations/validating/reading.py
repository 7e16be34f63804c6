"""Validating: read the file once, check every row, number the rows and store them in chunks.

One owner reads an operation, under the operation's own fence. Position and chunks commit together, so whoever
takes over after a crash goes on exactly behind the last stored row.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, aclosing
from typing import Any, BinaryIO, TypeVar

from sqlalchemy import ColumnElement, Insert, bindparam, case, delete, func, insert, select, update

from penstock.db.connection import Connection
from penstock.db.database import Database
from penstock.errors import FileRejected, Unavailable
from penstock.formats import Batch, Limits, Position, Reader
from penstock.operations.chunk.packing import SUSPECT_ROWS_MAX, chunk_size, largest_chunk, piece_size
from penstock.operations.chunk.persist import persist
from penstock.operations.chunk.records import StepRecord
from penstock.operations.chunk.store import NEW_ROWS, is_free
from penstock.operations.counts import Counts, breach
from penstock.operations.draining import give_back_reading
from penstock.operations.messages import cut
from penstock.operations.moves import Head, end_validation, head_of, move, sum_counts, touch
from penstock.operations.rows.judging import MayNotStart, check_batch, killed_its_validator
from penstock.operations.rows.runtime import OperationRuntime
from penstock.operations.tables import chunk_rows, chunks, operations, row_records
from penstock.operations.validating.drafts import Draft
from penstock.operations.validating.sources import Pieces, no_rows
from penstock.settings import Settings

__all__ = ["Reading", "take"]

# Readers that died: at first small batches are tried, then single rows; two more at one row, and it is called invalid.
ONE_BY_ONE = 2
CRASHES_MAX = 4
# Raw chunks left for each other worker: enough to keep it busy, few enough that the reader validates some too.
RAW_CHUNKS_EACH = 8

# The columns that are sent along are set too.
_READ_ON = (
    update(operations)
    .where(
        operations.c.number == bindparam("the_operation"),
        operations.c.fence == bindparam("the_fence"),
        operations.c.rows_read == bindparam("read_before"),
        operations.c.state == "Validating",
    )
    .values(
        revision=operations.c.revision + 1,
        open_chunks=operations.c.open_chunks + bindparam("opened"),
        raw_chunks=operations.c.raw_chunks + bindparam("left_raw"),
    )
)
_NEW_RECORDS = insert(row_records)


def _new_chunk(db: Database) -> Insert:
    return insert(chunks).values(due_at=db.now()).returning(chunks.c.id)


T = TypeVar("T")
A = TypeVar("A")


class Interrupted(Exception):
    """Reading stopped before the end: paused, stopping, or taken over."""


async def take(db: Database, head: Head, *, owner: str, chunk_rows: int) -> Head | None:
    """Become the reader of an operation; None when another worker was first."""
    guards = (operations.c.fence == head.fence, operations.c.reading == "open", is_free(db, operations.c.owner))
    values: dict[str, Any] = {"owner": owner, "fence": operations.c.fence + 1}

    async def claim(tx: Connection) -> Head | None:
        if head.state == "Pending":
            return await move(db, tx, head.number, "picked_up", *guards, actor=owner, started_at=db.now(), **values)
        if head.owner is not None:
            # A reader died. The first time the whole chunk is suspect; then only the rows that were being checked.
            is_theirs = (operations.c.crashes == 0) | operations.c.suspect_row.is_not(None)
            values["crashes"] = operations.c.crashes + case((is_theirs, 1), else_=0)
            until = operations.c.rows_read + 1 + largest_chunk(chunk_rows)
            values["suspect_until"] = func.coalesce(operations.c.suspect_until, until)
        return await touch(tx, head.number, *guards, **values, suspect_row=None)

    return await db.transaction(claim, "claim_reading")


class Reading:
    """One pass over one file by its owner."""

    def __init__(
        self,
        db: Database,
        runtime: OperationRuntime,
        head: Head,
        *,
        owner: str,
        settings: Settings,
        turn: Callable[[bool], AbstractAsyncContextManager[None]],
        helpers: Callable[[], int],
        grace_s: Callable[[], float | None],
        is_local: bool,
    ) -> None:
        self.db, self.runtime, self.head, self.owner = db, runtime, head, owner
        self.helpers, self.raw_chunks = helpers, head.raw_chunks
        self.limits, self.settings, self.turn = Limits(row_bytes_max=settings.row_bytes_max), settings, turn
        self._is_local = is_local
        self.crashes, self.suspect_until = head.crashes, head.suspect_until or 0
        self.is_halted = False
        self._grace_s = grace_s  # how long a validator may go on after a halt; None for as long as it likes
        self._cut_off_at: float | None = None  # on the loop's clock
        self._judging: asyncio.Timeout | None = None  # of the batch that is being judged
        self.counts = Counts()
        self.rows_read = head.rows_read

    def halt(self) -> None:
        """Check no further row, and give the operation back; a validator that still runs is cut off after the grace."""
        self.is_halted = True
        grace_s = self._grace_s()
        if grace_s is None:
            return
        at = asyncio.get_running_loop().time() + grace_s
        if self._cut_off_at is None or at < self._cut_off_at:
            self._cut_off_at = at
            if self._judging is not None and not self._judging.expired():
                self._judging.reschedule(at)

    async def run(self, source: BinaryIO) -> None:
        """Read from the last stored position to the end, then let the rows run; or stop when halted or taken over."""
        try:
            reader = await asyncio.to_thread(self.runtime.open_reader, source, self.limits)
            self.runtime.use_columns(reader.columns)
            async with self.db.connection() as tx:
                self.counts = await sum_counts(tx, self.head.number)
            await self._read(reader)
            if not (self.rows_read or self.runtime.definition.options.allow_empty):
                query = select(operations.c.file_name).where(operations.c.number == self.head.number)
                async with self.db.connection() as tx:
                    name = str((await tx.execute(query)).scalar_one())
                raise no_rows(self.runtime.definition, name, reader.columns)
            await self._seal()
        except FileRejected as error:
            with contextlib.suppress(Interrupted):
                await self._reject(str(error))
        except Interrupted:
            with contextlib.suppress(Unavailable):
                await give_back_reading(self.db, self.head, actor=self.owner)

    async def _read(self, reader: Reader) -> None:
        pending: asyncio.Task[None] | None = None
        try:
            async with aclosing(self._drafts(reader)) as drafts:
                async for some in drafts:
                    if pending is not None:
                        await pending
                    self._raise_on_breach(some)
                    # The next chunk is read and checked while these are stored.
                    pending = asyncio.create_task(self._append(some, reader.columns))
                    if self.crashes:
                        await pending
            if pending is not None:
                await pending
        except BaseException:
            if pending is not None:
                pending.cancel()
                await asyncio.gather(pending, return_exceptions=True)
            raise

    async def _drafts(self, reader: Reader) -> AsyncGenerator[list[Draft], None]:
        """The file in chunks: some that are left raw for other workers, then one that is validated here, and so on."""
        pieces = Pieces(reader, Position.parse(self.head.position) if self.head.position else None)
        while drafts := await self._read_by(self._skipped, pieces) or await self._draft(pieces):
            yield drafts

    async def _read_by(self, read: Callable[[A], T], given: A) -> T:
        """Read from the file: on the loop's own thread, unless that would make the loop wait for a network."""
        return read(given) if self._is_local else await asyncio.to_thread(read, given)

    def _skipped(self, pieces: Pieces) -> list[Draft]:
        """The next chunks, raw and not read, if other workers can validate them and the format can skip rows."""
        drafts: list[Draft] = []
        while (start := pieces.start) is not None and self._is_left_to_others():
            end = pieces.skip(self._next_size(start))
            if end is None:
                break
            draft = Draft(self.runtime, start, is_raw=True)
            draft.end = end
            drafts.append(draft)
            self.raw_chunks += 1
        return drafts

    async def _draft(self, pieces: Pieces) -> list[Draft]:
        """The next chunk, read piece by piece; none at the end of the file."""
        draft: Draft | None = None
        size = self._next_size(pieces.start)
        piece = piece_size(size)
        while (batch := await self._read_by(pieces.take, piece)) is not None:
            if not self._may_go_on():
                raise Interrupted
            draft = draft or Draft(self.runtime, batch.start, is_raw=not pieces.can_skip and self._is_left_to_others())
            draft.add(batch, () if draft.is_raw else await self._check(batch))
            if draft.rows > size - piece or draft.source_bytes >= self.limits.batch_bytes_max // 2:
                break
            await asyncio.sleep(0)  # let other tasks run
        self.raw_chunks += draft is not None and draft.is_raw
        return [] if draft is None else [draft]

    def _may_go_on(self) -> bool:
        return not self.is_halted and self.runtime.may_start()

    def _next_size(self, start: Position | None) -> int:
        if self.crashes:
            return SUSPECT_ROWS_MAX if self.crashes == 1 else 1
        # Messages for rows that wait are settled chunk by chunk, so their chunks stay small.
        may_grow = not any(step.kind in ("poll", "signal") for step in self.runtime.definition.steps)
        return chunk_size(start.row - 1 if start else 0, self.settings.chunk_rows, may_grow=may_grow)

    def _is_left_to_others(self) -> bool:
        """Whether the next chunk is left to other workers: there are some, and they have few raw chunks to do."""
        options = self.runtime.definition.options
        has_limits = options.max_errors is not None or options.max_error_rate is not None
        return not (self.crashes or has_limits) and self.raw_chunks < RAW_CHUNKS_EACH * self.helpers()

    async def _check(self, batch: Batch) -> list[StepRecord]:
        """Judge a batch; where readers have died, it is stored as suspect in its turn, in case another dies here."""
        if self.crashes >= CRASHES_MAX and len(batch.rows) == 1:
            return killed_its_validator(self.runtime, batch, self.crashes)
        is_suspect = self.crashes > 0
        try:
            # Not a task of its own: only the worker's tasks are safe from a validator that cancels the one it runs in.
            async with asyncio.timeout_at(self._cut_off_at) as self._judging, self.turn(is_suspect):
                if is_suspect and self._may_go_on():
                    await self._suspect(batch)
                return await check_batch(self.runtime, batch, self._may_go_on)
        except MayNotStart:
            raise Interrupted from None
        except TimeoutError:
            if self._judging is not None and self._judging.expired():
                raise Interrupted from None
            raise
        finally:
            self._judging = None

    async def _suspect(self, batch: Batch) -> None:
        async def suspect(tx: Connection) -> None:
            await self._touch(tx, suspect_row=batch.start.row)

        await self._persist(suspect, "suspect", lambda _: False)

    def _raise_on_breach(self, drafts: Sequence[Draft]) -> None:
        for draft in drafts:
            self.counts += draft.counts
            self.rows_read += draft.rows
        reason = breach(self.runtime.definition.options, failed=self.counts.unsuccessful, judged=self.rows_read)
        if reason:
            raise FileRejected(f"stopped while validating: {reason}", code="too_many_errors")

    async def _append(self, drafts: Sequence[Draft], names: tuple[str, ...] | None) -> None:
        before, end = drafts[0].start.row - 1, drafts[-1].end
        made = [(draft.columns(), draft.stored_rows(), draft.records) for draft in drafts]
        # These rows are no longer suspect; the other suspect ones go on being checked in small batches or one by one.
        crashes = min(self.crashes, ONE_BY_ONE) if end.row < self.suspect_until else 0

        async def append(tx: Connection) -> int:
            read = {
                "position": str(end),
                "rows_read": end.row - 1,
                "columns": names,
                "opened": sum(columns["is_open"] for columns, *_ in made),
                "left_raw": sum(columns["is_raw"] for columns, *_ in made),
                "crashes": crashes,
                "suspect_row": None,
                "suspect_until": self.suspect_until if crashes else None,
            }
            place = {"the_operation": self.head.number, "the_fence": self.head.fence, "read_before": before}
            # First: a reader that has taken over, or an earlier try of ours, may have stored these very chunks.
            if (await tx.send(_READ_ON, {**read, **place})).matched != 1:
                raise Interrupted
            for each in made:
                await self._insert(tx, *each)
            if not self.helpers():
                return 0
            await self.db.ring(tx)
            return (await head_of(tx, self.head.number)).raw_chunks

        self.raw_chunks = await self._persist(append, "append", lambda head: head.position == str(end))
        self.crashes = crashes

    async def _touch(self, tx: Connection, *guards: ColumnElement[bool], **values: Any) -> Head:
        """Write to the operation that we read; `Interrupted` when it is not ours, or not validated any more."""
        mine = (operations.c.fence == self.head.fence, operations.c.state == "Validating")
        head = await touch(tx, self.head.number, *mine, *guards, **values)
        if head is None:
            raise Interrupted
        return head

    async def _persist(
        self, work: Callable[[Connection], Awaitable[T]], point: str, has_done: Callable[[Head], bool]
    ) -> T:
        async def has_happened() -> bool:
            async with self.db.connection() as tx:
                head = await head_of(tx, self.head.number)
            if has_done(head):
                return True
            if head.fence != self.head.fence:
                raise Interrupted
            return False

        clock, patience_s = self.runtime.clock, self.settings.lease_s
        try:
            return await persist(self.db, work, point, has_happened=has_happened, clock=clock, patience_s=patience_s)
        except Unavailable:
            raise Interrupted from None

    async def _insert(
        self, tx: Connection, columns: Mapping[str, Any], rows: Mapping[str, Any] | None, records: Sequence[StepRecord]
    ) -> None:
        new_chunk = self.db.prepared(_new_chunk)
        (chunk,) = (await tx.send(new_chunk, {"operation": self.head.number, **columns})).one()
        if rows is not None:
            await tx.send(NEW_ROWS, {"chunk": chunk, **rows})
        if records:
            await tx.send(_NEW_RECORDS, [record.columns() | {"chunk": chunk} for record in records])

    async def _seal(self) -> None:
        async def seal(tx: Connection) -> None:
            head = await self._touch(
                tx,
                operations.c.reading == "open",
                reading="complete",
                owner=None,
                total_rows=operations.c.rows_read,
                open_chunks=operations.c.open_chunks - 1,
            )
            await end_validation(self.db, tx, head, actor=self.owner)

        await self._persist(seal, "seal", lambda head: head.reading == "complete")

    async def _reject(self, reason: str) -> None:
        number = self.head.number

        async def reject(tx: Connection) -> None:
            head = await move(
                self.db,
                tx,
                number,
                "rejected",
                operations.c.fence == self.head.fence,
                actor=self.owner,
                cause=cut(reason),
                error=cut(reason),
                reading="abandoned",
                owner=None,
                open_chunks=0,
                raw_chunks=0,
                rows_read=0,
            )
            if head is None:
                raise Interrupted
            # With the fence raised no owner of a chunk can write any more: nothing is left behind of what we delete.
            await tx.execute(update(chunks).where(chunks.c.operation == number).values(fence=chunks.c.fence + 1))
            mine = select(chunks.c.id).where(chunks.c.operation == number)
            await tx.execute(delete(row_records).where(row_records.c.operation == number))
            await tx.execute(delete(chunk_rows).where(chunk_rows.c.chunk.in_(mine)))
            await tx.execute(delete(chunks).where(chunks.c.operation == number))

        await self._persist(reject, "reject", lambda head: head.reading == "abandoned")
