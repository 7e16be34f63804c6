"""A database that is away: logged once when it goes and once when it is back, whichever part notices, and how often."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from penstock.errors import DiskFull

__all__ = ["Outage"]

log = logging.getLogger("penstock.worker")


class Outage:
    """What the parts of one worker, on several threads, know about its database."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._lock = threading.Lock()
        self._failing: set[str] = set()
        self._since = 0.0

    def failed(self, part: str, error: Exception) -> None:
        """This part of the worker could not reach the database. A full disk is logged where it is met."""
        if isinstance(error, DiskFull):
            return
        with self._lock:
            if not self._failing:
                self._since = self._monotonic()
                log.warning("the database is away: %s; this is tried again until it is back", error)
            else:
                log.debug("the database is away for %s: %s", part, error)
            self._failing.add(part)

    def worked(self, part: str) -> None:
        """This part of the worker has reached the database."""
        if not self._failing:
            return
        with self._lock:
            if part in self._failing:
                self._failing.discard(part)
                if not self._failing:
                    log.warning("the database is back after %.1f s", self._monotonic() - self._since)
