"""The threads beside a worker's loop: the heartbeat that renews its lease, and the watch for a loop that is stuck."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections.abc import Callable

from penstock.clock import Clock
from penstock.db.database import Database
from penstock.errors import PenstockError, Unavailable
from penstock.operations.worker.lease import Lease
from penstock.operations.worker.outage import Outage
from penstock.operations.worker.stalls import LoopWatch, Place
from penstock.settings import Settings

__all__ = ["Vitals"]

log = logging.getLogger("penstock.worker")


class Vitals:
    """Both threads of a worker, made on its loop. `on_lost` is called there when its lease is gone for good.

    When the loop is stuck, a worker that owns its process ends it; another one does not renew its lease until the loop
    runs again.
    """

    def __init__(
        self,
        lease: Lease,
        settings: Settings,
        clock: Clock,
        outage: Outage,
        *,
        owns_process: bool,
        on_lost: Callable[[str], None],
    ) -> None:
        self._lease, self._settings, self._clock, self._outage = lease, settings, clock, outage
        self._owns_process, self._loop, self._on_lost = owns_process, asyncio.get_running_loop(), on_lost
        self._loop_watch = LoopWatch(
            clock, warn_s=settings.stall_warning_s, stall_s=settings.stall_s, on_stall=self._has_stalled
        )
        self._stop = threading.Event()
        self._heartbeat = threading.Thread(
            target=lambda: asyncio.run(self._beats()), name="penstock-heartbeat", daemon=True
        )

    def start(self) -> None:
        """Start both threads."""
        self._loop_watch.start()
        self._heartbeat.start()

    async def stop(self) -> None:
        """Stop both threads; returns when they have ended."""
        self._stop.set()
        await asyncio.to_thread(self._heartbeat.join)
        await asyncio.to_thread(self._loop_watch.stop)

    def loop_is_alive(self) -> None:
        """Called by a step that makes progress while it blocks the loop."""
        self._loop_watch.loop_is_alive()

    # --- called on the threads

    async def _beats(self) -> None:
        """Renew the lease until stopped, as long as the loop is not stuck."""
        db = Database.connect(self._settings.database_address, clock=self._clock, pool_size=1)
        try:
            while not await asyncio.to_thread(self._stop.wait, self._settings.heartbeat_s):
                if not self._loop_watch.is_stalled:
                    await self._beat(db)
        finally:
            await db.close()

    async def _beat(self, db: Database) -> None:
        try:
            if not await self._lease.beat(db):
                why = "this worker's record is gone from the database"
                log.critical("worker %s: %s", self._lease.id, why)
                self._loop.call_soon_threadsafe(self._on_lost, why)
                self._stop.set()
            self._outage.worked("heartbeat")
        except Unavailable as error:
            # The lease lasts for a while; `may_start` says for how long.
            self._outage.failed("heartbeat", error)
        except PenstockError as error:
            log.error("heartbeat: %s", error)

    def _has_stalled(self, place: Place, stuck_s: float) -> None:
        what = f"worker {self._lease.id}: {place} has blocked the event loop for {stuck_s:.0f} s"
        if self._owns_process:
            log.critical("%s; the process ends, and its rows go to others", what, extra=place.fields())
            os._exit(os.EX_TEMPFAIL)  # nothing else stops a step that never yields; its row counts as lost
        log.error("%s; its lease is not renewed until the loop runs again", what, extra=place.fields())
