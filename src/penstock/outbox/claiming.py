"""A delivery is claimed before it is sent, and moved by whoever holds the claim: every move is a compare-and-set.

A claim lasts for a lease; who answers later than that changes nothing, because the token is another's by then.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, and_, exists, insert, literal, or_, select, update

from penstock.db.connection import Connection
from penstock.db.database import Database
from penstock.journal import queries as journal
from penstock.journal.tables import transitions
from penstock.outbox.states import ACTIVE, DELIVERY, DISABLED
from penstock.outbox.storing import lock_outbox
from penstock.outbox.tables import deliveries, subscriptions
from penstock.outbox.verdicts import ATTEMPTS_MAX, Verdict

__all__ = [
    "OPEN",
    "Claimed",
    "cancel_open",
    "cancel_without_receiver",
    "claim",
    "disable",
    "give_back",
    "resend",
    "settle",
]

OPEN = tuple(state for state in DELIVERY.states if not DELIVERY.is_settled(state))
CANDIDATES_MAX = 200
MOVED_EACH = 500  # in one statement
LOG_MAX = 20  # attempts that are kept
WORKER = "worker"


@dataclass(frozen=True, slots=True)
class Claimed:
    """A delivery that is ours to send until the lease is over."""

    number: int
    id: str
    token: str
    subscription: str
    channel: str
    url: str
    encrypted: str | None
    event_id: str
    body: Mapping[str, Any]
    attempts: int
    attempts_max: int
    log: list[dict[str, Any]]


async def claim(
    db: Database,
    *,
    token: str,
    channels: Collection[str],
    handlers: Collection[str],
    at_work: Mapping[str, int],
    limit: int,
    each_max: int,
    lease_us: int,
    only: str | None = None,
) -> list[Claimed]:
    """Take what is due: of each subject and subscription the oldest, of each subscription `each_max` at a time.

    `channels` are what this process can send by, `handlers` the subscriptions whose handlers it has, `at_work` how many
    it is sending to each subscription now; `only` names one delivery.
    """

    async def work(tx: Connection) -> list[Claimed]:
        full = [name for name, many in at_work.items() if many >= each_max]
        due = [deliveries.c.due_at <= db.now(), deliveries.c.state.in_(OPEN)]
        mine = or_(subscriptions.c.channel.in_(channels), subscriptions.c.id.in_(handlers))
        query = (
            select(*(deliveries.c[name] for name in ("number", "id", "subscription", "attempts", "attempts_max")))
            .join(subscriptions, subscriptions.c.id == deliveries.c.subscription)
            .where(*due, mine, deliveries.c.subscription.not_in(full), ~_is_behind())
            .where(subscriptions.c.state == ACTIVE)
            .order_by(deliveries.c.due_at, deliveries.c.number)
            .limit(CANDIDATES_MAX)
        )
        if only is not None:
            query = query.where(deliveries.c.id == only)
        else:
            query = query.where(or_(subscriptions.c.not_before.is_(None), subscriptions.c.not_before <= db.now()))
        taken, counts = list[int](), Counter(at_work)
        for row in await tx.execute(query):
            if row.attempts >= row.attempts_max:
                await _give_up(db, tx, row.id)
            elif len(taken) < limit and counts[row.subscription] < each_max:
                counts[row.subscription] += 1
                taken.append(row.number)
        if not taken:
            return []
        changed = update(deliveries).where(deliveries.c.number.in_(sorted(taken)), *due)
        await tx.execute(
            changed.values(
                attempts=deliveries.c.attempts + 1,
                claim=token,
                due_at=db.now() + lease_us,
                modified_at=db.now(),
            )
        )
        return await _claimed(tx, token, taken)

    return await db.transaction(work, "delivery_claim")


async def _claimed(tx: Connection, token: str, numbers: Collection[int]) -> list[Claimed]:
    columns = [deliveries.c[name] for name in ("number", "id", "subscription", "event_id", "body", "attempts")]
    found = await tx.execute(
        select(
            *columns, deliveries.c.attempts_max, deliveries.c.log,
            subscriptions.c.channel, subscriptions.c.url, subscriptions.c.encrypted,
        )
        .join(subscriptions, subscriptions.c.id == deliveries.c.subscription)
        .where(deliveries.c.number.in_(numbers), deliveries.c.claim == token)
        .order_by(deliveries.c.number)
    )  # fmt: skip
    return [Claimed(**{**row._mapping, "token": token, "log": row.log or []}) for row in found]


def _is_behind() -> ColumnElement[bool]:
    """Whether an earlier event of the same subject is still to be delivered: they are told in their order."""
    earlier = deliveries.alias("earlier")
    return exists().where(
        earlier.c.subscription == deliveries.c.subscription,
        earlier.c.subject == deliveries.c.subject,
        earlier.c.number < deliveries.c.number,
        # Not "in": MariaDB would go through all open deliveries for each one, instead of those of the subject.
        earlier.c.state.not_in(tuple(DELIVERY.settled)),
    )


async def _give_up(db: Database, tx: Connection, delivery: str) -> None:
    """Fail a delivery whose last attempt was cut off: there is none left."""
    cause = "its last attempt was cut off, and none is left"
    await _moved(db, tx, delivery, deliveries.c.due_at <= db.now(), event="failed", cause=cause, claim=None)


async def settle(db: Database, claimed: Claimed, verdict: Verdict, attempt: dict[str, Any]) -> bool:
    """Write what came of an attempt; False when the claim was another's by then, or the delivery was cancelled."""
    values: dict[str, Any] = {"claim": None, "log": [*claimed.log, attempt][-LOG_MAX:]}
    is_mine = deliveries.c.claim == claimed.token

    async def work(tx: Connection) -> bool:
        if verdict.ends:
            await lock_outbox(db, tx)
        if verdict.event == "postponed":
            # Failed and sent again, in one: it stays Pending.
            due = db.now() + round(verdict.wait_s * 1e6)
            mine = update(deliveries).where(deliveries.c.id == claimed.id, is_mine, deliveries.c.state == "Pending")
            changed = mine.values(**values, due_at=due, modified_at=db.now())
            is_ours = (await tx.execute(changed)).rowcount == 1
        else:
            is_ours = await _moved(db, tx, claimed.id, is_mine, event=verdict.event, cause=verdict.reason, **values)
        if is_ours and verdict.ends:
            await disable(db, tx, claimed.subscription, reason=verdict.reason or "it is gone", actor=WORKER)
        elif is_ours and verdict.holds_s:
            held = update(subscriptions).where(subscriptions.c.id == claimed.subscription)
            await tx.execute(held.values(not_before=db.now() + round(verdict.holds_s * 1e6)))
        return is_ours

    return await db.transaction(work, "delivery_settle")


