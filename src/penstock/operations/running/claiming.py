"""From a candidate to an actor at work: owning a chunk, reading its rows, recovering what was lost with its owner."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Generator
from contextlib import AbstractAsyncContextManager
from functools import partial

from penstock.blobs.store import FileStore
from penstock.clock import Clock
from penstock.db.connection import Connection
from penstock.db.database import Database
from penstock.errors import Fault
from penstock.formats import Batch, Limits, Position, RawRow, open_reader
from penstock.operations import chunks as store
from penstock.operations.drafts import Draft
from penstock.operations.held import Begun, Held, StoredRows, recover, unpack_rows
from penstock.operations.referee import state_of
from penstock.operations.rules.planning import Group, next_group, piece_size
from penstock.operations.running.actor import ChunkActor, Tempo, working_state
from penstock.operations.running.execution import Execution
from penstock.operations.running.executions import Broken
from penstock.operations.running.outcomes import Desk

__all__ = ["Claims"]


class NotRunning(Exception):
    """The operation was stopped or paused between the look and the claim."""


class Claims:
    """How one worker comes to own chunks."""

    def __init__(
        self,
        db: Database,
        files: FileStore,
        *,
        owner: str,
        clock: Clock,
        limits: Limits,
        tempo: Tempo,
        turn: Callable[[bool], AbstractAsyncContextManager[None]],
    ) -> None:
        self._db, self._files, self._owner, self._clock = db, files, owner, clock
        self._limits, self._tempo, self._turn = limits, tempo, turn

    async def claim(self, execution: Execution, held: Held) -> ChunkActor | None:
        """Own a chunk and prepare its work; None when another was first or the operation has stopped.

        A fresh chunk gets its first intent in the same statement.
        """
        if held.mail == 0 and (held.version == 0 or held.ledger.is_fresh):
            held.ledger.base = self._clock.now_us()
            group = next_group(held, execution.spans, now=held.ledger.base, limit=self._tempo.flush_rows)
            desk = await self._desk(execution, held, is_whole=group is not None and len(group.rows) == held.row_count)
            if group is not None:
                held.ledger.start(group.rows)
            return self._actor(desk, group) if await self._own(held, write=group is not None) else None
        if not await self._own(held, write=False):
            return None
        async with self._db.read() as tx:
            await store.load_stories(tx, held)
        recover(held, self._clock.now_us())
        return self._actor(await self._desk(execution, held), None)

    async def _own(self, held: Held, *, write: bool) -> bool:
        async def own(tx: Connection) -> bool:
            if not await store.claim(self._db, tx, held, owner=self._owner, write=write):
                return False
            if await state_of(tx, held.operation) != working_state(held):
                raise NotRunning
            return True

        try:
            is_ours = await self._db.transaction(own, "claim")
        except NotRunning:
            return False
        if is_ours:
            held.fence += 1
            held.version += int(write)
            held.begun = Begun.of(held.ledger) if write else Begun()
        return is_ours

    def _actor(self, desk: Desk, group: Group | None) -> ChunkActor:
        return ChunkActor(self._db, desk, group, owner=self._owner, tempo=self._tempo, turn=self._turn)

    async def _desk(self, execution: Execution, held: Held, *, is_whole: bool = False) -> Desk:
        """Where the chunk will be worked on; with all its rows, if it is whole."""
        if held.data is not None:
            return Desk(execution, held, unpack_rows(held.data))
        if held.is_raw and is_whole:
            self._files.open(execution.file_key).close()  # or we would find out too late that it is gone
            desk = Desk(execution, held, StoredRows.of([]))
            desk.source = partial(self._pieces, execution, held)
            return desk
        rows, faults = await asyncio.to_thread(self._reread, execution, held)
        return Desk(execution, held, StoredRows.of(rows), faults)

    def _reread(self, execution: Execution, held: Held) -> tuple[list[RawRow], dict[int, list[Fault]]]:
        """The rows of a chunk from its source, and what the reader finds wrong with them.

        They were not stored yet, because nobody has validated them, or the operation keeps no row data.
        """
        draft = Draft(execution, Position(held.source_offset, held.first_row))
        rows, faults = list[RawRow](), dict[int, list[Fault]]()
        for batch in self._pieces(execution, held):
            draft.add(batch)
            faults |= {len(rows) + i: found for i, found in batch.faults.items()}
            rows += batch.rows
        held.unstored = draft.finished().stored
        return rows, faults

    def _pieces(self, execution: Execution, held: Held) -> Generator[Batch]:
        """The rows of a chunk from its source, some hundreds at a time."""
        at, stop = Position(held.source_offset, held.first_row), held.first_row + held.row_count
        with self._files.open(execution.file_key) as source:
            reader = open_reader(
                source, format=execution.file_format, schema=execution.definition.row.schema, limits=self._limits
            )
            while at.row < stop:
                size = min(piece_size(held.row_count), stop - at.row)
                for batch in reader.batches(size, at):
                    yield batch
                    at = batch.end
                    if at.row + size > stop:
                        break
                else:
                    raise Broken(f"its file ends before row {at.row}, which was there when it was read")
