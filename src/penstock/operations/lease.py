"""A worker's lease: it belongs to the worker, runs on the database's clock, and is renewed by a heartbeat."""

from __future__ import annotations

import os
import socket

from sqlalchemy import delete, insert, update
from sqlalchemy.ext.asyncio import AsyncConnection

from penstock.clock import Clock, Entropy
from penstock.db.database import Database
from penstock.errors import Unavailable
from penstock.operations.tables import chunks, workers

__all__ = ["Lease"]


class Lease:
    """One worker's right to own chunks. The id is new at each start, so a restarted worker owns nothing."""

    def __init__(self, db: Database, clock: Clock, entropy: Entropy, *, lease_s: float, margin_s: float) -> None:
        self._db, self._clock = db, clock
        self._lease_s, self._margin_s = lease_s, margin_s
        self.id = f"{socket.gethostname()[:20]}-{entropy.bits(64):016x}"
        self._until = 0.0

    def may_start(self) -> bool:
        """Whether user code may begin now: not in the last seconds of a lease, as our own clock tells."""
        return self._clock.monotonic() < self._until

    async def begin(self) -> None:
        """Announce the worker."""
        sent = self._clock.monotonic()
        lease_until = self._db.now() + round(self._lease_s * 1e6)

        async def announce(tx: AsyncConnection) -> None:
            await tx.execute(
                insert(workers).values(
                    id=self.id,
                    lease_until=lease_until,
                    started_at=self._db.now(),
                    host=socket.gethostname()[:255],
                    process=os.getpid(),
                )
            )

        await self._db.transaction(announce)
        self._until = sent + self._lease_s - self._margin_s

    async def beat(self) -> bool:
        """Renew the lease; False when the worker is no longer known, so that it must begin again under a new id."""
        sent = self._clock.monotonic()

        async def renew(tx: AsyncConnection) -> bool:
            lease_until = self._db.now() + round(self._lease_s * 1e6)
            done = await tx.execute(update(workers).where(workers.c.id == self.id).values(lease_until=lease_until))
            return done.rowcount == 1

        try:
            is_known = await self._db.transaction(renew)
        except Unavailable:
            return True  # the lease runs on; `may_start` says for how long
        if is_known:
            self._until = sent + self._lease_s - self._margin_s
        return is_known

    async def end(self) -> None:
        """Leave: whatever we still hold may be taken at once."""

        async def leave(tx: AsyncConnection) -> None:
            await tx.execute(update(chunks).where(chunks.c.owner == self.id).values(owner=None, due_at=self._db.now()))
            await tx.execute(delete(workers).where(workers.c.id == self.id))

        self._until = 0.0
        await self._db.transaction(leave)
