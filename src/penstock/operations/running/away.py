"""What a worker says when the database does not take what it writes."""

from __future__ import annotations

import logging

from penstock.errors import DiskFull, Unavailable

__all__ = ["log_away"]

log = logging.getLogger("penstock.worker")


def log_away(error: Unavailable, what: str = "the database is away") -> None:
    """Say why it goes on later; that a disk is full was said when it was first met."""
    if not isinstance(error, DiskFull):
        log.warning("%s: %s", what, error)
