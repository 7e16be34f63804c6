"""Committing once, whatever the connection does."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from penstock.clock import Clock
from penstock.db.connection import Connection
from penstock.db.database import CommitUnknown, Database
from penstock.errors import Unavailable

__all__ = ["persist"]

T = TypeVar("T")

AWAY_S = 0.2  # between two tries to reach the database


async def persist(
    db: Database,
    work: Callable[[Connection], Awaitable[T]],
    point: str,
    *,
    has_happened: Callable[[], Awaitable[bool]],
    clock: Clock,
    patience_s: float,
) -> T | None:
    """Commit `work`; None when its answer was lost but it has happened.

    When the connection dies at COMMIT, `has_happened` looks: it says whether to go on or to do it again, or raises
    when the record is no longer ours. A database that stays away longer than our patience raises `Unavailable`.
    """
    until = clock.monotonic() + patience_s
    is_unknown = False
    while True:
        try:
            if is_unknown and await has_happened():
                return None
            is_unknown = False
            return await db.transaction(work, point)
        except CommitUnknown:
            is_unknown = True
        except Unavailable:
            if clock.monotonic() > until:
                raise
            await asyncio.sleep(AWAY_S)
