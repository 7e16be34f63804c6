"""What a worker does in the background: it looks for operations that pause or stop and for new messages of its chunks.

Every second some cheap reads; every few seconds a sweep for what was missed, and for workers that are dead.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from sqlalchemy import Select, bindparam, select, update

from penstock.db.connection import Connection
from penstock.db.database import Database
from penstock.errors import Unavailable
from penstock.operations.chunk.owned import GIVEN_UP
from penstock.operations.inbox import settling
from penstock.operations.moves import touch
from penstock.operations.pruning.applying import Retention
from penstock.operations.running.actor import Halt
from penstock.operations.tables import chunks, operations, workers
from penstock.operations.worker.limit_shares import remove_dead_shares
from penstock.operations.worker_records import remove_dead_workers
from penstock.services import Service

if TYPE_CHECKING:
    from penstock.operations.worker.worker import Worker

__all__ = ["LONG_DEAD_S", "BackgroundDuties"]

log = logging.getLogger("penstock.worker")

SWEEP_S = 5.0
CLOCK_CLOSE_NS = 20_000_000
CLOCK_LOOKS_MAX = 5
LONG_DEAD_S = 3600.0  # after so long a dead worker's record is removed, whatever its host


class BackgroundDuties:
    """The background tasks of one worker."""

    def __init__(self, worker: Worker, services: Sequence[Service] = ()) -> None:
        self._worker, self._db = worker, worker.db
        retention = Retention(worker.db, worker.files, worker.clock, keep=worker.settings.keep)
        self.services = (
            Service("clock", SWEEP_S, self.follow_clock),
            Service("retention", SWEEP_S, retention.tick),
            Service("idle operations", SWEEP_S, self._forget_idle),
            Service("dead workers", SWEEP_S, self.remove_dead),
            Service("waits beside signals", SWEEP_S, partial(settling.sweep, worker.db)),
            *services,
        )

    async def run(self) -> None:
        """Look round until cancelled."""
        while not _is_told_to_end():
            await asyncio.sleep(self._worker.settings.control_poll_s)
            try:
                await self.look_round()
                self._worker.outage.worked("background")
            except Unavailable as error:
                self._worker.outage.failed("background", error)

    async def listen(self) -> None:
        """Wake the worker when another process has left work, where the database notifies."""
        while self._db.dialect.hears and not _is_told_to_end():
            with contextlib.suppress(Unavailable):
                await self._db.listen(self._on_notified)
            self._worker.wake.set()  # a notification may have been missed meanwhile
            await asyncio.sleep(self._worker.settings.control_poll_s)

    def _on_notified(self) -> None:
        # A busy worker looks for more work whenever it has ended a chunk.
        if not (self._db.dialect.hears_itself and self._worker.is_busy):
            self._worker.wake.set()

    async def look_round(self) -> None:
        """Pass on to actors what has changed in the database; give up what we own there but do not work on."""
        worker, owner = self._worker, self._worker.lease.id
        renewed_until_ns, has_lapsed = worker.lease.renewed_until_ns, worker.lease.has_lapsed
        at_work = {chunk: actor for chunk, actor in worker.actors.items() if actor is not None}
        async with self._db.read() as tx:
            states = (await tx.send_listed(self._db.prepared(_states_of), {"numbers": [*worker.working]})).rows
            stopped: dict[int, Halt] = {number: state for number, state in states if state in ("Paused", "Stopping")}
            held = (await tx.send(_CHUNKS_OF, {"the_worker": owner})).rows
            read = (await tx.send(_READ_BY, {"the_worker": owner})).rows
            living = [id for (id,) in (await tx.send(self._db.prepared(_living))).rows]
        if owner in living:
            worker.rank, worker.live_workers = living.index(owner), len(living)
        mine = {chunk: fence for chunk, _, fence in held}
        for chunk, known in at_work.items():
            # Only actors that were at work before we read, and still are: what we read says nothing of the others.
            if worker.actors.get(chunk) is known and mine.get(chunk) != known.owned.fence:
                known.halt("lost")
            elif not worker.runtimes.is_live(known.runtime):
                known.halt("Paused")  # it is given back, and goes on with a pipeline that lives
                known.runtime.end()
        for reading in worker.readings.values():
            if reading is not None and not worker.runtimes.is_live(reading.runtime):
                reading.halt()
        await worker.limit_shares.look_round(worker.running, has_lapsed=has_lapsed)
        worker.lease.confirm(renewed_until_ns)
        for chunk, count, fence in held:
            actor = worker.actors.get(chunk)
            if actor is not None and actor.owned.fence == fence:
                actor.look(count)
            elif chunk not in worker.actors:
                await self._give_up_chunk(chunk, fence)
        for number, fence in read:
            if number not in worker.readings:
                await self._give_up_reading(number, fence)
        worker.stopped = stopped
        for number, state in stopped.items():
            worker.halt(state, number)

    async def _give_up_chunk(self, chunk: int, fence: int) -> None:
        """Give up a chunk that we own but do not work on: the answer to a claim or a release was lost.

        Rows may be in flight in it, so it is left as a dead worker leaves one: with an owner who is not there.
        """

        async def give_up(tx: Connection) -> None:
            mine = (chunks.c.id == chunk, chunks.c.fence == fence, chunks.c.owner == self._worker.lease.id)
            await tx.execute(update(chunks).where(*mine).values(owner=GIVEN_UP, version=chunks.c.version + 1))

        await self._db.transaction(give_up, "give_up")

    async def _give_up_reading(self, number: int, fence: int) -> None:
        async def give_up(tx: Connection) -> None:
            mine = (operations.c.fence == fence, operations.c.owner == self._worker.lease.id)
            await touch(tx, number, *mine, owner=None)

        await self._db.transaction(give_up, "give_up")

    async def serve(self, service: Service) -> None:
        """Do a service's passes for as long as the worker lives. One that fails is logged, and done again."""
        while not _is_told_to_end():
            await asyncio.sleep(max(service.every_s, self._worker.settings.control_poll_s))
            try:
                if await service.tick():
                    self._worker.wake.set()
                self._worker.outage.worked(service.name)
            except Unavailable as error:
                self._worker.outage.failed(service.name, error)
            except Exception:
                log.exception("the background service %r failed; it is tried again", service.name)

    async def _forget_idle(self) -> None:
        """Drop what is kept in memory of operations that wait or have ended."""
        worker = self._worker
        await worker.runtimes.forget_idle(worker.working)
        if None not in worker.actors.values():  # a chunk that is being claimed may be about to be read
            worker.sources.close(but={a.owned.operation for a in worker.actors.values() if a and a.owned.is_raw})

    async def remove_dead(self) -> bool:
        """Remove workers that died, so that their chunks can be claimed at once, and their shares of limits."""
        gone = await remove_dead_workers(self._db, long_dead_s=LONG_DEAD_S)
        await remove_dead_shares(self._db)
        return gone > 0

    async def follow_clock(self) -> None:
        """Set our clock by the database's, which due times and deadlines are on; the machine's may be off.

        An answer that took long says little, and waits that begin before a better one would time out too early.
        """
        if self._worker.clock.is_real:
            for _ in range(CLOCK_LOOKS_MAX):
                least_ns, most_ns = await self._db.clock_bounds()
                self._worker.clock.follow(least_ns, most_ns)
                if most_ns - least_ns <= CLOCK_CLOSE_NS:
                    break


def _is_told_to_end() -> bool:
    """Whether this task was cancelled, also if a driver made another error of it while its connection broke."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


_CHUNKS_OF = select(chunks.c.id, chunks.c.message_count, chunks.c.fence).where(
    chunks.c.owner == bindparam("the_worker")
)
_READ_BY = select(operations.c.number, operations.c.fence).where(operations.c.owner == bindparam("the_worker"))


def _states_of(db: Database) -> Select[Any]:
    return select(operations.c.number, operations.c.state).where(db.dialect.among(operations.c.number, "numbers"))


def _living(db: Database) -> Select[Any]:
    return select(workers.c.id).where(workers.c.lease_until >= db.now()).order_by(workers.c.id)
