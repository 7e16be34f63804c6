"""Events are numbered when they are first read, not when they are written.

A transaction that wrote its move first may commit last. Whoever read a later one and went on behind it would never see
the first; so a move gets its number once it is there for all to see, under the lock of one counter.
"""

from __future__ import annotations

from functools import partial

from sqlalchemy import func, select, update

from penstock.db.connection import Connection
from penstock.db.database import Database
from penstock.journal.tables import counters, transitions

__all__ = ["number_new", "start_counter"]

NUMBERED_EACH = 1000  # in one transaction

_EVENTS = counters.c.name == "events"
_NEW = select(transitions.c.sequence).where(transitions.c.position.is_(None))
# In the order of the index, so that PostgreSQL does not search the table for what it believes to be frequent.
_ANY_NEW = _NEW.order_by(transitions.c.position).limit(1)


async def number_new(db: Database) -> None:
    """Number every move that is committed and has no number yet, in the order in which they were written."""
    async with db.read() as tx:
        is_new = (await tx.execute(_ANY_NEW)).first() is not None
    last: int | None = 0 if is_new else None
    while last is not None:
        last = await db.transaction(partial(_number_some, db, last), "number_events")


async def start_counter(db: Database, tx: Connection) -> None:
    """Make the counter where there is none, at the last number that was given out; before moves are removed."""
    last = (await tx.execute(select(func.coalesce(func.max(transitions.c.position), 0)))).scalar_one()
    made = db.dialect.upsert(counters, key=("name",), update=())
    await tx.execute(made, [{"name": "events", "value": last}])


async def _number_some(db: Database, after: int, tx: Connection) -> int | None:
    """Number moves written behind `after`; where the next pass goes on, or None when this was the last."""
    number = await _lock_counter(db, tx)
    # Read without locks, then changed by their keys: MariaDB would wait here for moves that are not committed.
    some = _NEW.where(transitions.c.sequence > after).order_by(transitions.c.sequence).limit(NUMBERED_EACH)
    found = (await tx.execute(some)).scalars().all()
    if found:
        # Between two of them may be others that are not committed yet: numbers rise, and some are left out.
        ahead = number + 1 - found[0]
        numbered = update(transitions).where(transitions.c.sequence.in_(found))
        await tx.execute(numbered.values(position=transitions.c.sequence + ahead))
        await tx.execute(update(counters).where(_EVENTS).values(value=found[-1] + ahead))
    return found[-1] if len(found) == NUMBERED_EACH else None


async def _lock_counter(db: Database, tx: Connection) -> int:
    """The last number that was given out; nobody else gives out any until the commit."""
    lock = update(counters).where(_EVENTS).values(value=counters.c.value)
    if (await tx.execute(lock)).rowcount == 0:
        await start_counter(db, tx)
        await tx.execute(lock)
    return int((await tx.execute(select(counters.c.value).where(_EVENTS))).scalar_one())
