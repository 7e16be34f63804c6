"""A worker's lease: until when it may own chunks, on the database's clock. A heartbeat renews it.

The heartbeat has a thread and a connection of its own, so that a busy loop does not lose the lease. It pauses while the
loop is stuck for too long (`vitals`), so that a step that never yields does not keep the lease for ever.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from typing import Any

from sqlalchemy import Insert, Update, bindparam, delete, insert, update

from penstock.clock import Clock, Entropy
from penstock.db.database import Database
from penstock.operations.rows.gates import StartLimit
from penstock.operations.tables import workers
from penstock.operations.worker_records import host_name

__all__ = ["Lease"]


class Lease:
    """One worker's right to own chunks. The id is new at each start, so a restarted worker owns nothing."""

    def __init__(
        self, db: Database, clock: Clock, entropy: Entropy, *, lease_s: float, margin_s: float, code: Mapping[str, Any]
    ) -> None:
        self._db, self._clock = db, clock
        self._lease_s, self._code = lease_s, code
        self._start_ns = round((lease_s - margin_s) * 1e9)
        self.id = f"{socket.gethostname()[:20]}-{entropy.bits(64):016x}"
        self.start_limit = StartLimit(clock)  # not in the last seconds of a lease
        self.renewed_until_ns = 0  # read this before the check that `confirm` needs

    def may_start(self) -> bool:
        """Whether user code may start now."""
        return self.start_limit.may_start()

    async def begin(self) -> None:
        """Store the worker's record, with its lease."""
        own = {"id": self.id, "host": host_name(), "process": os.getpid(), "code": self._code}
        given = {**own, "lease_us": round(self._lease_s * 1e6)}
        sent = self._clock.ticks_ns()
        await self._db.single(self._db.prepared(_announced), given, "register_worker")
        self.start_limit.until_ns = self.renewed_until_ns = sent + self._start_ns

    async def beat(self, over: Database | None = None) -> bool:
        """Renew the lease; False when the worker is no longer known, so that it must begin again under a new id.

        `over` is a database handle of the calling thread's own.
        """
        db = over or self._db
        given = {"the_worker": self.id, "lease_us": round(self._lease_s * 1e6)}
        sent = self._clock.ticks_ns()
        is_known = (await db.single(db.prepared(_renewed), given, "beat")).matched == 1
        if is_known:
            # By the time of the answer, not of the request: the database may have been slow.
            has_lapsed = self._clock.ticks_ns() > self.start_limit.until_ns
            self.renewed_until_ns = sent + self._start_ns
            # While it was over, others may have claimed what we own: see `confirm`.
            self.start_limit.until_ns = 0 if has_lapsed else self.renewed_until_ns
        return is_known

    @property
    def has_lapsed(self) -> bool:
        """Whether the lease was over before it was renewed, so that nothing may begin yet."""
        return self.start_limit.until_ns < self.renewed_until_ns

    def confirm(self, renewed_until_ns: int) -> None:
        """Allow starts up to that renewal: since then we have checked what is still ours, and dropped the rest."""
        self.start_limit.until_ns = max(self.start_limit.until_ns, renewed_until_ns)

    async def end(self) -> None:
        """Remove the worker's record: what it still owns can be claimed at once."""
        self.start_limit.until_ns = self.renewed_until_ns = 0
        await self._db.single(_LEFT, {"the_worker": self.id}, "unregister_worker")


_LEFT = delete(workers).where(workers.c.id == bindparam("the_worker"))


def _announced(db: Database) -> Insert:
    lease_until = db.now() + bindparam("lease_us", type_=workers.c.lease_until.type)
    return insert(workers).values(lease_until=lease_until, started_at=db.now())


def _renewed(db: Database) -> Update:
    lease_until = db.now() + bindparam("lease_us", type_=workers.c.lease_until.type)
    return update(workers).where(workers.c.id == bindparam("the_worker")).values(lease_until=lease_until)
