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

__all__ = ["last_number", "number_new", "start_counter"]

NUMBERED_EACH = 5000  # in one transaction

_EVENTS = counters.c.name == "events"
_NEW = select(transitions.c.sequence).where(transitions.c.position.is_(None))
# In the order of the index: PostgreSQL would otherwise search the table for what it believes to be frequent.
_SOME_NEW = _NEW.order_by(transitions.c.position)


async def number_new(db: Database) -> None:
    """Number every move that is committed and has no number yet, in the order in which they were written."""
    async with db.connection() as tx:
        is_more = (await tx.execute(_SOME_NEW.limit(1))).first() is not None
    while is_more:
        is_more = await db.transaction(partial(_number_some, db), "number_events")


async def last_number(tx: Connection) -> int:
    """A number that every move committed from now on will be above."""
    counted = (await tx.execute(select(counters.c.value).where(_EVENTS))).scalar_one_or_none()
    if counted is None:
        counted = (await tx.execute(select(func.coalesce(func.max(transitions.c.position), 0)))).scalar_one()
    return int(counted)


async def start_counter(db: Database, tx: Connection) -> None:
    """Make the counter where there is none, at the last number that was given out; before moves are removed."""
    last = (await tx.execute(select(func.coalesce(func.max(transitions.c.position), 0)))).scalar_one()
    made = db.dialect.upsert(counters, key=("name",), update=())
    await tx.execute(made, [{"name": "events", "value": last}])


async def _number_some(db: Database, tx: Connection) -> bool:
    """Number the moves that were written first; whether there may be more."""
    number = await _lock_counter(db, tx)
    found = await _first_new(tx)
    if found:
        # Between two of them may be others that are not committed yet: numbers rise, and some are left out.
        ahead = number + 1 - found[0]
        numbered = update(transitions).where(transitions.c.sequence.in_(found))
        await tx.execute(numbered.values(position=transitions.c.sequence + ahead))
        await tx.execute(update(counters).where(_EVENTS).values(value=found[-1] + ahead))
    return len(found) == NUMBERED_EACH


async def _first_new(tx: Connection) -> list[int]:
    """The first moves without a number, as one statement sees them: what came before one of them is among them.

    Read without locks and then changed by their keys: MariaDB would wait here for moves that are not committed.
    """
    found = (await tx.execute(_SOME_NEW.limit(NUMBERED_EACH))).scalars().all()
    if len(found) == NUMBERED_EACH:  # there are others, which may come before these
        found = (await tx.execute(_NEW.order_by(transitions.c.sequence).limit(NUMBERED_EACH))).scalars().all()
    return sorted(found)


async def _lock_counter(db: Database, tx: Connection) -> int:
    """The last number that was given out; nobody else gives out any until the commit."""
    lock = update(counters).where(_EVENTS).values(value=counters.c.value)
    if (await tx.execute(lock)).rowcount == 0:
        await start_counter(db, tx)
        await tx.execute(lock)
    return int((await tx.execute(select(counters.c.value).where(_EVENTS))).scalar_one())
