"""The one clock of a SQLite file: ticks since the machine booted, and how far the time is ahead of them, stored in it.

So all processes tell the same time, whatever becomes of the wall clock once the first of them has asked it.
"""

from __future__ import annotations

from contextlib import suppress

from sqlalchemy import Select, delete, select

from penstock.clock import NEGLIGIBLE_NS
from penstock.db.connection import Connection
from penstock.db.database import Database
from penstock.db.tables import clocks
from penstock.errors import Unavailable

__all__ = ["share_clock"]

NEGLIGIBLE_US = NEGLIGIBLE_NS // 1000


async def share_clock(db: Database, *, latest: Select[int | None], is_in_use: Select[bool]) -> None:
    """See that this boot of the machine has its clock in the file, and that it does not stay behind the wall clock.

    The first process of a boot begins it with the wall clock's time, or with the `latest` instant the file knows when
    that is later. It is moved forward only while `is_in_use` finds nobody whose lease that would end, and never back.
    Somebody who may only read the file goes by the wall clock until another has written.
    """
    if not (db.dialect.is_file and db.clock.is_real and db.clock.boot):
        return

    async def is_behind(tx: Connection) -> bool:
        ahead_us = await _ahead(db, tx)
        if ahead_us is None:
            return True
        is_late = ahead_us + NEGLIGIBLE_US < db.clock.offset_ns // 1000
        return is_late and not (await tx.execute(is_in_use)).scalar_one()

    async def set_right(tx: Connection) -> None:
        if await is_behind(tx):
            await _set(db, tx, latest)

    if await db.look(is_behind):
        with suppress(Unavailable):
            await db.transaction(set_right, "clock")


async def _ahead(db: Database, tx: Connection) -> int | None:
    found = await tx.execute(select(clocks.c.ahead_us).where(clocks.c.boot == db.clock.boot))
    return found.scalar_one_or_none()


async def _set(db: Database, tx: Connection, latest: Select[int | None]) -> None:
    clock, boot = db.clock, db.clock.boot or ""
    latest_us = (await tx.execute(latest)).scalar() or 0
    ahead_us = max(clock.offset_ns // 1000, latest_us - clock.ticks_ns() // 1000)
    machine = boot.partition("/")[0]
    await tx.execute(delete(clocks).where(~clocks.c.boot.startswith(machine, autoescape=True)))
    await tx.execute(
        db.dialect.upsert(clocks, key=["boot"], update=["ahead_us"]), [{"boot": boot, "ahead_us": ahead_us}]
    )
