"""A full disk is said once in the log, however often it is met, and once more when it is over."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from threading import Lock

__all__ = ["FullDisk", "disk_of"]

log = logging.getLogger("penstock.db")

AGAIN_S = 600.0  # so long after it was said, it is said again


class FullDisk:
    """What one process has said about one disk. Its database connections may belong to several threads."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic, self._lock = monotonic, Lock()
        self._point, self._said_at = "", 0.0
        self.is_full = False

    def met(self, point: str, error: Exception) -> None:
        """A transaction could not be committed for want of room."""
        with self._lock:
            now = self._monotonic()
            if self.is_full and now < self._said_at + AGAIN_S:
                return
            self.is_full, self._point, self._said_at = True, point, now
        log.error("%s; nothing is lost, work goes on when there is room again", error)

    def passed(self, point: str) -> None:
        """A transaction was committed. Another than the one that failed may be small enough to fit in all the same."""
        with self._lock:
            if not self.is_full or point != self._point:
                return
            self.is_full = False
        log.warning("there is room on the disk again; work goes on")


_DISKS: dict[str, FullDisk] = {}


def disk_of(place: str) -> FullDisk:
    """The disk of a database, the same for all of this process."""
    return _DISKS.setdefault(place, FullDisk())
