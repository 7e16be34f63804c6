"""Acknowledgements: each move is handed to each consumer until it says that it has dealt with it.

A delivery is written by the transaction that moves the instance, so none is missing. Who claims one has it for a
while; who does not answer in time loses it to the next. Every change is a compare-and-set on its state.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from sqlalchemy import ColumnElement, FromClause, Row, Select, Update, and_, case, exists, func, or_, select, update

from penstock.clock import from_micros
from penstock.db.connection import Connection
from penstock.errors import Conflict, InvalidInput, NotFound
from penstock.lifecycles.changes import Change, Stamp, write
from penstock.lifecycles.delivery_log import log_move, log_moves
from penstock.lifecycles.log import entry_of, select_entries
from penstock.lifecycles.model import Delivery
from penstock.lifecycles.queries import graph_of
from penstock.lifecycles.records import record_of
from penstock.lifecycles.rules.effects import EFFECT_ATTEMPTS_MAX, EFFECTS, is_effect
from penstock.lifecycles.scope import Scope
from penstock.lifecycles.states import ACTIONS, LogFlag
from penstock.lifecycles.tables import consumers, deliveries, logs
from penstock.listing import Page, parse_number_cursor
from penstock.outbox.states import DELIVERY

__all__ = [
    "acknowledge",
    "bump",
    "cancel",
    "cancel_strays",
    "delivery_of",
    "fail",
    "fail_spent",
    "list_deliveries",
    "require",
    "resend",
    "select_deliveries",
]

OPEN = ("Pending", "Delivered")
RETRY = "retry"  # who sends again what has failed and has attempts left
EFFECT_RETRY_US = 50_000_000
EFFECT_RETRY_US_MAX = 3_600_000_000
TRIES_MAX = 10
ERROR_CHARS = 2000
JITTER = 0.2


async def acknowledge(
    scope: Scope, message_id: str, outcome: str, *, token: str | None = None, tx: Connection | None = None
) -> Delivery:
    """Mark a message as processed, or only as delivered; to say it again changes nothing."""
    if outcome not in ("processed", "delivered"):
        raise InvalidInput(f"an outcome is 'processed' or 'delivered'; found {outcome!r}; `fail` is for failures")
    target = "Processed" if outcome == "processed" else "Delivered"

    async def work(inner: Connection) -> Delivery:
        found = await require(inner, scope, message_id)
        if found.state == target or (found.state == "Processed" and outcome == "delivered"):
            return found
        DELIVERY.after(found.state, outcome, subject=f"delivery {message_id}")
        values: dict[str, Any] = {"state": target, "modified_at": scope.db.now()}
        if outcome == "processed":
            values |= {"due_at": None, "claim": None}
        await _moved(inner, scope, found, token, values)
        await log_move(inner, scope, message_id, found.state, outcome, actor=found.consumer)
        return await require(inner, scope, message_id)

    return await (work(tx) if tx is not None else scope.db.transaction(work, "lifecycle_acknowledge"))


async def fail(scope: Scope, message_id: str, reason: str, *, token: str | None = None) -> Delivery:
    """An attempt failed: it is tried again later, or has failed for good when its budget is spent."""
    return await scope.db.transaction(partial(_fail, scope, message_id, reason, token), "lifecycle_fail")


async def _fail(scope: Scope, message_id: str, reason: str, token: str | None, tx: Connection) -> Delivery:
    found = await require(tx, scope, message_id)
    DELIVERY.after(found.state, "failed", subject=f"delivery {message_id}")
    values: dict[str, Any] = {"claim": None, "error": reason[:ERROR_CHARS], "modified_at": scope.db.now()}
    is_again = found.attempts < found.attempts_max
    if is_again:
        wait = await _wait_us(tx, scope, found.consumer, found.attempts)
        values |= {"state": DELIVERY.after("Failed", "resent"), "due_at": scope.db.now() + wait}
    else:
        values |= {"state": "Failed", "due_at": None}
    await _moved(tx, scope, found, token, values)
    await log_move(tx, scope, message_id, found.state, "failed", actor=found.consumer, cause=values["error"])
    if is_again:
        await log_move(tx, scope, message_id, "Failed", "resent", actor=RETRY)
    else:
        await _apply_policy(tx, scope, found)
    return await require(tx, scope, message_id)


async def fail_spent(scope: Scope, *, limit: int) -> int:
    """Fail deliveries whose last attempt was not answered in time; how many there were."""
    query = select(deliveries.c.message_id).where(
        deliveries.c.tenant == scope.tenant,
        deliveries.c.due_at <= scope.db.now(),
        deliveries.c.attempts >= deliveries.c.attempts_max,
    )
    async with scope.db.read() as tx:
        found = (await tx.execute(query.order_by(deliveries.c.due_at).limit(limit))).scalars().all()
    failed = 0
    for message_id in found:
        try:
            await fail(scope, message_id, "it was not acknowledged, and its attempts are used up")
            failed += 1
        except (Conflict, NotFound):
            continue  # it was answered, or somebody else was faster
    return failed


async def cancel(tx: Connection, scope: Scope, *which: ColumnElement[bool]) -> int:
    """Cancel open deliveries whose consumer is gone; how many there were."""
    is_left = deliveries.c.tenant == scope.tenant, deliveries.c.state.in_(OPEN), *which
    held = select(deliveries.c.message_id, deliveries.c.state).where(*is_left).with_for_update()
    moved = [(row.message_id, row.state) for row in await tx.execute(held)]
    await log_moves(tx, scope, moved, "cancelled", actor=scope.actor, cause="its consumer was unregistered")
    values = {"state": "Cancelled", "due_at": None, "claim": None, "modified_at": scope.db.now()}
    return (await tx.execute(update(deliveries).where(*is_left).values(**values))).rowcount


async def cancel_strays(scope: Scope, *, limit: int) -> int:
    """Cancel deliveries that a move left while their consumer was being unregistered; how many there were."""
    first, end = EFFECTS
    async with scope.db.read() as tx:
        known = (await tx.execute(select(consumers.c.name).where(consumers.c.tenant == scope.tenant))).scalars().all()
        query = select(deliveries.c.id).where(
            deliveries.c.tenant == scope.tenant,
            deliveries.c.state.in_(OPEN),
            deliveries.c.consumer.not_in(known),
            or_(deliveries.c.consumer < first, deliveries.c.consumer >= end),
        )
        found = (await tx.execute(query.limit(limit))).scalars().all()
    if not found:
        return 0
    # It may have been registered again since.
    is_gone = ~exists().where(consumers.c.tenant == deliveries.c.tenant, consumers.c.name == deliveries.c.consumer)

    async def work(tx: Connection) -> int:
        return await cancel(tx, scope, deliveries.c.id.in_(found), is_gone)

    return await scope.db.transaction(work, "lifecycle_cancel")


async def _apply_policy(tx: Connection, scope: Scope, found: Delivery) -> None:
    """Suspend the instance where its consumer wants that, in the transaction that gives the delivery up."""
    policy = select(consumers.c.suspends).where(consumers.c.tenant == scope.tenant, consumers.c.name == found.consumer)
    if not (await tx.execute(policy)).scalar():
        return
    stamp = Stamp(f"consumer {found.consumer}", f"delivery {found.message_id} failed", flags=LogFlag.SYSTEM)
    for _ in range(TRIES_MAX):
        record = await record_of(tx, scope, found.entry.guid)
        graph = await graph_of(tx, scope, record.version)
        flags = ACTIONS["suspend"].applied(record.flags)
        state = graph.by_id[record.state]
        change = Change(
            record, "suspended", record.version, graph.version.definition.id, state, flags, stamp,
            last_event=record.last_event,
        )  # fmt: skip
        if flags == record.flags or await write(tx, scope, change):
            return
    raise Conflict(f"instance {found.entry.guid} changes too often to be suspended")


async def bump(scope: Scope, message_id: str) -> Delivery:
    """Count an attempt that was made elsewhere, and put the next one off."""

    async def work(tx: Connection) -> Delivery:
        found = await require(tx, scope, message_id)
        if found.state not in OPEN:
            raise Conflict(f"delivery {message_id} is {found.state}; only open ones are bumped")
        wait = await _wait_us(tx, scope, found.consumer, found.attempts + 1)
        values = {"attempts": found.attempts + 1, "due_at": scope.db.now() + wait, "modified_at": scope.db.now()}
        await _moved(tx, scope, found, None, values)
        return await require(tx, scope, message_id)

    scope.tally["delivery_retries_total", "bumped"] += 1
    return await scope.db.transaction(work, "lifecycle_bump")


async def resend(
    scope: Scope,
    *,
    message_id: str | None,
    consumer: str | None,
    older_than_us: int | None,
    failed: bool,
) -> int:
    """Make deliveries due now: one, or those that have waited so long. Those without attempts get their budget anew."""

    async def work(tx: Connection) -> int:
        which = [deliveries.c.tenant == scope.tenant]
        if message_id is not None:
            await require(tx, scope, message_id)
            which.append(deliveries.c.message_id == message_id)
        if consumer is not None:
            which.append(deliveries.c.consumer == consumer)
        if older_than_us is not None:
            which.append(deliveries.c.modified_at <= scope.db.now() - older_than_us)
        now = scope.db.now()
        budget = (
            select(consumers.c.attempts_max)
            .where(consumers.c.tenant == scope.tenant, consumers.c.name == deliveries.c.consumer)
            .scalar_subquery()
        )
        anew = deliveries.c.attempts + func.coalesce(budget, EFFECT_ATTEMPTS_MAX)
        again: list[Update] = []
        if not failed:  # first, so that none is counted twice
            is_spent = deliveries.c.attempts >= deliveries.c.attempts_max
            attempts_max = case((is_spent, anew), else_=deliveries.c.attempts_max)
            is_open = update(deliveries).where(*which, deliveries.c.state.in_(OPEN))
            again.append(is_open.values(due_at=now, claim=None, attempts_max=attempts_max))
        if failed or message_id is not None:
            which_failed = (*which, deliveries.c.state.in_(DELIVERY.sources("resent")))
            ids = (await tx.execute(select(deliveries.c.message_id).where(*which_failed).with_for_update())).scalars()
            await log_moves(tx, scope, [(id, "Failed") for id in ids], "resent", actor=scope.actor)
            again.append(
                update(deliveries)
                .where(*which_failed)
                .values(state="Pending", due_at=now, modified_at=now, attempts_max=anew)
            )
        many = sum([(await tx.execute(each)).rowcount for each in again])
        if many:
            await scope.audit(tx, "delivery.resend", message_id or consumer or "all", deliveries=many)
        return many

    return await scope.db.transaction(work, "lifecycle_resend")


async def list_deliveries(
    tx: Connection,
    scope: Scope,
    *,
    state: str | Sequence[str] | None = None,
    consumer: str | None = None,
    instance: int | None = None,
    older_than_us: int | None = None,
    overdue: bool = False,
    cursor: str | None = None,
    limit: int = 100,
) -> Page[Delivery]:
    """Deliveries that fit every filter given, oldest first. Overdue are those whose time to answer is over."""
    which: list[ColumnElement[bool]] = [deliveries.c.tenant == scope.tenant]
    if state is not None:
        wanted = [state] if isinstance(state, str) else list(state)
        for each in wanted:
            if each not in DELIVERY.states:
                raise InvalidInput(f"no delivery is ever {each!r}; they are: {', '.join(DELIVERY.states)}")
        which.append(deliveries.c.state == wanted[0] if len(wanted) == 1 else deliveries.c.state.in_(wanted))
    if consumer is not None:
        which.append(deliveries.c.consumer == consumer)
    if instance is not None:
        which.append(deliveries.c.instance == instance)
    if older_than_us is not None:
        which.append(deliveries.c.modified_at <= scope.db.now() - older_than_us)
    if overdue:
        which.append(deliveries.c.due_at <= scope.db.now())
        which.append(or_(deliveries.c.state == "Delivered", deliveries.c.attempts > 0))
    if cursor is not None:
        which.append(deliveries.c.id > parse_number_cursor(cursor))
    page = select(deliveries).where(*which).order_by(deliveries.c.id).limit(limit + 1).subquery("page")
    found = (await tx.execute(select_deliveries(scope, page).order_by(page.c.id))).all()
    more = str(found[limit - 1].delivery_id) if len(found) > limit else None
    return Page([delivery_of(row) for row in found[:limit]], more)


async def _wait_us(tx: Connection, scope: Scope, consumer: str, attempts: int) -> int:
    """How long to wait after so many attempts: doubled each time, up to a limit, and a little scattered."""
    query = select(consumers.c.retry_after_us, consumers.c.retry_after_us_max).where(
        consumers.c.tenant == scope.tenant, consumers.c.name == consumer
    )
    row = (await tx.execute(query)).one_or_none()
    if row is None and not is_effect(consumer):
        return 0
    first, most = (EFFECT_RETRY_US, EFFECT_RETRY_US_MAX) if row is None else row
    wait: int = min(first * 2 ** min(attempts - 1, 30), most)
    return wait + round(wait * JITTER * scope.entropy.jitter.random())


async def _moved(tx: Connection, scope: Scope, found: Delivery, token: str | None, values: dict[str, Any]) -> None:
    """Write a delivery that is still as it was read; `Conflict` when it is not, or another claim has it."""
    if token is not None and token != found.claim:
        raise Conflict(f"delivery {found.message_id} was handed to somebody else since; nothing was changed")
    is_same: list[ColumnElement[bool]] = [
        deliveries.c.tenant == scope.tenant,
        deliveries.c.message_id == found.message_id,
        deliveries.c.state == found.state,
        deliveries.c.attempts == found.attempts,
    ]
    if (await tx.execute(update(deliveries).where(*is_same).values(**values))).rowcount != 1:
        raise Conflict(f"delivery {found.message_id} was changed meanwhile; look at it again")


async def require(tx: Connection, scope: Scope, message_id: str) -> Delivery:
    """The delivery with this message id; `NotFound` when there is none."""
    row = (await tx.execute(select_deliveries(scope).where(deliveries.c.message_id == message_id))).one_or_none()
    if row is None:
        raise NotFound(f"no delivery has the message id {message_id!r}")
    return delivery_of(row)


_NAMES = ("message_id", "consumer", "attempts", "attempts_max", "due_at", "claim", "error", "created_at", "modified_at")


def select_deliveries(scope: Scope, of: FromClause = deliveries) -> Select[Any]:
    """Deliveries with the entries they are about, all of them or some rows."""
    columns = [of.c[name].label(f"of_{name}") for name in _NAMES]
    return (
        select_entries()
        .add_columns(*columns, of.c.state.label("of_state"), of.c.id.label("delivery_id"))
        .join(
            of,
            and_(
                of.c.tenant == logs.c.tenant,
                of.c.instance == logs.c.instance,
                of.c.sequence == logs.c.sequence,
            ),
        )
        .where(of.c.tenant == scope.tenant)
    )


def delivery_of(row: Row[Any]) -> Delivery:
    """A row of `select_deliveries`."""
    return Delivery(
        row.of_message_id,
        row.of_consumer,
        entry_of(row),
        row.of_state,
        row.of_attempts,
        row.of_attempts_max,
        None if row.of_due_at is None else from_micros(row.of_due_at),
        row.of_claim,
        row.of_error,
        from_micros(row.of_created_at),
        from_micros(row.of_modified_at),
    )
