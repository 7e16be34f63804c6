"""`penstock.webhooks`: who is told of events, and what became of each telling."""

from __future__ import annotations

import builtins
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any

from sqlalchemy import ColumnElement, Select, and_, delete, func, select, update

from penstock.access.audit import Act, record
from penstock.clock import Clock, Entropy, from_micros, operation_id
from penstock.db.connection import Connection
from penstock.db.database import Database
from penstock.db.types import NotStorable
from penstock.errors import Conflict, Forbidden, InvalidInput, NotFound
from penstock.journal.numbering import last_number, number_new
from penstock.listing import Page, parse_number_cursor
from penstock.outbox import claiming
from penstock.outbox.addresses import Network
from penstock.outbox.events import TEST_TYPE, Event, check_types, may_match
from penstock.outbox.model import Attempt, Delivery, NewSubscription, Subscription
from penstock.outbox.sender import Sender
from penstock.outbox.signing import check_secret, new_secret
from penstock.outbox.states import ACTIVE, DELIVERY
from penstock.outbox.storing import Writer, lock_outbox, subscribe
from penstock.outbox.subscribing import (
    SECRETS_MAX,
    Secret,
    channel_of,
    credentials,
    encrypted,
    handler_id,
    handler_row,
    shown_address,
    subscription_row,
)
from penstock.outbox.tables import deliveries, subscriptions
from penstock.secret_keys import SecretKeys

__all__ = ["OPERATIONS", "Outbox", "Webhooks"]

OPERATIONS = ("penstock.operation.*",)
LIFECYCLE = "penstock.lifecycle."
DAY_S = 86_400.0
ID_CHARS_MIN = 8

Span = float | timedelta
"""Seconds, or a timedelta."""


@dataclass(frozen=True, slots=True)
class Outbox:
    """What every call works with."""

    db: Database
    clock: Clock
    entropy: Entropy
    keys: SecretKeys
    allowed: Sequence[Network]
    writer: Writer
    sender: Sender
    page_max: int
    actor: str
    hear_lifecycles: Callable[[str], Awaitable[None]]  # of a tenant, from now on
    tenant: str = ""
    is_whole: bool = True  # the caller may know of all operations of the tenant


