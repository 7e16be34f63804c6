"""Running one chunk: it is claimed with its operation's runtime, worked on as a task, or drained."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING

from penstock.errors import Fault, FileRejected, FileUnreadable, NotFound, Unavailable
from penstock.formats import Position, RawRow
from penstock.operations.chunk import store
from penstock.operations.chunk.owned import OwnedChunk, recover
from penstock.operations.chunk.packing import StoredRows, unpack_rows
from penstock.operations.draining import drain_chunk
from penstock.operations.moves import move
from penstock.operations.rows.runtime import Broken, CannotRun, OperationRuntime
from penstock.operations.running.actor import ChunkActor, working_state
from penstock.operations.running.chunk_progress import ChunkProgress
from penstock.operations.running.planning import Group, next_group
from penstock.operations.tables import operations
from penstock.operations.validating.drafts import Draft
from penstock.operations.validating.sources import Sources, pieces

if TYPE_CHECKING:
    from penstock.operations.worker.worker import Worker

__all__ = ["ChunkRunner"]


class ChunkRunner:
    """Runs chunks for one worker; which ones, somebody else says."""

    def __init__(self, worker: Worker) -> None:
        self._worker, self._db, self._owner = worker, worker.db, worker.lease.id

    async def start(self, owned: OwnedChunk) -> bool:
        """Claim a candidate and begin to work on it; False when it cannot be had now."""
        worker = self._worker
        if owned.operation in worker.set_aside and owned.operation_state != "Stopping":
            return False
        worker.actors[owned.id] = None
        work = None
        try:
            work = await self._prepare(owned)
        except (CannotRun, FileRejected, FileUnreadable, OSError) as error:
            await worker.troubles.put_aside(owned.operation, error)
        except (Broken, NotFound) as error:
            await worker.troubles.break_operation(owned.operation, str(error))
            return True  # the next tick drains it
        finally:
            if work is None:
                del worker.actors[owned.id]
        if work is None:
            return False
        worker.tasks.spawn(self._run(owned, work))
        return True

    async def _prepare(self, owned: OwnedChunk) -> Callable[[], Awaitable[object]] | None:
        """Claim a candidate and return the work to be done on it; None when it cannot be had now."""
        worker = self._worker
        if owned.operation_state == "Stopping":
            return partial(
                drain_chunk,
                self._db,
                owned,
                owner=self._owner,
                clock=worker.clock,
                definitions=worker.runtimes.definitions,
            )
        runtime = await worker.runtimes.get(owned.operation, owned.plan)
        with worker.limit_shares.claiming(owned.operation):
            return await self._begin(runtime, owned)

    async def _begin(self, runtime: OperationRuntime, owned: OwnedChunk) -> Callable[[], Awaitable[object]] | None:
        """Claim a chunk whose rows are to run, and make its actor; None when it cannot be had now."""
        worker = self._worker
        if not owned.is_raw and not await worker.limit_shares.take_part(runtime):
            worker.set_aside.for_a_moment(owned.operation, worker.settings.control_poll_s)
            return None
        if owned.operation_state == "Retrying":
            is_retrying = operations.c.state == "Retrying"
            await self._db.transaction(
                lambda tx: move(self._db, tx, owned.operation, "resumed", is_retrying, actor=self._owner), "resumed"
            )
        worker.stopped.pop(owned.operation, None)  # the claim reads the state anew; what comes after it counts
        actor = await self._claim(runtime, owned)
        if actor is None:
            return None
        worker.actors[owned.id] = actor
        runtime.is_cancelled = worker.stopped.get(owned.operation) == "Stopping"
        if worker.is_stopping:
            actor.halt("shutdown")
        elif owned.operation in worker.stopped:  # since we began to claim
            actor.halt(worker.stopped[owned.operation])
        elif not worker.runtimes.is_live(runtime):  # its lifespan has ended meanwhile
            actor.halt("Paused")
        return actor.run

    async def _claim(self, runtime: OperationRuntime, owned: OwnedChunk) -> ChunkActor | None:
        """Claim a chunk and make its actor; None when another was first or the operation has stopped.

        A fresh chunk gets its first intent in the same statement. In others, rows that were lost with the last owner
        are recovered.
        """
        worker = self._worker
        if runtime.columns != owned.columns:  # the runtime was made before the file was first opened
            runtime.use_columns(owned.columns)
        is_new = owned.version == 0 or (owned.ledger.is_fresh and not owned.is_raw)
        if owned.message_count == 0 and is_new:
            owned.ledger.base = worker.clock.now_us()
            group = next_group(owned, runtime.spans, now=owned.ledger.base, limit=worker.settings.flush_rows)
            is_whole = group is not None and len(group.rows) == owned.row_count
            progress = await self._progress(runtime, owned, is_whole=is_whole)
            if group is not None:
                owned.ledger.start(group.rows)
            return self._actor(progress, group) if await self._own(owned, write=group is not None) else None
        if not await self._own(owned, write=False):
            return None
        async with self._db.connection() as tx:
            owned.records = await store.records_of(tx, owned.id)
        recover(owned, worker.clock.now_us())
        return self._actor(await self._progress(runtime, owned), None)

    async def _own(self, owned: OwnedChunk, *, write: bool) -> bool:
        state, clock = working_state(owned), self._worker.clock
        return await store.own(self._db, owned, owner=self._owner, state=state, clock=clock, write=write)

    def _actor(self, progress: ChunkProgress, group: Group | None) -> ChunkActor:
        settings, turn = self._worker.settings, self._worker.shared_lock.turn
        return ChunkActor(self._db, progress, group, owner=self._owner, settings=settings, turn=turn)

    async def _progress(self, runtime: OperationRuntime, owned: OwnedChunk, *, is_whole: bool = False) -> ChunkProgress:
        """The chunk with its rows; `is_whole` when the first group has all rows, so that its job can read them."""
        sources = self._worker.sources
        if owned.data is not None:
            return ChunkProgress(runtime, owned, unpack_rows(owned.data))
        if owned.is_raw and is_whole and sources.is_local:
            progress = ChunkProgress(runtime, owned, StoredRows.of([]))
            progress.unread = pieces(sources.kept(runtime), owned)
            return progress
        rows, faults = await asyncio.to_thread(_reread, sources, runtime, owned)
        return ChunkProgress(runtime, owned, StoredRows.of(rows), faults)

    async def _run(self, owned: OwnedChunk, work: Callable[[], Awaitable[object]]) -> None:
        worker = self._worker
        try:
            if not owned.is_raw:
                await worker.troubles.take_up(owned.operation, had_trouble=owned.has_trouble)
            await work()
            if owned.is_raw:
                await self._have_read(owned)
        except Unavailable as error:
            worker.outage.failed("work", error)  # the chunk is given up within a second, and claimed again
        finally:
            worker.actors.pop(owned.id, None)
            worker.wake.set()

    async def _have_read(self, owned: OwnedChunk) -> None:
        """Set the operation aside if the file of a raw chunk could not be read; that shows while it is worked on."""
        worker = self._worker
        actor = worker.actors[owned.id]
        if actor is not None and actor.progress.unreadable is not None:
            await worker.troubles.put_aside(owned.operation, actor.progress.unreadable)
        else:
            await worker.troubles.take_up(owned.operation, had_trouble=owned.has_trouble)


def _reread(
    sources: Sources, runtime: OperationRuntime, owned: OwnedChunk
) -> tuple[list[RawRow], dict[int, list[Fault]]]:
    """The rows of a chunk from its source, and what the reader finds wrong with them.

    They were not stored yet, because nobody has validated them, or the operation keeps no row data.
    """
    draft = Draft(runtime, Position(owned.source_offset, owned.first_row))
    rows, faults = list[RawRow](), dict[int, list[Fault]]()
    with sources.opened(runtime) as reader:
        for batch in pieces(reader, owned):
            draft.add(batch)
            faults |= {len(rows) + i: found for i, found in batch.faults.items()}
            rows += batch.rows
    owned.unstored = draft.stored_rows()
    return rows, faults
