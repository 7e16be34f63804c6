"""From a candidate to its actor: claim the chunk, read its rows, recover rows that were lost with the last owner."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

from penstock.clock import Clock
from penstock.db.database import Database
from penstock.errors import Fault
from penstock.formats import Position, RawRow
from penstock.operations.chunk import store
from penstock.operations.chunk.owned import OwnedChunk, recover
from penstock.operations.chunk.owning import own
from penstock.operations.chunk.packing import StoredRows, unpack_rows
from penstock.operations.rows.runtime import OperationRuntime
from penstock.operations.running.actor import ChunkActor, Timing, working_state
from penstock.operations.running.chunk_progress import ChunkProgress
from penstock.operations.running.planning import Group, next_group
from penstock.operations.validating.drafts import Draft
from penstock.operations.validating.sources import Sources, pieces

__all__ = ["Claims"]


class Claims:
    """Claims chunks for one worker."""

    def __init__(
        self,
        db: Database,
        sources: Sources,
        *,
        owner: str,
        clock: Clock,
        timing: Timing,
        turn: Callable[[bool], AbstractAsyncContextManager[None]],
    ) -> None:
        self._db, self._sources, self._owner, self._clock = db, sources, owner, clock
        self._timing, self._turn = timing, turn

    async def claim(self, runtime: OperationRuntime, owned: OwnedChunk) -> ChunkActor | None:
        """Claim a chunk and make its actor; None when another was first or the operation has stopped.

        A fresh chunk gets its first intent in the same statement.
        """
        if runtime.columns != owned.columns:  # the runtime was made before the file was first opened
            runtime.use_columns(owned.columns)
        is_new = owned.version == 0 or (owned.ledger.is_fresh and not owned.is_raw)
        if owned.message_count == 0 and is_new:
            owned.ledger.base = self._clock.now_us()
            group = next_group(owned, runtime.spans, now=owned.ledger.base, limit=self._timing.flush_rows)
            progress = await self._progress(
                runtime, owned, is_whole=group is not None and len(group.rows) == owned.row_count
            )
            if group is not None:
                owned.ledger.start(group.rows)
            return self._actor(progress, group) if await self._own(owned, write=group is not None) else None
        if not await self._own(owned, write=False):
            return None
        async with self._db.read() as tx:
            await store.load_records(tx, owned)
        recover(owned, self._clock.now_us())
        return self._actor(await self._progress(runtime, owned), None)

    async def _own(self, owned: OwnedChunk, *, write: bool) -> bool:
        state = working_state(owned)
        return await own(self._db, owned, owner=self._owner, state=state, clock=self._clock, write=write)

    def _actor(self, progress: ChunkProgress, group: Group | None) -> ChunkActor:
        return ChunkActor(self._db, progress, group, owner=self._owner, timing=self._timing, turn=self._turn)

    async def _progress(self, runtime: OperationRuntime, owned: OwnedChunk, *, is_whole: bool = False) -> ChunkProgress:
        """The chunk with its rows; `is_whole` when the first group has all rows, so that its job can read them."""
        if owned.data is not None:
            return ChunkProgress(runtime, owned, unpack_rows(owned.data))
        if owned.is_raw and is_whole and self._sources.is_local:
            progress = ChunkProgress(runtime, owned, StoredRows.of([]))
            progress.unread = pieces(self._sources.kept(runtime), owned)
            return progress
        rows, faults = await asyncio.to_thread(self._reread, runtime, owned)
        return ChunkProgress(runtime, owned, StoredRows.of(rows), faults)

    def _reread(self, runtime: OperationRuntime, owned: OwnedChunk) -> tuple[list[RawRow], dict[int, list[Fault]]]:
        """The rows of a chunk from its source, and what the reader finds wrong with them.

        They were not stored yet, because nobody has validated them, or the operation keeps no row data.
        """
        draft = Draft(runtime, Position(owned.source_offset, owned.first_row))
        rows, faults = list[RawRow](), dict[int, list[Fault]]()
        with self._sources.opened(runtime) as reader:
            for batch in pieces(reader, owned):
                draft.add(batch)
                faults |= {len(rows) + i: found for i, found in batch.faults.items()}
                rows += batch.rows
        owned.unstored = draft.finished().stored
        return rows, faults
