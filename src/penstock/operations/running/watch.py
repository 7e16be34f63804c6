"""What a worker hears: operations that pause or stop, mail for its chunks, work rung in from elsewhere, and the dead.

Cheap reads, apart from the heartbeat, every second; and a sweep now and then for what everybody else may have missed.
"""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import replace
from typing import TYPE_CHECKING

from sqlalchemy import select, update

from penstock.db.connection import Connection
from penstock.errors import Unavailable
from penstock.operations.purging import Retention
from penstock.operations.referee import touch
from penstock.operations.running import mailroom
from penstock.operations.running.actor import Halt
from penstock.operations.running.lease import bury
from penstock.operations.running.limits import remove_dead_shares
from penstock.operations.tables import chunks, operations, workers

if TYPE_CHECKING:
    from penstock.operations.running.worker import Worker

__all__ = ["Watch"]

SWEEP_S = 5.0
LONG_DEAD_S = 3600.0


class Watch:
    """The ears of one worker."""

    def __init__(self, worker: Worker) -> None:
        self._worker, self._db = worker, worker.db
        self._next_sweep = 0.0
        self._retention = Retention(worker.db, worker.files, worker.clock, days=worker.settings.retention_days)

    async def run(self) -> None:
        """Look round for as long as the worker lives."""
        while True:
            await asyncio.sleep(self._worker.settings.control_poll_s)
            try:
                await self.look_round()
                await self._sweep_sometimes()
                self._worker.outage.worked("watch")
            except Unavailable as error:
                self._worker.outage.failed("watch", error)

    async def listen(self) -> None:
        """Hear at once of work that was left by another process, where the database can tell."""
        while self._db.dialect.hears:
            with contextlib.suppress(Unavailable):
                await self._db.listen(self._hear)
            self._worker.wake.set()  # whatever was rung meanwhile was not heard
            await asyncio.sleep(self._worker.settings.control_poll_s)

    def _hear(self) -> None:
        # A worker that is busy looks for more whenever it has ended a chunk.
        if not (self._db.dialect.hears_itself and self._worker.is_busy):
            self._worker.wake.set()

    async def look_round(self) -> None:
        """Tell actors of their mail and of operations that pause or stop; give up what is ours but not in hand."""
        worker, owner = self._worker, self._worker.lease.id
        renewed_until_ns, has_lapsed = worker.lease.renewed_until_ns, worker.lease.has_lapsed
        held_before = {chunk: actor for chunk, actor in worker.actors.items() if actor is not None}
        async with self._db.read() as tx:
            states = await tx.execute(
                select(operations.c.number, operations.c.state).where(operations.c.number.in_(worker.working))
            )
            stopped: dict[int, Halt] = {number: state for number, state in states if state in ("Paused", "Stopping")}
            owned = await tx.execute(select(chunks.c.id, chunks.c.mail, chunks.c.fence).where(chunks.c.owner == owner))
            mail = [tuple(row) for row in owned]
            reading = await tx.execute(
                select(operations.c.number, operations.c.fence).where(operations.c.owner == owner)
            )
            read = [tuple(row) for row in reading]
            alive = select(workers.c.id).where(workers.c.lease_until >= self._db.now()).order_by(workers.c.id)
            living = list((await tx.execute(alive)).scalars())
        if owner in living:
            worker.peers = replace(worker.peers, rank=living.index(owner), workers=len(living))
        mine = {chunk: fence for chunk, _, fence in mail}
        for chunk, holder in held_before.items():
            # One that has let go meanwhile is not in hand any more; who has claimed the chunk since was not looked at.
            if worker.actors.get(chunk) is holder and mine.get(chunk) != holder.held.fence:
                holder.halt("lost")
        await worker.limit_shares.look_round(worker.running, has_lapsed=has_lapsed)
        worker.lease.confirm(renewed_until_ns)
        for chunk, count, fence in mail:
            actor = worker.actors.get(chunk)
            if actor is not None and actor.held.fence == fence:
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
        """Let go of a chunk that is ours on disk but not in hand: the answer to a claim or a release was lost."""

        async def let_go(tx: Connection) -> None:
            mine = (chunks.c.id == chunk, chunks.c.fence == fence, chunks.c.owner == self._worker.lease.id)
            await tx.execute(update(chunks).where(*mine).values(owner=None, version=chunks.c.version + 1))

        await self._db.transaction(let_go, "give_up")

    async def _give_up_reading(self, number: int, fence: int) -> None:
        async def let_go(tx: Connection) -> None:
            mine = (operations.c.fence == fence, operations.c.owner == self._worker.lease.id)
            await touch(tx, number, *mine, owner=None)

        await self._db.transaction(let_go, "give_up")

    async def _sweep_sometimes(self) -> None:
        """Cover callers that died between storing a signal and waking its row, and workers that died beside us."""
        worker = self._worker
        if worker.clock.monotonic() < self._next_sweep:
            return
        self._next_sweep = worker.clock.monotonic() + SWEEP_S
        await self.follow_clock()
        await self._retention.tick()
        await worker.executions.forget_settled(worker.working)
        worker.sources.close(but=worker.executions.numbers)
        gone = await bury(self._db, long_dead_s=LONG_DEAD_S)
        await remove_dead_shares(self._db)
        if gone or await mailroom.sweep(self._db):
            worker.wake.set()

    async def follow_clock(self) -> None:
        """Due times and deadlines are on the database's clock; the machine's may be off."""
        if self._worker.clock.is_real:
            self._worker.clock.follow(*await self._db.clock_bounds())
