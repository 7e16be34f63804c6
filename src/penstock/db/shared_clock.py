"""The one clock of a SQLite file: ticks since the machine booted, and how far the time is ahead of them, stored in it.

So all processes tell the same time, whatever becomes of the wall clock once the first of them has asked it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from sqlalchemy import BigInteger, ColumnElement, bindparam, delete, func, select

from penstock.clock import NEGLIGIBLE_NS, Clock
from penstock.db.connection import Connection
from penstock.db.tables import clocks
from penstock.errors import Unavailable

if TYPE_CHECKING:
    from penstock.db.database import Database

__all__ = ["ahead_us", "asked", "share_clock", "shared_now"]

NEGLIGIBLE_US = NEGLIGIBLE_NS // 1000
# Asked for each time a file is opened, when compiling it would cost more than sending it.
STORED = f"SELECT ahead_us FROM {clocks.name} WHERE boot = ?"


def asked(ask: Callable[[], int]) -> ColumnElement[int]:
    """A number as SQL that is asked for when the statement is sent, not when it is built."""
    return bindparam(None, callable_=ask, type_=BigInteger, unique=True)


def shared_now(clock: Clock) -> ColumnElement[int]:
    """Microseconds since 1970 on the file's clock, as SQL; on the wall clock as long as the file has none."""
    ticks, wall = asked(lambda: clock.ticks_ns() // 1000), asked(clock.now_us)
    if clock.boot is None:
        return wall
    ahead = select(clocks.c.ahead_us).where(clocks.c.boot == clock.boot).scalar_subquery()
    return func.coalesce(ahead + ticks, wall)


async def ahead_us(connection: Connection, clock: Clock) -> int:
    """By how many microseconds the file's clock is ahead of our ticks."""
    stored = await _stored(connection, clock)
    return clock.offset_ns // 1000 if stored is None else stored


async def share_clock(
    db: Database,
    *,
    latest: Callable[[Connection], Awaitable[int]],
    is_in_use: Callable[[Connection], Awaitable[bool]],
) -> None:
    """See that this boot of the machine has its clock in the file, and that it does not stay behind the wall clock.

    The first process of a boot begins it with the wall clock's time, or with the `latest` instant the file knows when
    that is later. It is moved forward only while `is_in_use` finds no lease or wait that this would end; never back.
    Somebody who may only read the file goes by the wall clock until another has written.
    """
    clock = db.clock
    if not (db.dialect.is_file and clock.is_real and clock.boot):
        return

    async def is_behind(tx: Connection) -> bool:
        stored = await _stored(tx, clock)
        return stored is None or (stored + NEGLIGIBLE_US < clock.offset_ns // 1000 and not await is_in_use(tx))

    async def set_right(tx: Connection) -> None:
        if await is_behind(tx):
            await _set(db, tx, await latest(tx))

    if await db.look(is_behind):
        with suppress(Unavailable):
            await db.transaction(set_right, "clock")


async def _stored(connection: Connection, clock: Clock) -> int | None:
    return (await connection.exec_driver_sql(STORED, (clock.boot,))).scalar()


async def _set(db: Database, tx: Connection, latest_us: int) -> None:
    clock, boot = db.clock, db.clock.boot or ""
    ahead = max(clock.offset_ns // 1000, latest_us - clock.ticks_ns() // 1000)
    machine = boot.partition("/")[0]
    await tx.execute(delete(clocks).where(~clocks.c.boot.startswith(machine, autoescape=True)))
    await tx.execute(db.dialect.upsert(clocks, key=["boot"], update=["ahead_us"]), [{"boot": boot, "ahead_us": ahead}])
