"""From a candidate to an actor at work: owning a chunk, reading its rows, recovering what was lost with its owner."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

from penstock.clock import Clock
from penstock.db.database import Database
from penstock.errors import Fault
from penstock.formats import Position, RawRow
from penstock.operations import chunks as store
from penstock.operations.drafts import Draft
from penstock.operations.held import Held, StoredRows, recover, unpack_rows
from penstock.operations.rules.planning import Group, next_group
from penstock.operations.running.actor import ChunkActor, Tempo, working_state
from penstock.operations.running.execution import Execution
from penstock.operations.running.outcomes import Desk
from penstock.operations.running.owning import own
from penstock.operations.running.sources import Sources, pieces

__all__ = ["Claims"]


class Claims:
    """How one worker comes to own chunks."""

    def __init__(
        self,
        db: Database,
        sources: Sources,
        *,
        owner: str,
        clock: Clock,
        tempo: Tempo,
        turn: Callable[[bool], AbstractAsyncContextManager[None]],
    ) -> None:
        self._db, self._sources, self._owner, self._clock = db, sources, owner, clock
        self._tempo, self._turn = tempo, turn

    async def claim(self, execution: Execution, held: Held) -> ChunkActor | None:
        """Own a chunk and prepare its work; None when another was first or the operation has stopped.

        A fresh chunk gets its first intent in the same statement.
        """
        if execution.columns != held.columns:  # it was made before anybody had opened the file
            execution.use_columns(held.columns)
        is_new = held.version == 0 or (held.ledger.is_fresh and not held.is_raw)
        if held.mail == 0 and is_new:
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
        state = working_state(held)
        return await own(self._db, held, owner=self._owner, state=state, clock=self._clock, write=write)

    def _actor(self, desk: Desk, group: Group | None) -> ChunkActor:
        return ChunkActor(self._db, desk, group, owner=self._owner, tempo=self._tempo, turn=self._turn)

    async def _desk(self, execution: Execution, held: Held, *, is_whole: bool = False) -> Desk:
        """Where the chunk will be worked on; with all its rows, if it is whole."""
        if held.data is not None:
            return Desk(execution, held, unpack_rows(held.data))
        if held.is_raw and is_whole:
            desk = Desk(execution, held, StoredRows.of([]))
            desk.unread = pieces(self._sources.kept(execution), held)
            return desk
        rows, faults = await asyncio.to_thread(self._reread, execution, held)
        return Desk(execution, held, StoredRows.of(rows), faults)

    def _reread(self, execution: Execution, held: Held) -> tuple[list[RawRow], dict[int, list[Fault]]]:
        """The rows of a chunk from its source, and what the reader finds wrong with them.

        They were not stored yet, because nobody has validated them, or the operation keeps no row data.
        """
        draft = Draft(execution, Position(held.source_offset, held.first_row))
        rows, faults = list[RawRow](), dict[int, list[Fault]]()
        with self._sources.opened(execution) as reader:
            for batch in pieces(reader, held):
                draft.add(batch)
                faults |= {len(rows) + i: found for i, found in batch.faults.items()}
                rows += batch.rows
        held.unstored = draft.finished().stored
        return rows, faults
