"""Running one chunk: it is claimed with its operation's runtime, worked on as a task, or drained."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial
from typing import TYPE_CHECKING

from penstock.errors import FileRejected, FileUnreadable, NotFound, Unavailable
from penstock.operations.chunk.owned import OwnedChunk
from penstock.operations.draining import drain_chunk
from penstock.operations.moves import move
from penstock.operations.rows.runtime import Broken, CannotRun
from penstock.operations.running.actor import Timing
from penstock.operations.running.claiming import Claims
from penstock.operations.tables import operations

if TYPE_CHECKING:
    from penstock.operations.worker.worker import Worker

__all__ = ["ChunkRunner"]


class ChunkRunner:
    """Runs chunks for one worker; which ones, somebody else says."""

    def __init__(self, worker: Worker) -> None:
        self._worker, self._db, self._owner = worker, worker.db, worker.lease.id
        settings = worker.settings
        timing = Timing(
            flush_s=settings.flush_s,
            flush_rows=settings.flush_rows,
            grace_s=settings.cancel_grace_s,
            shutdown_s=settings.shutdown_s,
            patience_s=settings.lease_s,
            poison_rows_max=settings.poison_rows_max,
        )
        self._claims = Claims(
            worker.db,
            worker.sources,
            owner=self._owner,
            clock=worker.clock,
            timing=timing,
            turn=worker.shared_lock.turn,
        )

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
        if not owned.is_raw and not await worker.limit_shares.take_part(runtime):
            worker.set_aside.for_a_moment(owned.operation, worker.settings.control_poll_s)
            return None
        if owned.operation_state == "Retrying":
            is_retrying = operations.c.state == "Retrying"
            await self._db.transaction(
                lambda tx: move(self._db, tx, owned.operation, "resumed", is_retrying, actor=self._owner), "resumed"
            )
        worker.stopped.pop(owned.operation, None)  # the claim reads the state anew; what comes after it counts
        actor = await self._claims.claim(runtime, owned)
        if actor is None:
            return None
        worker.actors[owned.id] = actor
        runtime.is_cancelled = worker.stopped.get(owned.operation) == "Stopping"
        if worker.is_stopping:
            actor.halt("shutdown")
        elif owned.operation in worker.stopped:  # since we began to claim
            actor.halt(worker.stopped[owned.operation])
        return actor.run

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