class Webhooks:
    """The subscriptions of one tenant, and their deliveries."""

    def __init__(self, outbox: Outbox) -> None:
        self._outbox, self._db = outbox, outbox.db

    def tenant(self, name: str) -> Webhooks:
        """The subscriptions of another tenant; nothing of one is seen by another."""
        return Webhooks(replace(self._outbox, tenant=name))

    def seen_by(self, tenant: str, *, actor: str, is_whole: bool) -> Webhooks:
        """The same for one caller. Who may use some operations of the tenant only has no webhooks: they tell of all."""
        return Webhooks(replace(self._outbox, tenant=tenant, actor=actor, is_whole=is_whole))

    # --- subscriptions

    async def add(
        self,
        url: str,
        *,
        types: Iterable[str] = OPERATIONS,
        operation: str | None = None,
        secret: str | None = None,
        created_by: str | None = None,
    ) -> NewSubscription:
        """Tell an address of every event from now on whose type fits one of `types`, where `*` stands for any text.

        `https://…` gets signed CloudEvents, `slack+https://…` Slack's JSON, `mailto:…` e-mails. `operation` limits it
        to operations of that name. Without a `secret` one is made; it is shown this once.
        """
        box = self._allowed()
        if channel_of(url, box.allowed) == "webhook" and secret is None:
            secret = new_secret(box.entropy.bits)
        row = subscription_row(
            operation_id(box.clock, box.entropy),
            url,
            types=types,
            secret=secret,
            keys=box.keys,
            allowed=box.allowed,
            created_by=created_by or box.actor,
            tenant=box.tenant,
            operation=operation,
        )
        await self._hear(row["types"])
        await number_new(self._db)

        async def work(tx: Connection) -> Subscription:
            await subscribe(self._db, tx, [row])
            await self._note(tx, "add", row["id"], url=row["url"], types=row["types"], operation=operation)
            return await self._get(tx, row["id"])

        return NewSubscription(await self._db.transaction(work, "subscription"), secret)

    async def get(self, subscription: str) -> Subscription:
        """One subscription, by its id."""
        async with self._db.read() as tx:
            return await self._get(tx, subscription)

    async def list(
        self, *, subject: str | None = None, cursor: str | None = None, limit: int = 100
    ) -> Page[Subscription]:
        """Subscriptions, oldest first; those to one operation only where it is named as `subject`."""
        is_mine = [subscriptions.c.tenant == self._allowed().tenant, subscriptions.c.subject.is_(subject)]
        if subject is not None:
            is_mine[1] = subscriptions.c.subject == subject
        if cursor is not None:
            is_mine.append(subscriptions.c.id > cursor)
        limit = self._page(limit)
        query = select(subscriptions).where(*is_mine).order_by(subscriptions.c.id).limit(limit + 1)
        async with self._db.read() as tx:
            found = [_subscription(row) for row in await tx.execute(query)]
        return Page(found[:limit], found[limit - 1].id if len(found) > limit else None)

    async def change(
        self, subscription: str, *, types: Iterable[str] | None = None, operation: str | None = None
    ) -> Subscription:
        """Tell a subscription of other types of events from now on, or of operations of another name ('' for all)."""
        values: dict[str, Any] = {}
        if types is not None:
            values["types"] = check_types(types)
            await self._hear(values["types"])
        if operation is not None:
            values["operation"] = operation or None
        return await self._changed(subscription, **values)

    async def rotate_secret(
        self, subscription: str, *, secret: str | None = None, keep: Span = DAY_S
    ) -> NewSubscription:
        """Sign with a new secret, and for a while with the old ones too, until receivers know the new one."""
        box, fresh = self._outbox, check_secret(secret) if secret is not None else new_secret(self._outbox.entropy.bits)
        until = box.clock.now_us() + _micros(keep)

        async def work(tx: Connection) -> Subscription:
            found = await self._row(tx, subscription)
            if found.channel != "webhook":
                raise Conflict(f"subscription {subscription} is for {found.channel}, which is not signed")
            known = credentials(found.encrypted, box.keys)
            old = [replace(each, until=min(each.until or until, until)) for each in known.secrets]
            still = [each for each in old if each.until is None or each.until > box.clock.now_us()]
            changed = replace(known, secrets=(Secret(fresh), *still)[:SECRETS_MAX])
            is_same = subscriptions.c.encrypted == found.encrypted
            await self._set(tx, found, is_same, encrypted=encrypted(changed, box.keys))
            await self._note(tx, "rotate", found.id)
            return await self._get(tx, found.id)

        return NewSubscription(await self._db.transaction(work, "subscription"), fresh)

    async def enable(self, subscription: str) -> Subscription:
        """Tell a disabled subscription of events again, of those from now on."""
        await number_new(self._db)

        async def work(tx: Connection) -> Subscription:
            found = await self._row(tx, subscription)
            if found.state != ACTIVE:
                since = await last_number(tx)
                await self._set(tx, found, state=ACTIVE, reason=None, since=since, not_before=None)
                await self._note(tx, "enable", found.id)
            return await self._get(tx, subscription)

        return await self._db.transaction(work, "subscription")

    async def disable(self, subscription: str, reason: str = "disabled by hand") -> Subscription:
        """Tell a subscription of nothing for now; what it was not told yet is cancelled."""

        async def work(tx: Connection) -> Subscription:
            await lock_outbox(self._db, tx)
            found = await self._row(tx, subscription)
            cancelled = await claiming.disable(self._db, tx, found.id, reason=reason, actor=self._outbox.actor)
            if cancelled is not None:
                await self._note(tx, "disable", found.id, reason=reason, cancelled=cancelled)
            return await self._get(tx, subscription)

        return await self._db.transaction(work, "subscription")

    async def remove(self, subscription: str) -> int:
        """Remove a subscription; what it was not told yet is cancelled, and counted."""

        async def work(tx: Connection) -> int:
            await lock_outbox(self._db, tx)
            found = await self._row(tx, subscription)
            await tx.execute(delete(subscriptions).where(subscriptions.c.id == found.id))
            mine = deliveries.c.subscription == found.id
            actor = self._outbox.actor
            cancelled = await claiming.cancel_open(self._db, tx, mine, cause="unsubscribed", actor=actor)
            await self._note(tx, "remove", found.id, url=shown_address(found.url), cancelled=cancelled)
            return cancelled

        return await self._db.transaction(work, "subscription")

    async def test(self, subscription: str) -> Delivery:
        """Send one event of the type `penstock.webhook.test` now, once, and say what came of it."""
        box = self._outbox

        async def work(tx: Connection) -> str:
            await lock_outbox(self._db, tx)
            found = await self._row(tx, subscription)
            if found.state != ACTIVE or found.channel == "handler":
                raise Conflict(f"subscription {subscription} is {found.state}, for {found.channel}; nothing is sent")
            new = operation_id(box.clock, box.entropy)
            data = {"id": found.id, "message": "This is a test."}
            # A subject of its own: no other delivery is waited for.
            event = Event(f"test-{new}", TEST_TYPE, f"test-{new}", from_micros(box.clock.now_us()), data)
            made = await box.writer.write_one(tx, event, found, attempts_max=1)
            await self._note(tx, "test", found.id)
            return made

        made = await self._db.transaction(work, "delivery_test")
        await box.sender.send_one(made)
        return await self.delivery(made)

    async def have_handlers(self, wanted: Mapping[str, tuple[Iterable[str], str | None]]) -> None:
        """Subscribe handlers that are new, by name: to types of events, of all operations or those of one name."""
        ids = [handler_id(name) for name in wanted]
        query = select(subscriptions.c.id, subscriptions.c.types).where(subscriptions.c.id.in_(ids))
        async with self._db.read() as tx:
            known = {row.id: row.types for row in await tx.execute(query)}
        rows = [handler_row(name, types, operation) for name, (types, operation) in wanted.items()]
        new = [row for row in rows if row["id"] not in known]
        changed = [row for row in rows if row["id"] in known and row["types"] != known[row["id"]]]
        if not new and not changed:
            return
        await number_new(self._db)

        async def work(tx: Connection) -> None:
            await subscribe(self._db, tx, new)  # another process may have been first
            for row in changed:
                mine = update(subscriptions).where(subscriptions.c.id == row["id"])
                await tx.execute(mine.values(types=row["types"], modified_at=self._db.now()))

        await self._db.transaction(work, "subscription")

    # --- deliveries

    async def deliveries(
        self,
        *,
        state: str | Sequence[str] | None = None,
        subscription: str | None = None,
        subject: str | None = None,
        type: str | None = None,
        older_than: Span | None = None,
        overdue: bool = False,
        cursor: str | None = None,
        limit: int = 100,
    ) -> Page[Delivery]:
        """Deliveries that fit every filter given, oldest first.

        `older_than` are those that nothing happened to for so long; overdue are those that should have been sent again.
        """
        which = [*self._mine(older_than), *_filters(state, subscription, subject, type)]
        if overdue:
            which += [deliveries.c.due_at <= self._db.now(), deliveries.c.attempts > 0]
        if cursor is not None:
            which.append(deliveries.c.number > parse_number_cursor(cursor))
        limit = self._page(limit)
        query = select(deliveries).where(*which).order_by(deliveries.c.number).limit(limit + 1)
        async with self._db.read() as tx:
            found = (await tx.execute(query)).all()
        more = str(found[limit - 1].number) if len(found) > limit else None
        return Page([_delivery(row) for row in found[:limit]], more)

    async def delivery(self, delivery: str) -> Delivery:
        """One delivery, by its id or 8 and more characters of its beginning, with its last attempts."""
        mine = select(deliveries).where(deliveries.c.tenant == self._allowed().tenant)
        async with self._db.read() as tx:
            return _delivery(await _named(tx, mine, deliveries.c.id, "delivery", delivery))

    async def resend(
        self,
        delivery: str | None = None,
        *,
        subscription: str | None = None,
        older_than: Span | None = None,
        failed: bool = False,
    ) -> int:
        """Make deliveries due now, and say how many: one, those that have waited so long, or `failed` ones.

        What has failed gets its attempts anew, and a pause that the receiver asked for ends. What was delivered or
        cancelled is not sent again, nor is what nobody receives any more: `Conflict` where it is the one named.
        """
        if delivery is None and older_than is None and not failed:
            raise InvalidInput("say which: a delivery, older_than, or failed")
        which = and_(*self._mine(older_than), *_filters("Failed" if failed else None, subscription, None, None))
        found = None if delivery is None else await self.delivery(delivery)
        if found is not None:
            if found.state in ("Processed", "Cancelled"):
                DELIVERY.after(found.state, "resent", subject=f"delivery {found.id}")
            which = and_(which, deliveries.c.id == found.id)
        has_failed, subject = failed or found is not None, subscription or ""

        async def work(tx: Connection) -> int:
            await lock_outbox(self._db, tx)
            if found is not None:
                await _require_receiver(tx, found)
            many = await claiming.resend(self._db, tx, which, actor=self._outbox.actor, settled=has_failed)
            if many:
                named = subject if found is None else found.id
                await self._note(tx, "resend", named, deliveries=many, failed=failed)
            return many

        return await self._db.transaction(work, "delivery_resend")

    async def counts(self) -> dict[str, int]:
        """How many deliveries there are in each state."""
        query = select(deliveries.c.state, func.count()).where(deliveries.c.tenant == self._allowed().tenant)
        async with self._db.read() as tx:
            found = {state: int(many) for state, many in await tx.execute(query.group_by(deliveries.c.state))}
        return {state: found.get(state, 0) for state in DELIVERY.states}

    # --- inside

    def _mine(self, older_than: Span | None) -> builtins.list[ColumnElement[bool]]:
        which = [deliveries.c.tenant == self._allowed().tenant]
        if older_than is not None:
            which.append(deliveries.c.modified_at <= self._db.now() - _micros(older_than))
        return which

    def _allowed(self) -> Outbox:
        if not self._outbox.is_whole:
            raise Forbidden("webhooks tell of all operations of a tenant; you may use some of them only")
        return self._outbox

    async def _note(self, tx: Connection, action: str, subject: str, **details: Any) -> None:
        box = self._outbox
        await record(box.db, tx, Act(box.tenant, box.actor, f"webhook.{action}", subject, details or None))

    async def _hear(self, types: Iterable[str]) -> None:
        if any(may_match(each, LIFECYCLE) for each in types):
            await self._outbox.hear_lifecycles(self._outbox.tenant)

    async def _changed(self, subscription: str, **values: Any) -> Subscription:
        async def work(tx: Connection) -> Subscription:
            found = await self._row(tx, subscription)
            await self._set(tx, found, **values)
            await self._note(tx, "change", found.id, **values)
            return await self._get(tx, found.id)

        return await self._db.transaction(work, "subscription")

    async def _set(self, tx: Connection, found: Any, *guards: ColumnElement[bool], **values: Any) -> None:
        mine = (subscriptions.c.id == found.id, subscriptions.c.state == found.state, *guards)
        changed = update(subscriptions).where(*mine).values(**values, modified_at=self._db.now())
        if (await tx.execute(changed)).rowcount != 1:
            raise Conflict(f"subscription {found.id} was changed meanwhile; look at it again")

    async def _row(self, tx: Connection, subscription: str) -> Any:
        mine = select(subscriptions).where(subscriptions.c.tenant == self._allowed().tenant)
        return await _named(tx, mine, subscriptions.c.id, "subscription", subscription)

    async def _get(self, tx: Connection, subscription: str) -> Subscription:
        return _subscription(await self._row(tx, subscription))

    def _page(self, limit: int) -> int:
        if limit < 1:
            raise InvalidInput(f"limit is {limit}; a page has at least 1 entry")
        return min(limit, self._outbox.page_max)


