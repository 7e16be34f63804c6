"""Deliveries that were settled long ago are removed, with their lines in the log; what was erased is not told."""

from __future__ import annotations

from collections.abc import Collection

from sqlalchemy import delete, select, update

from penstock.db.connection import Connection
from penstock.db.database import Database
from penstock.journal.numbering import start_counter
from penstock.journal.tables import transitions
from penstock.outbox.claiming import cancel_open
from penstock.outbox.states import DELIVERY
from penstock.outbox.storing import lock_outbox
from penstock.outbox.tables import deliveries, subscriptions

__all__ = ["erase_texts", "remove_old"]

REMOVED_EACH = 500
DAY_US = 86_400_000_000
# Of the data of an event, what says nothing of a person.
KEPT = ("id", "operationId", "name", "event", "previousStatus", "status", "of", "after")


async def erase_texts(db: Database, tx: Connection, subjects: Collection[str], *, actor: str) -> None:
    """Take what may be personal out of all events about these subjects, also of those that are still to be sent.

    Who was to be told of one of them alone is forgotten.
    """
    await lock_outbox(db, tx)
    alone = subscriptions.c.subject.in_(subjects)
    theirs = deliveries.c.subscription.in_(select(subscriptions.c.id).where(alone))
    await cancel_open(db, tx, theirs, cause="what it tells of was erased", actor=actor)
    await tx.execute(delete(subscriptions).where(alone))
    query = select(deliveries.c.number, deliveries.c.body).where(deliveries.c.subject.in_(subjects))
    for row in (await tx.execute(query.order_by(deliveries.c.number))).all():
        data = {name: value for name, value in row.body["data"].items() if name in KEPT}
        body = {**row.body, "data": {**data, "actor": "", "cause": None, "isErased": True}}
        await tx.execute(update(deliveries).where(deliveries.c.number == row.number).values(body=body))


async def remove_old(db: Database, *, days: float) -> int:
    """Remove some deliveries that were settled so long ago; how many that were."""

    async def work(tx: Connection) -> int:
        is_old = deliveries.c.modified_at < db.now() - round(days * DAY_US)
        query = select(deliveries.c.id).where(is_old, deliveries.c.state.in_(sorted(DELIVERY.settled)))
        some = query.order_by(deliveries.c.modified_at).limit(REMOVED_EACH)
        ids = (await tx.execute(some.with_for_update())).scalars().all()  # or one may be sent again meanwhile
        if ids:
            await start_counter(db, tx)  # or the numbers of moves that are removed could be given out again
            is_mine = (transitions.c.machine == DELIVERY.name) & transitions.c.subject.in_(ids)
            await tx.execute(delete(transitions).where(is_mine))
            await tx.execute(delete(deliveries).where(deliveries.c.id.in_(ids)))
        return len(ids)

    return await db.transaction(work, "delivery_purge")
