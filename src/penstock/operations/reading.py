"""Validating: read the file once, check every row, number the rows and store them in chunks.

One owner reads an operation, under the operation's own fence. Position and chunks commit together, so whoever
takes over after a crash goes on exactly behind the last stored row.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, aclosing
from dataclasses import asdict, dataclass
from typing import Any, BinaryIO

from sqlalchemy import delete, insert, select
from sqlalchemy.ext.asyncio import AsyncConnection

from penstock.db.database import Database
from penstock.errors import Fault, FileRejected
from penstock.formats import Batch, Limits, Position, Reader, open_reader
from penstock.operations.chunks import is_free
from penstock.operations.decide import cut, describe, error_group
from penstock.operations.draining import abandon
from penstock.operations.execution import Execution
from penstock.operations.held import Story, pack_rows
from penstock.operations.ledger import FAILED, INVALID, Counts, Ledger
from penstock.operations.outcomes import faults_json
from penstock.operations.referee import Head, finish_if_over, move, sum_counts, touch
from penstock.operations.tables import chunk_rows, chunks, operations, row_records
from penstock.operations.thresholds import breach
from penstock.operations.validation import ask_validators

__all__ = ["Reading", "check_batch", "take"]


class Interrupted(Exception):
    """Reading stopped before the end: paused, stopping, or taken over."""


@dataclass(slots=True)
class Checked:
    """One batch with every row judged, ready to be stored."""

    batch: Batch
    ledger: Ledger
    stories: list[Story]
    counts: Counts


async def take(db: Database, head: Head, *, owner: str) -> Head | None:
    """Become the reader of an operation; None when somebody else was first."""
    guards = (operations.c.fence == head.fence, operations.c.reading == "open", is_free(db, operations.c.owner))
    values: dict[str, Any] = {"owner": owner, "fence": operations.c.fence + 1}

    async def claim(tx: AsyncConnection) -> Head | None:
        if head.state == "Pending":
            return await move(db, tx, head.number, "picked_up", *guards, actor=owner, started_at=db.now(), **values)
        crashed = int(head.owner is not None)
        return await touch(tx, head.number, *guards, **values, crashes=operations.c.crashes + crashed)

    return await db.transaction(claim)


class Reading:
    """One pass over one file by its owner."""

    def __init__(
        self,
        db: Database,
        execution: Execution,
        head: Head,
        *,
        owner: str,
        limits: Limits,
        chunk_rows: int,
        turn: Callable[[], AbstractAsyncContextManager[None]],
    ) -> None:
        self.db, self.execution, self.head, self.owner = db, execution, head, owner
        self.limits, self.chunk_rows, self.turn = limits, chunk_rows, turn
        self.is_halted = False
        self.counts = Counts()
        self.rows_read = head.rows_read

    def halt(self) -> None:
        """Stop behind the batch in hand and give the operation back."""
        self.is_halted = True

    async def run(self, source: BinaryIO) -> None:
        """Read from the last stored position to the end, then let the rows run; or stop when halted or overruled."""
        try:
            reader = await asyncio.to_thread(
                open_reader,
                source,
                format=self.execution.file_format,
                schema=self.execution.definition.row.schema,
                limits=self.limits,
            )
            self.execution.use_columns(reader.columns)
            async with self.db.read() as tx:
                self.counts = await sum_counts(tx, self.head.number)
            await self._read(reader)
            await self._seal()
        except FileRejected as error:
            with contextlib.suppress(Interrupted):
                await self._reject(str(error))
        except Interrupted:
            await self._give_back()

    async def _give_back(self) -> None:
        """Somebody else may go on reading, or nobody when the operation is stopping."""

        async def give_back(tx: AsyncConnection) -> None:
            if await abandon(self.db, self.head, tx, actor=self.owner) is None:
                await touch(tx, self.head.number, operations.c.fence == self.head.fence, owner=None)

        await self.db.transaction(give_back)

    async def _read(self, reader: Reader) -> None:
        start = Position.parse(self.head.position) if self.head.position else None
        batches = reader.batches(self.chunk_rows, start)
        pending: asyncio.Task[None] | None = None
        async with aclosing(_ahead(batches)) as stream:
            try:
                async for batch in stream:
                    if self.is_halted:
                        raise Interrupted
                    async with self.turn():
                        checked = await check_batch(self.execution, batch)
                    if pending is not None:
                        await pending
                    self._raise_on_breach(checked)
                    # The next batch is read and checked while this one is stored.
                    pending = asyncio.create_task(self._append(checked, reader.columns))
                if pending is not None:
                    await pending
            except BaseException:
                if pending is not None:
                    pending.cancel()
                    await asyncio.gather(pending, return_exceptions=True)
                raise

    def _raise_on_breach(self, checked: Checked) -> None:
        self.counts += checked.counts
        self.rows_read += len(checked.batch.rows)
        reason = breach(self.execution.definition.options, failed=self.counts.unsuccessful, processed=self.rows_read)
        if reason:
            raise FileRejected(f"stopped while validating: {reason}", code="too_many_errors")

    async def _append(self, checked: Checked, columns: tuple[str, ...] | None) -> None:
        end = checked.batch.end
        ledger, data = await asyncio.to_thread(self._pack, checked)

        async def append(tx: AsyncConnection) -> None:
            head = await touch(
                tx,
                self.head.number,
                operations.c.fence == self.head.fence,
                operations.c.state == "Validating",
                position=str(end),
                rows_read=end.row - 1,
                columns=columns,
                open_chunks=operations.c.open_chunks + int(not checked.ledger.is_over),
                crashes=0,
            )
            if head is None:
                raise Interrupted
            await self._insert(tx, checked, ledger, data)

        await self.db.transaction(append)

    def _pack(self, checked: Checked) -> tuple[bytes, bytes | None]:
        is_plain = not checked.counts.processed
        ledger = b"" if is_plain else checked.ledger.encode()
        return ledger, pack_rows(checked.batch.rows) if self.execution.definition.options.track_row_data else None

    async def _insert(self, tx: AsyncConnection, checked: Checked, ledger: bytes, data: bytes | None) -> None:
        start = checked.batch.start
        values = {
            "operation": self.head.number,
            "first_row": start.row,
            "row_count": len(checked.batch.rows),
            "source_offset": start.offset,
            "is_open": int(not checked.ledger.is_over),
            "due_at": self.db.now(),
            "ledger": ledger,
            **asdict(checked.counts),
        }
        key = (await tx.execute(insert(chunks).values(values))).inserted_primary_key
        assert key is not None
        if data is not None:
            await tx.execute(insert(chunk_rows).values(chunk=key[0], data=data))
        if checked.stories:
            await tx.execute(insert(row_records), [asdict(story) | {"chunk": key[0]} for story in checked.stories])

    async def _seal(self) -> None:
        mine = (operations.c.fence == self.head.fence,)

        async def seal(tx: AsyncConnection) -> Head:
            head = await move(
                self.db,
                tx,
                self.head.number,
                "validated",
                *mine,
                actor=self.owner,
                reading="complete",
                owner=None,
                total_rows=operations.c.rows_read,
                open_chunks=operations.c.open_chunks - 1,
            )
            if head is None:
                raise Interrupted
            return await finish_if_over(self.db, tx, head, actor=self.owner)

        await self.db.transaction(seal)

    async def _reject(self, reason: str) -> None:
        number = self.head.number

        async def reject(tx: AsyncConnection) -> None:
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
            mine = select(chunks.c.id).where(chunks.c.operation == number)
            await tx.execute(delete(row_records).where(row_records.c.operation == number))
            await tx.execute(delete(chunk_rows).where(chunk_rows.c.chunk.in_(mine)))
            await tx.execute(delete(chunks).where(chunks.c.operation == number))

        await self.db.transaction(reject)


async def _ahead(batches: Iterator[Batch]) -> AsyncGenerator[Batch, None]:
    """Batches read on a thread, so that a slow disk does not hold up the loop."""
    while (batch := await asyncio.to_thread(next, batches, None)) is not None:
        yield batch


async def check_batch(execution: Execution, batch: Batch) -> Checked:
    """Judge every row of a batch: the reader's faults, then the model, then validators, then `validate_row`."""
    definition, parse = execution.definition, execution.parse
    ledger = Ledger(len(batch.rows), len(definition.steps), execution.clock.now_us())
    checked = Checked(batch, ledger, [], Counts())
    known, rejects, rows = batch.faults, definition.row.rejects, batch.rows
    hooks = execution.validators
    for i, raw in enumerate(rows):
        if i in known:
            _reject_row(execution, checked, i, known[i])
            continue
        try:
            row = parse(raw)
        except rejects as error:
            _reject_row(execution, checked, i, definition.row.faults(error))
            continue
        if hooks and (objection := await ask_validators(execution, row)) is not None:
            _reject_row(execution, checked, i, objection.faults, objection.error_type)
    if checked.stories:
        checked.counts = ledger.counts()
    return checked


def _reject_row(
    execution: Execution, checked: Checked, i: int, faults: list[Fault], error_type: str = "Validation"
) -> None:
    checked.ledger.reject(i, INVALID if error_type == "Validation" else FAILED)
    message = describe(faults)
    key = execution.definition.row.key_of_raw(checked.batch.rows[i], execution.columns)
    checked.stories.append(
        Story(
            chunk=0,
            row=checked.batch.start.row + i,
            step=-1,
            operation=execution.number,
            state="Failed",
            at=execution.clock.now_us(),
            attempt=1,
            row_key=cut(key, 200) if key else None,
            error_type=error_type,
            error_group=error_group(message),
            message=message,
            faults=faults_json(faults),
        )
    )
