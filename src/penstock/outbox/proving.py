"""What `verify` and `doctor` look at: whether every event was written for who wants it, and whether all are sent."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import func, or_, select

from penstock.db.connection import Connection
from penstock.db.database import Database
from penstock.errors import SecretsUnreadable
from penstock.journal.queries import numbered
from penstock.journal.tables import counters, transitions
from penstock.outbox.claiming import OPEN
from penstock.outbox.events import TEST_TYPE
from penstock.outbox.model import OutboxHealth
from penstock.outbox.states import ACTIVE, DELIVERY, DISABLED
from penstock.outbox.storing import Writer, is_told
from penstock.outbox.subscribing import credentials
from penstock.outbox.tables import deliveries, subscriptions
from penstock.secret_keys import SecretKeys

__all__ = ["Finding", "health", "verify"]

READ_EACH = 500
DAY_US = 86_400_000_000
STUCK_US = 600_000_000
LISTED_MAX = 1000


@dataclass(frozen=True, slots=True)
class Finding:
    """Something that is not as it must be; `rule` is a stable name."""

    rule: str
    message: str


async def verify(db: Database, writer: Writer, *, days: float) -> list[Finding]:
    """Compare deliveries with subscriptions and the log; the first thousand differences."""
    async with db.read() as tx:
        found = [
            *await _open_without_receiver(tx),
            *await _not_as_logged(tx),
            *await _never_written(db, tx, writer, days),
        ]
    return found[:LISTED_MAX]


async def _open_without_receiver(tx: Connection) -> list[Finding]:
    active = select(subscriptions.c.id).where(subscriptions.c.state == ACTIVE)
    query = select(deliveries.c.id, deliveries.c.state, deliveries.c.subscription).where(
        deliveries.c.state.in_(OPEN), deliveries.c.subscription.not_in(active)
    )
    return [
        Finding(
            "delivery_receiver", f"delivery {row.id} is {row.state}, but nobody is subscribed as {row.subscription}"
        )
        for row in await tx.execute(query.limit(LISTED_MAX))
    ]


async def _not_as_logged(tx: Connection) -> list[Finding]:
    """The last line of the log about a settled delivery leads to the state that it has."""
    found: list[Finding] = []
    last = 0
    settled = select(deliveries.c.number, deliveries.c.id, deliveries.c.state).where(
        deliveries.c.state.in_(sorted(DELIVERY.settled))
    )
    while len(found) < LISTED_MAX:
        some = (
            await tx.execute(settled.where(deliveries.c.number > last).order_by(deliveries.c.number).limit(READ_EACH))
        ).all()
        if not some:
            break
        last = some[-1].number
        logged = await _last_targets(tx, [row.id for row in some])
        found += [
            Finding("delivery_log", f"delivery {row.id} is {row.state}, and the log says {logged.get(row.id)}")
            for row in some
            if logged.get(row.id) != row.state
        ]
    return found


async def _last_targets(tx: Connection, ids: Collection[str]) -> dict[str, str]:
    mine = (transitions.c.machine == DELIVERY.name, transitions.c.subject.in_(ids))
    latest = select(func.max(transitions.c.sequence)).where(*mine).group_by(transitions.c.subject)
    query = select(transitions.c.subject, transitions.c.target).where(transitions.c.sequence.in_(latest))
    return {row.subject: row.target for row in await tx.execute(query)}


async def _never_written(db: Database, tx: Connection, writer: Writer, days: float) -> list[Finding]:
    """Every numbered move behind which the outbox is has a delivery for each subscription that wanted it then."""
    wanting = (await tx.execute(select(subscriptions).where(subscriptions.c.state == ACTIVE))).all()
    position = (await tx.execute(select(counters.c.value).where(counters.c.name == "outbox"))).scalar_one_or_none()
    if not wanting or position is None:
        return []
    now = (await tx.execute(select(db.now()))).scalar_one()
    oldest = now - round(days * DAY_US) if days else 0
    by_subject: dict[str | None, list[Any]] = defaultdict(list)
    for row in wanting:
        by_subject[row.subject].append(row)
    found: list[Finding] = []
    since = min(row.since for row in wanting)
    while len(found) < LISTED_MAX:
        some = [
            entry for entry in await numbered(tx, since=since, limit=READ_EACH) if (entry.position or 0) <= position
        ]
        if not some:
            break
        since = some[-1].position or since
        recent = [entry for entry in some if entry.at > oldest]
        at = {f"{entry.machine}-{entry.subject}-{entry.sequence}": entry.at for entry in recent}
        wanted = {
            (row.id, event.id)
            for event in await writer.events_of(tx, recent)
            for row in (*by_subject[None], *by_subject[event.subject])
            # What it was told before its filters were changed, is told by them no longer.
            if at[event.id] > row.modified_at and is_told(event, row)
        }
        there = await _there(tx, {event for _, event in wanted})
        found += [
            Finding("delivery_written", f"event {event} was not written for {subscription}")
            for subscription, event in sorted(wanted - there)
        ]
    return found


async def _there(tx: Connection, events: Collection[str]) -> set[tuple[str, str]]:
    query = select(deliveries.c.subscription, deliveries.c.event_id).where(deliveries.c.event_id.in_(events))
    return {(row.subscription, row.event_id) for row in await tx.execute(query)} if events else set()


async def health(tx: Connection, now: int, keys: SecretKeys) -> OutboxHealth:
    """How deliveries stand, for `doctor`."""
    given_up = (deliveries.c.state == "Failed", deliveries.c.type != TEST_TYPE)
    failed = select(func.count()).select_from(deliveries).where(*given_up)
    stuck = (
        select(subscriptions.c.channel, func.count())
        .select_from(deliveries)
        .join(subscriptions, subscriptions.c.id == deliveries.c.subscription)
        .where(deliveries.c.due_at <= now - STUCK_US, subscriptions.c.state == ACTIVE)
        .where(or_(subscriptions.c.not_before.is_(None), subscriptions.c.not_before <= now - STUCK_US))
        .group_by(subscriptions.c.channel)
        .order_by(subscriptions.c.channel)
    )
    disabled = select(subscriptions.c.id).where(subscriptions.c.state == DISABLED).order_by(subscriptions.c.id)
    secret = select(subscriptions.c.id, subscriptions.c.encrypted).where(subscriptions.c.encrypted.is_not(None))
    return OutboxHealth(
        int((await tx.execute(failed)).scalar_one()),
        tuple((channel, int(many)) for channel, many in await tx.execute(stuck)),
        tuple((await tx.execute(disabled.limit(LISTED_MAX))).scalars()),
        tuple(_locked((await tx.execute(secret.limit(LISTED_MAX))).all(), keys)),
    )


def _locked(found: Sequence[Any], keys: SecretKeys) -> Iterable[str]:
    for row in found:
        try:
            credentials(row.encrypted, keys)
        except SecretsUnreadable:
            yield row.id
