"""The heartbeat: a thread of its own that renews the lease."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable

from penstock.db.database import Database
from penstock.errors import PenstockError, Unavailable
from penstock.operations.worker.lease import Lease
from penstock.operations.worker.outage import Outage

__all__ = ["Heartbeat"]

log = logging.getLogger("penstock.worker")


class Heartbeat:
    """Renews a lease from a thread until stopped, as long as `may_beat` is true.

    `on_lost` is called on that thread when the lease is gone for good.
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
        self._thread = threading.Thread(target=self._run, name="penstock-heartbeat", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Stop the thread; returns when it has ended."""
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
            # The lease lasts for a while; `may_start` says for how long.
            self._outage.failed("heartbeat", error)
        except PenstockError as error:
            log.error("heartbeat: %s", error)
