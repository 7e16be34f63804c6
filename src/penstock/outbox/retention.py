"""Deliveries that were settled long ago are removed, with their lines in the transition log."""

from __future__ import annotations

from sqlalchemy import delete, select

from penstock.db.connection import Connection
from penstock.db.database import Database
from penstock.journal.numbering import start_counter
from penstock.journal.tables import transitions
from penstock.outbox.states import DELIVERY
from penstock.outbox.tables import deliveries

__all__ = ["remove_old"]

REMOVED_EACH = 500
DAY_US = 86_400_000_000


async def remove_old(db: Database, *, days: float) -> int:
    """Remove some deliveries that were settled so long ago; how many that were."""

    async def work(tx: Connection) -> int:
        is_old = deliveries.c.modified_at < db.now() - round(days * DAY_US)
        query = select(deliveries.c.id).where(is_old, deliveries.c.state.in_(sorted(DELIVERY.settled)))
        ids = (await tx.execute(query.order_by(deliveries.c.modified_at).limit(REMOVED_EACH))).scalars().all()
        if ids:
            await start_counter(db, tx)  # or the numbers of moves that are removed could be given out again
            is_mine = (transitions.c.machine == DELIVERY.name) & transitions.c.subject.in_(ids)
            await tx.execute(delete(transitions).where(is_mine))
            await tx.execute(delete(deliveries).where(deliveries.c.id.in_(ids)))
        return len(ids)

    return await db.transaction(work, "delivery_purge")
