"""Committing exactly once, also when the connection breaks."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from penstock.clock import Clock
from penstock.db.connection import Connection
from penstock.db.database import CommitUnknown, Database
from penstock.errors import Unavailable

__all__ = ["never", "persist"]

T = TypeVar("T")

AWAY_S = 0.2  # between two tries to reach the database


async def never() -> bool:
    """The answer to `has_happened` for work that may be done twice without harm."""
    return False


async def persist(
    db: Database,
    work: Callable[[Connection], Awaitable[T]],
    point: str,
    *,
    has_happened: Callable[[], Awaitable[bool]],
    clock: Clock,
    patience_s: float,
) -> T:
    """Commit `work` once, and return what it returned.

    When the connection breaks at COMMIT, `has_happened` is asked. True: it is done. False may mean "not yet", for the
    server may still be committing. So `work` is repeated; once it has happened, a repeat must raise, any exception,
    and then `has_happened` is asked again. `Unavailable` when the database is away for longer than `patience_s`.
    """
    until = clock.monotonic() + patience_s
    answers: list[T] = []  # of the last try that reached COMMIT: not refused, so the earlier ones were rolled back

    async def keep(tx: Connection) -> None:
        answers[:] = [await work(tx)]

    was_unknown = False
    while True:
        try:
            if not (was_unknown and await has_happened()):
                await db.transaction(keep, point)
            return answers[0]
        except CommitUnknown:
            was_unknown = True
        except Unavailable:
            if clock.monotonic() >= until:
                raise
            await asyncio.sleep(AWAY_S)
        except Exception:
            if not was_unknown or not await has_happened():
                raise
            return answers[0]