async def _named(tx: Connection, query: Select[Any], key: ColumnElement[str], what: str, given: str) -> Any:
    """The row with this id, or the only one whose id begins so."""
    try:
        found = (await tx.execute(query.where(key == given))).all()
        if not found and len(given) >= ID_CHARS_MIN:
            found = (await tx.execute(query.where(key.startswith(given, autoescape=True)).limit(2))).all()
    except NotStorable:
        found = []
    if len(found) != 1:
        raise NotFound(f"no {what} has the id {given!r}" if not found else f"several {what} ids begin with {given!r}")
    return found[0]


async def _require_receiver(tx: Connection, delivery: Delivery) -> None:
    """`Conflict` unless somebody is subscribed to whom the delivery can be sent."""
    query = select(subscriptions.c.state).where(subscriptions.c.id == delivery.subscription)
    state = (await tx.execute(query)).scalar_one_or_none()
    if state != ACTIVE:
        how = "was removed" if state is None else f"is {state}; enable it first"
        raise Conflict(f"delivery {delivery.id} cannot be sent: subscription {delivery.subscription} {how}")


def _filters(
    state: str | Sequence[str] | None, subscription: str | None, subject: str | None, type_: str | None
) -> builtins.list[ColumnElement[bool]]:
    which: builtins.list[ColumnElement[bool]] = []
    if state is not None:
        wanted = [state] if isinstance(state, str) else [*state]
        for each in wanted:
            if each not in DELIVERY.states:
                raise InvalidInput(f"no delivery is ever {each!r}; they are: {', '.join(DELIVERY.states)}")
        which.append(deliveries.c.state.in_(wanted))
    for column, value in ((deliveries.c.subscription, subscription), (deliveries.c.subject, subject)):
        if value is not None:
            which.append(column == value)
    if type_ is not None:
        which.append(deliveries.c.type == type_)
    return which


def _micros(span: Span) -> int:
    seconds = span.total_seconds() if isinstance(span, timedelta) else float(span)
    if seconds < 0:
        raise InvalidInput(f"a span of time is not negative: {span}")
    return round(seconds * 1e6)


def _subscription(row: Any) -> Subscription:
    return Subscription(
        row.id,
        row.channel,
        shown_address(row.url),  # which was stored with its path by earlier versions
        tuple(row.types),
        row.operation,
        row.subject,
        row.state,
        row.reason,
        None if row.not_before is None else from_micros(row.not_before),
        from_micros(row.created_at),
        row.created_by,
        from_micros(row.modified_at),
        row.tenant,
    )


def _delivery(row: Any) -> Delivery:
    return Delivery(
        row.id,
        row.subscription,
        row.event_id,
        row.type,
        row.subject,
        row.state,
        row.attempts,
        row.attempts_max,
        None if row.due_at is None else from_micros(row.due_at),
        row.body,
        [Attempt(from_micros(each["at"]), each["ms"], each["status"], each["error"]) for each in row.log or ()],
        from_micros(row.created_at),
        from_micros(row.modified_at),
        row.tenant,
    )
