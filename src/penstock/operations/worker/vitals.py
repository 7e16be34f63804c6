"""The threads beside a worker's loop: the heartbeat that renews its lease, and the watch for a loop that is stuck."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from typing import TYPE_CHECKING

from penstock.db.database import Database
from penstock.errors import PenstockError, Unavailable
from penstock.operations.worker.stalls import LoopWatch, Place

if TYPE_CHECKING:
    from penstock.operations.worker.worker import Worker

__all__ = ["Vitals"]

log = logging.getLogger("penstock.worker")


class Vitals:
    """Both threads of a worker, made on its loop; the worker fails when its lease is gone for good.

    When the loop is stuck, a worker that owns its process ends it; another one does not renew its lease until the loop
    runs again.
    """

    def __init__(self, worker: Worker) -> None:
        self._worker, self._loop = worker, asyncio.get_running_loop()
        settings = worker.settings
        self._loop_watch = LoopWatch(
            worker.clock, warn_s=settings.stall_warning_s, stall_s=settings.stall_s, on_stall=self._has_stalled
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
        settings = self._worker.settings
        db = Database.connect(settings.database_address, clock=self._worker.clock, pool_size=1)
        try:
            while not await asyncio.to_thread(self._stop.wait, settings.heartbeat_s):
                if not self._loop_watch.is_stalled:
                    await self._beat(db)
        finally:
            await db.close()

    async def _beat(self, db: Database) -> None:
        worker = self._worker
        try:
            if not await worker.lease.beat(db):
                lost = Unavailable("this worker's record is gone from the database")
                log.critical("worker %s: %s", worker.lease.id, lost)
                self._loop.call_soon_threadsafe(worker.tasks.fail, lost)
                self._stop.set()
            worker.outage.worked("heartbeat")
        except Unavailable as error:
            # The lease lasts for a while; `may_start` says for how long.
            worker.outage.failed("heartbeat", error)
        except PenstockError as error:
            log.error("heartbeat: %s", error)

    def _has_stalled(self, place: Place, stuck_s: float) -> None:
        what = f"worker {self._worker.lease.id}: {place} has blocked the event loop for {stuck_s:.0f} s"
        if self._worker.owns_process:
            log.critical("%s; the process ends, and its rows go to others", what, extra=place.fields())
            os._exit(os.EX_TEMPFAIL)  # nothing else stops a step that never yields; its row counts as lost
        log.error("%s; its lease is not renewed until the loop runs again", what, extra=place.fields())