async def give_back(db: Database, claimed: Sequence[Claimed]) -> int:
    """Make deliveries due again whose attempts were cut off in good order; how many were still ours."""

    async def work(tx: Connection) -> int:
        given = 0
        for each in claimed:
            mine = update(deliveries).where(deliveries.c.id == each.id, deliveries.c.claim == each.token)
            given += (await tx.execute(mine.values(claim=None, due_at=db.now(), modified_at=db.now()))).rowcount
        return given

    return await db.transaction(work, "delivery_give_back")


async def disable(db: Database, tx: Connection, subscription: str, *, reason: str, actor: str) -> int | None:
    """Tell a subscription of nothing more, and cancel what it was not told; None when it is disabled already.

    The caller's transaction begins with `lock_outbox`, or what is being written for it would stay open.
    """
    changed = update(subscriptions).where(subscriptions.c.id == subscription, subscriptions.c.state == ACTIVE)
    values = {"state": DISABLED, "reason": reason, "modified_at": db.now()}
    if (await tx.execute(changed.values(values))).rowcount != 1:
        return None
    return await cancel_open(db, tx, deliveries.c.subscription == subscription, cause=reason, actor=actor)


async def cancel_open(db: Database, tx: Connection, which: ColumnElement[bool], *, cause: str, actor: str) -> int:
    """Cancel deliveries that are not settled, with a line in the log for each; how many."""
    return await _move_all(db, tx, which, "cancelled", cause=cause, actor=actor, due_at=None, claim=None)


