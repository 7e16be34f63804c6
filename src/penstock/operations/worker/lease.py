"""A worker's lease: it belongs to the worker, runs on the database's clock, and is renewed by a heartbeat.

The beat is sent from a thread and a connection of its own, so that a busy loop does not lose the lease; and it is
withheld while the loop is stuck for too long (`stalls`), so that a step that never yields does not keep it for ever.
"""

from __future__ import annotations

import logging
import os
import socket

from sqlalchemy import delete, insert, update

from penstock.clock import Clock, Entropy
from penstock.db.connection import Connection
from penstock.db.database import Database
from penstock.operations.rows.start_limit import StartLimit
from penstock.operations.tables import workers
from penstock.operations.worker_records import host_name

__all__ = ["Lease"]


log = logging.getLogger("penstock.worker")


class Lease:
    """One worker's right to own chunks. The id is new at each start, so a restarted worker owns nothing."""

    def __init__(self, db: Database, clock: Clock, entropy: Entropy, *, lease_s: float, margin_s: float) -> None:
        self._db, self._clock = db, clock
        self._lease_s = lease_s
        self._start_ns = round((lease_s - margin_s) * 1e9)
        self.id = f"{socket.gethostname()[:20]}-{entropy.bits(64):016x}"
        self.start_limit = StartLimit(clock)  # not in the last seconds of a lease
        self._renewed_until_ns = 0

    def may_start(self) -> bool:
        """Whether user code may start now."""
        return self.start_limit.may_start()

    async def begin(self) -> None:
        """Announce the worker."""
        db = self._db

        async def announce(tx: Connection) -> None:
            await tx.execute(
                insert(workers).values(
                    id=self.id,
                    lease_until=db.now() + round(self._lease_s * 1e6),
                    started_at=db.now(),
                    host=host_name(),
                    process=os.getpid(),
                )
            )

        sent = self._clock.ticks_ns()
        await db.transaction(announce, "announce")
        self.start_limit.until_ns = self._renewed_until_ns = sent + self._start_ns

    async def beat(self, over: Database | None = None) -> bool:
        """Renew the lease; False when the worker is no longer known, so that it must begin again under a new id.

        `over` is a database handle of the calling thread's own.
        """
        db = over or self._db

        async def renew(tx: Connection) -> bool:
            lease_until = db.now() + round(self._lease_s * 1e6)
            done = await tx.execute(update(workers).where(workers.c.id == self.id).values(lease_until=lease_until))
            return done.rowcount == 1

        sent = self._clock.ticks_ns()
        is_known = await db.transaction(renew, "beat")
        if is_known:
            # Now, not when it was sent: the database may have been slow to hear of it.
            has_lapsed = self._clock.ticks_ns() > self.start_limit.until_ns
            self._renewed_until_ns = sent + self._start_ns
            # While it was over, others may have taken what we hold: see `confirm`.
            self.start_limit.until_ns = 0 if has_lapsed else self._renewed_until_ns
        return is_known

    @property
    def has_lapsed(self) -> bool:
        """Whether the lease was over before it was renewed, so that nothing may begin yet."""
        return self.start_limit.until_ns < self._renewed_until_ns

    @property
    def renewed_until_ns(self) -> int:
        """How far the lease has been renewed; take this before looking, for `confirm`."""
        return self._renewed_until_ns

    def confirm(self, renewed_until_ns: int) -> None:
        """We have looked what is still ours since that renewal; the rest was dropped."""
        self.start_limit.until_ns = max(self.start_limit.until_ns, renewed_until_ns)

    async def end(self) -> None:
        """Leave: whatever we still hold may be taken at once."""

        async def leave(tx: Connection) -> None:
            await tx.execute(delete(workers).where(workers.c.id == self.id))

        self.start_limit.until_ns = self._renewed_until_ns = 0
        await self._db.transaction(leave, "leave")
