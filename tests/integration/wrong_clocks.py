"""Machines whose wall clock is wrong, or is set while they work."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from time import time_ns
from typing import Any

from patience import HANG_S
from sqlalchemy import select

from penstock import Penstock
from penstock.clock import SystemClock
from penstock.db.database import Database
from penstock.settings import Settings

__all__ = ["HOUR_S", "Machine", "at_work", "instant", "opened", "until"]

HOUR_S = 3600.0


class Machine(SystemClock):
    """A machine that was booted once, and whose wall clock is so many seconds off."""

    def __init__(self, wrong_s: float = 0.0, boot: str | None = "this boot") -> None:
        self.wrong_s, self._boot = wrong_s, boot

    @property
    def boot(self) -> str | None:
        return self._boot

    def now_ns(self) -> int:
        return time_ns() + round(self.wrong_s * 1e9)


@asynccontextmanager
async def opened(url: str, folder: Path, machine: Machine, *kinds: object) -> AsyncIterator[Penstock]:
    """A process on that machine."""
    settings = Settings(
        database_url=url,
        storage_url=str(folder / "files"),
        wake_poll_s=0.02,
        heartbeat_s=0.05,
        lease_s=600,  # long enough for any machine, and much less than a clock is wrong
    )
    async with Penstock.open(operations=kinds, settings=settings, clock=machine) as penstock:
        yield penstock


@asynccontextmanager
async def at_work(penstock: Penstock) -> AsyncIterator[str]:
    """A worker of this process runs meanwhile; its id."""
    stop = asyncio.Event()
    async with penstock.worker() as worker:
        working = asyncio.create_task(worker.run(stop))
        try:
            yield worker.lease.id
        finally:
            stop.set()
            await working


async def instant(db: Database) -> float:
    """Seconds since 1970 on the database's clock."""
    async with db.connection() as connection:
        return (await connection.execute(select(db.now()))).scalar_one() / 1e6


async def until(look: Callable[[], Coroutine[Any, Any, Any]]) -> Any:
    """Look until something is there; a worker brings it about."""
    async with asyncio.timeout(HANG_S):
        while not (found := await look()):  # noqa: ASYNC110  # it happens in the worker
            await asyncio.sleep(0.005)
        return found