async def cancel_without_receiver(db: Database) -> int:
    """Cancel what is due and nobody can send, because its subscription is gone or disabled; how many."""
    lost = and_(deliveries.c.due_at <= db.now(), deliveries.c.state.in_(OPEN), ~_has_receiver())
    async with db.connection() as tx:
        found = (await tx.execute(select(deliveries.c.number).where(lost).limit(CANDIDATES_MAX))).scalars().all()
    if not found:
        return 0

    async def work(tx: Connection) -> int:
        await lock_outbox(db, tx)
        which = and_(lost, deliveries.c.number.in_(found))
        return await cancel_open(db, tx, which, cause="nobody is subscribed any more", actor=WORKER)

    return await db.transaction(work, "delivery_cancel")


async def resend(db: Database, tx: Connection, which: ColumnElement[bool], *, actor: str, settled: bool) -> int:
    """Make deliveries due now, and say how many: open ones, and with `settled` those that failed, with new attempts.

    Only those that have a receiver; one that is to get nothing for a while gets it all the same.
    """
    mine, now = and_(which, _has_receiver()), db.now()
    states = (*OPEN, *(DELIVERY.sources("resent") if settled else ()))
    theirs = select(deliveries.c.subscription).where(mine, deliveries.c.state.in_(states)).distinct()
    receivers = (await tx.execute(theirs)).scalars().all()
    again = update(deliveries).where(mine, deliveries.c.state.in_(OPEN), deliveries.c.claim.is_(None))
    changed: int = (await tx.execute(again.values(due_at=now, modified_at=now))).rowcount
    if settled:
        anew = deliveries.c.attempts + ATTEMPTS_MAX
        changed += await _move_all(db, tx, mine, "resent", actor=actor, attempts_max=anew, due_at=now)
    held = update(subscriptions).where(subscriptions.c.id.in_(receivers), subscriptions.c.not_before.is_not(None))
    await tx.execute(held.values(not_before=None))
    return changed


def _has_receiver() -> ColumnElement[bool]:
    return deliveries.c.subscription.in_(select(subscriptions.c.id).where(subscriptions.c.state == ACTIVE))


async def _move_all(
    db: Database,
    tx: Connection,
    which: ColumnElement[bool],
    event: str,
    *,
    actor: str,
    cause: str | None = None,
    **values: Any,
) -> int:
    """Move all deliveries that take the event, and log each; how many.

    They are locked first: whoever settles one meanwhile is not contradicted by the log.
    """
    sources = DELIVERY.sources(event)
    (target,) = {DELIVERY.after(source, event) for source in sources}
    takes_it = select(deliveries.c.number).where(which, deliveries.c.state.in_(sources))
    numbers = (await tx.execute(takes_it.order_by(deliveries.c.number).with_for_update())).scalars().all()
    names = ["machine", "subject", "source", "event", "target", "at", "actor", "cause"]
    for first in range(0, len(numbers), MOVED_EACH):
        some = deliveries.c.number.in_(numbers[first : first + MOVED_EACH])
        lines = select(
            literal(DELIVERY.name), deliveries.c.id, deliveries.c.state, literal(event), literal(target),
            db.now(), literal(actor), literal(cause, transitions.c.cause.type),
        ).where(some)  # fmt: skip
        await tx.execute(insert(transitions).from_select(names, lines.order_by(deliveries.c.number)))
        moved = update(deliveries).where(some).values(state=target, modified_at=db.now(), **values)
        await tx.execute(moved)
    return len(numbers)


async def _moved(
    db: Database,
    tx: Connection,
    delivery: str,
    *guards: ColumnElement[bool],
    event: str,
    cause: str | None,
    **values: Any,
) -> bool:
    """Settle one delivery and log it; False when it is not Pending, or a guard does not hold."""
    (source,), target = DELIVERY.sources("delivered"), DELIVERY.after("Pending", event)
    mine = update(deliveries).where(deliveries.c.id == delivery, deliveries.c.state == source, *guards)
    changed = mine.values(state=target, due_at=None, modified_at=db.now(), **values)
    if (await tx.execute(changed)).rowcount != 1:
        return False
    await journal.record(
        db,
        tx,
        machine=DELIVERY.name,
        subject=delivery,
        source=source,
        event=event,
        target=target,
        actor=WORKER,
        cause=cause,
    )
    return True
