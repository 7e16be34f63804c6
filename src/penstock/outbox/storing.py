"""Deliveries are written here: one for each event and each subscription that wants it, never two."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from sqlalchemy import Insert, func, or_, select, update

from penstock.clock import Clock, Entropy, operation_id
from penstock.db.connection import Connection
from penstock.db.database import Database
from penstock.journal.numbering import last_number, number_new
from penstock.journal.queries import Entry, numbered
from penstock.journal.tables import counters
from penstock.outbox.events import Event, Facts, event_of, wants
from penstock.outbox.states import ACTIVE, DELIVERY
from penstock.outbox.tables import deliveries, subscriptions
from penstock.outbox.verdicts import ATTEMPTS_MAX

__all__ = ["Describe", "Writer", "is_told", "lock_outbox", "subscribe"]

Describe = Callable[[Connection, Collection[str]], Awaitable[Mapping[str, Facts]]]
"""What is known of these subjects of one machine; those that are gone are left out."""

EVENTS_EACH = 200  # in one transaction
PASSES_MAX = 25  # in one tick
_OUTBOX = counters.c.name == "outbox"


async def subscribe(db: Database, tx: Connection, rows: Sequence[Mapping[str, Any]], **same: Any) -> None:
    """Store subscriptions: they are told of every move that is committed from now on, with this transaction too.

    One that is there already stays as it is.
    """
    common = {**same, "since": await last_number(tx), "created_at": db.now(), "modified_at": db.now()}
    for row in rows:
        made = db.dialect.upsert(subscriptions, key=("id",), update=())
        await tx.execute(made.values({**row, **common}))


async def lock_outbox(db: Database, tx: Connection) -> int:
    """Let nobody else write deliveries or end subscriptions until the commit; how far the log was followed.

    Who begins with it sees every delivery that was written for the subscriptions there were.
    """
    lock = update(counters).where(_OUTBOX).values(value=counters.c.value)
    if (await tx.execute(lock)).rowcount == 0:
        made = db.dialect.upsert(counters, key=("name",), update=())
        await tx.execute(made, [{"name": "outbox", "value": 0}])
        await tx.execute(lock)
    return int((await tx.execute(select(counters.c.value).where(_OUTBOX))).scalar_one())


class Writer:
    """Writes deliveries: for the moves of the transition log, and for events from elsewhere."""

    def __init__(
        self, db: Database, *, clock: Clock, entropy: Entropy, source: str, describe: Mapping[str, Describe]
    ) -> None:
        self._db, self._clock, self._entropy = db, clock, entropy
        self._source, self._describe = source, describe

    async def follow_log(self) -> int:
        """Write the deliveries for all moves that are committed; how many moves there were.

        Several processes may do so at once: who goes on from a position moves it, in the transaction that writes.
        """
        async with self._db.connection() as tx:
            if await _oldest(tx) is None:
                return 0
        await number_new(self._db)
        seen = 0
        for _ in range(PASSES_MAX):
            some = await self._db.transaction(self._follow_some, "outbox")
            seen += some
            if some < EVENTS_EACH:
                break
        return seen

    async def _follow_some(self, tx: Connection) -> int:
        position = await lock_outbox(self._db, tx)
        oldest = await _oldest(tx)
        if oldest is None:
            return 0
        # What nobody subscribed to is passed over without a look.
        found = await numbered(tx, since=max(position, oldest), limit=EVENTS_EACH)
        if not found:
            return 0
        await self.write(tx, await self.events_of(tx, found))
        moved = update(counters).where(_OUTBOX, counters.c.value == position).values(value=found[-1].position)
        assert (await tx.execute(moved)).rowcount == 1, "the row is locked"
        return len(found)

    async def events_of(self, tx: Connection, found: Sequence[Entry]) -> list[Event]:
        """The events that lines of the log stand for, of the machines that others are told of.

        Nobody is told of a subject that is gone, because nobody knows whose it was.
        """
        by_machine: dict[str, set[str]] = {}
        for entry in found:
            by_machine.setdefault(entry.machine, set()).add(entry.subject)
        facts = {
            machine: await describe(tx, by_machine[machine])
            for machine, describe in self._describe.items()
            if machine in by_machine
        }
        return [
            event_of(entry, facts[entry.machine][entry.subject])
            for entry in found
            if entry.subject in facts.get(entry.machine, ())
        ]

    async def write(self, tx: Connection, events: Sequence[Event]) -> int:
        """Write the deliveries of these events, in their order; how many there are.

        Subscriptions are read after the events were: one that was committed before an event was is among them.
        """
        subjects = {event.subject for event in events}
        if not subjects:
            return 0
        query = select(subscriptions).where(
            subscriptions.c.state == ACTIVE,
            or_(subscriptions.c.subject.is_(None), subscriptions.c.subject.in_(subjects)),
        )
        wanting = (await tx.execute(query.order_by(subscriptions.c.id))).all()
        rows = [self._row(event, each) for event in events for each in wanting if is_told(event, each)]
        if rows:
            await tx.execute(self._insertion(), await self._at_now(tx, rows))
        return len(rows)

    async def write_one(self, tx: Connection, event: Event, subscription: Any, *, attempts_max: int) -> str:
        """Write one delivery, whatever the subscription's filter; its id."""
        rows = await self._at_now(tx, [self._row(event, subscription) | {"attempts_max": attempts_max}])
        await tx.execute(self._insertion(), rows)
        return str(rows[0]["id"])

    def _insertion(self) -> Insert:
        # An event that was written before, by somebody whose commit was not answered, stays as it is.
        return self._db.dialect.upsert(deliveries, key=("subscription", "event_id"), update=())

    async def _at_now(self, tx: Connection, rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
        now = (await tx.execute(select(self._db.now()))).scalar_one()
        return [{**row, "due_at": now, "created_at": now, "modified_at": now} for row in rows]

    def _row(self, event: Event, subscription: Any) -> dict[str, Any]:
        return {
            "id": operation_id(self._clock, self._entropy),
            "tenant": subscription.tenant,
            "subscription": subscription.id,
            "event_id": event.id,
            "type": event.type,
            "subject": event.subject,
            "body": event.document(self._source),
            "state": DELIVERY.initial,
            "attempts": 0,
            "attempts_max": ATTEMPTS_MAX,
        }


async def _oldest(tx: Connection) -> int | None:
    """The number behind which somebody wants to be told; None when nobody does."""
    found: int | None = (await tx.send(_OLDEST)).one()[0]
    return found


_OLDEST = select(func.min(subscriptions.c.since)).where(subscriptions.c.state == ACTIVE)


def is_told(event: Event, subscription: Any) -> bool:
    """Whether a stored subscription is told of an event."""
    # The code of an application, and who is told of one operation alone, need no tenant to be told apart.
    is_of_all = subscription.channel == "handler" or subscription.subject is not None
    return (event.number == 0 or event.number > subscription.since) and wants(
        event,
        types=subscription.types,
        operation=subscription.operation,
        subject=subscription.subject,
        tenant=None if is_of_all else subscription.tenant,
    )
