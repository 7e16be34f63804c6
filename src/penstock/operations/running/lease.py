"""A worker's lease: it belongs to the worker, runs on the database's clock, and is renewed by a heartbeat.

The beat is sent from a thread and a connection of its own, so that a busy loop does not lose the lease; and it is
withheld while the loop is stuck for too long (`stalls`), so that a step that never yields does not keep it for ever.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import threading
from collections.abc import Callable

from sqlalchemy import delete, insert, select, update

from penstock.clock import Clock, Entropy
from penstock.db.connection import Connection
from penstock.db.database import Database
from penstock.errors import PenstockError, Unavailable
from penstock.operations.running.gates import Refused
from penstock.operations.running.outage import Outage
from penstock.operations.tables import workers

__all__ = ["FOREVER", "Heart", "Lease", "LeaseOver", "StartLimit", "bury", "host_name", "is_process_alive"]

log = logging.getLogger("penstock.worker")

FOREVER = 2**63


class LeaseOver(Refused):
    """No time is left in our lease: user code may not start."""


class StartLimit:
    """Until when user code may start, in ticks. Whoever is about to call some looks here directly before the call.

    The limit is moved by another thread, so it is read anew each time.
    """

    __slots__ = ("_ticks_ns", "until_ns")

    def __init__(self, clock: Clock, until_ns: int = 0) -> None:
        self._ticks_ns, self.until_ns = clock.ticks_ns, until_ns

    def may_start(self) -> bool:
        """Whether user code may start now."""
        return self._ticks_ns() < self.until_ns

    def check(self) -> None:
        """Raise `LeaseOver` unless user code may start now."""
        if self._ticks_ns() >= self.until_ns:
            raise LeaseOver


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


class Heart:
    """Beats on a thread of its own until stopped, while `may_beat` says so.

    `on_lost` is called there when the lease is gone for good.
    """

    def __init__(
        self,
        lease: Lease,
        connect: Callable[[], Database],
        outage: Outage,
        *,
        beat_s: float,
        may_beat: Callable[[], bool],
        on_lost: Callable[[str], None],
    ) -> None:
        self._lease, self._connect, self._outage = lease, connect, outage
        self._beat_s, self._may_beat, self._on_lost = beat_s, may_beat, on_lost
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="penstock-heart", daemon=True)

    def start(self) -> None:
        """Begin to beat."""
        self._thread.start()

    def stop(self) -> None:
        """Beat no more; returns when the thread has ended."""
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        asyncio.run(self._beats())

    async def _beats(self) -> None:
        db = self._connect()
        try:
            while not await asyncio.to_thread(self._stop.wait, self._beat_s):
                if self._may_beat():
                    await self._beat(db)
        finally:
            await db.close()

    async def _beat(self, db: Database) -> None:
        try:
            if not await self._lease.beat(db):
                self._on_lost("this worker's record is gone from the database")
                self._stop.set()
            self._outage.worked("heartbeat")
        except Unavailable as error:
            # The lease runs on by itself; `may_start` says for how long.
            self._outage.failed("heartbeat", error)
        except PenstockError as error:
            log.error("heartbeat: %s", error)


def host_name() -> str:
    """This host, this boot, these process numbers: two processes with the same one can see each other."""
    boot, namespace = "", ""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            boot = file.read().strip()
        namespace = os.readlink("/proc/self/ns/pid")
    except OSError:
        return f"{socket.gethostname()}-{os.getpid()}"[:255]  # cannot be told: nobody is our neighbour
    return f"{socket.gethostname()}/{boot}/{namespace}"[:255]


def is_process_alive(process: int) -> bool:
    """Whether a process of this host still runs."""
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


async def bury(db: Database, *, long_dead_s: float) -> int:
    """Remove workers of this host whose process is gone, and any that are long dead; says how many were neighbours.

    Removing a record is what makes a lease end early: the dead worker's chunks can be claimed at once.
    """
    async with db.read() as tx:
        found = await tx.execute(select(workers.c.id, workers.c.process).where(workers.c.host == host_name()))
        gone = [worker for worker, process in found if not is_process_alive(process)]

    async def remove(tx: Connection) -> None:
        if gone:
            await tx.execute(delete(workers).where(workers.c.id.in_(gone)))
        await tx.execute(delete(workers).where(workers.c.lease_until < db.now() - round(long_dead_s * 1e6)))

    await db.transaction(remove, "bury")
    return len(gone)
