"""The threads beside a worker's loop: the heartbeat that renews its lease, and the watch for a loop that is stuck."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable

from penstock.clock import Clock
from penstock.db.database import Database
from penstock.operations.worker.heartbeat import Heartbeat
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
        self._lease, self._owns_process = lease, owns_process
        self._loop, self._on_lost = asyncio.get_running_loop(), on_lost
        self._loop_watch = LoopWatch(
            clock, warn_s=settings.stall_warning_s, stall_s=settings.stall_s, on_stall=self._has_stalled
        )
        self._heartbeat = Heartbeat(
            lease,
            lambda: Database.connect(settings.database_address, clock=clock, pool_size=1),
            outage,
            beat_s=settings.heartbeat_s,
            may_beat=lambda: not self._loop_watch.is_stalled,
            on_lost=self._lost,
        )

    def start(self) -> None:
        """Start both threads."""
        self._loop_watch.start()
        self._heartbeat.start()

    async def stop(self) -> None:
        """Stop both threads."""
        await asyncio.to_thread(self._heartbeat.stop)
        await asyncio.to_thread(self._loop_watch.stop)

    def loop_is_alive(self) -> None:
        """Called by a step that makes progress while it blocks the loop."""
        self._loop_watch.loop_is_alive()

    # --- called on the threads

    def _lost(self, why: str) -> None:
        log.critical("worker %s: %s", self._lease.id, why)
        self._loop.call_soon_threadsafe(self._on_lost, why)

    def _has_stalled(self, place: Place, stuck_s: float) -> None:
        what = f"worker {self._lease.id}: {place} has blocked the event loop for {stuck_s:.0f} s"
        if self._owns_process:
            log.critical("%s; the process ends, and its rows go to others", what, extra=place.fields())
            os._exit(os.EX_TEMPFAIL)  # nothing else stops a step that never yields; its row counts as lost
        log.error("%s; its lease is not renewed until the loop runs again", what, extra=place.fields())
