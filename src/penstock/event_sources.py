"""How events of operations, blobs and lifecycles reach the outbox, and handlers of an application are called.

Moves of operations and blobs are read from the transition log. Lifecycles have a log of their own, with consumers; the
outbox is one of them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import suppress
from typing import Any

from sqlalchemy import select
from sqlalchemy.exc import DBAPIError

from penstock.blobs.states import BLOB
from penstock.blobs.tables import rows as blobs
from penstock.clock import Clock, Entropy
from penstock.db.connection import Connection
from penstock.db.database import Database
from penstock.db.types import NotStorable, shortened
from penstock.errors import Conflict
from penstock.lifecycles.model import Delivery as LifecycleDelivery
from penstock.lifecycles.service import Lifecycles
from penstock.lifecycles.tables import consumers, definitions, instances, versions
from penstock.operations import telling
from penstock.operations.model import Page, RowError
from penstock.operations.rows.lifespans import Lifespans
from penstock.operations.service import Operations
from penstock.operations.states import OPERATION
from penstock.operations.telling import Handlers, handler_types, handlers_of
from penstock.outbox.channels import Channels
from penstock.outbox.claiming import cancel_without_receiver
from penstock.outbox.events import TYPE_CHARS_MAX, Event, Facts
from penstock.outbox.mailing import Mailer
from penstock.outbox.proving import Finding, verify
from penstock.outbox.retention import remove_old
from penstock.outbox.sender import Sender
from penstock.outbox.service import Outbox, Webhooks
from penstock.outbox.states import ACTIVE
from penstock.outbox.storing import Writer, lock_outbox
from penstock.outbox.subscribing import handler_id
from penstock.outbox.tables import subscriptions
from penstock.outbox.transport import Poster
from penstock.outbox.verdicts import ATTEMPTS_MAX
from penstock.pipeline import Definition
from penstock.settings import Settings

__all__ = ["CONSUMER", "EventSources"]

log = logging.getLogger("penstock.outbox")

CONSUMER = "penstock.webhooks"  # the outbox, as lifecycles know it
LIFECYCLE_EACH = 50
LIFECYCLE_PASSES = 10
LIFECYCLE_LEASE_S = 60
SOURCE = "urn:penstock"
ERROR_ROWS = 100
RETENTION_LOOK_S = 600.0


class EventSources:
    """Everything about events in one process: who is told, what is written for them, and who sends it."""

    def __init__(
        self,
        db: Database,
        settings: Settings,
        definitions: Mapping[str, Definition],
        handlers: Mapping[str, object],
        *,
        operations: Operations,
        lifecycles: Lifecycles,
        lifespans: Lifespans,
        clock: Clock,
        entropy: Entropy,
        actor: str,
    ) -> None:
        self._db, self._operations, self._lifecycles, self._lifespans = db, operations, lifecycles, lifespans
        self._clock, self._days, self._next_look = clock, settings.delivery_days, 0.0
        self._wanted: dict[str, tuple[list[str], str | None]] = {}
        calls = dict(self._calls(definitions, handlers))
        self._poster = Poster(allowed=settings.webhook_networks_allowed, timeout_s=settings.webhook_timeout_s)
        mail = settings.smtp_url
        channels = Channels(
            self._poster,
            None if mail is None else Mailer(mail.get_secret_value(), settings.smtp_from, settings.handler_timeout_s),
            calls,
            settings.secret_keys,
            clock=clock,
            handler_timeout_s=settings.handler_timeout_s,
        )
        longest_s = max(settings.webhook_timeout_s, settings.handler_timeout_s)
        self.writer = Writer(
            db,
            clock=clock,
            entropy=entropy,
            source=settings.public_url or SOURCE,
            describe={OPERATION.name: telling.describe, BLOB.name: _describe_blobs},
        )
        self.sender = Sender(db, channels, clock=clock, entropy=entropy, longest_s=longest_s)
        self.webhooks = Webhooks(
            Outbox(
                db,
                clock,
                entropy,
                settings.secret_keys,
                settings.webhook_networks_allowed,
                self.writer,
                self.sender,
                settings.page_max,
                actor,
                self._hear_lifecycles,
            )
        )

    async def begin(self) -> None:
        """Subscribe the handlers of this process, so that they are told of all that comes."""
        if self._wanted:
            await self.webhooks.have_handlers(self._wanted)

    async def tick(self) -> None:
        """One pass: write what is to be told, and begin to send it; what is being sent is not waited for."""
        await self._write()
        while await self.sender.start_due():
            pass
        if self._clock.monotonic() >= self._next_look:
            seen = await cancel_without_receiver(self._db)
            if self._days:
                seen += await remove_old(self._db, days=self._days)
            if not seen:
                self._next_look = self._clock.monotonic() + RETENTION_LOOK_S

    async def deliver(self) -> int:
        """Write what is to be told and send it, until nothing is due any more; how many attempts that took."""
        total = 0
        while True:
            await self._write()
            some = await self.sender.send_due()
            total += some
            if not some:
                return total

    async def tell_within(self, seconds: float) -> None:
        """Deliver what is due, as far as that is done in time; the rest stays for workers."""
        try:
            async with asyncio.timeout(seconds):
                await self.deliver()
        except TimeoutError:
            await self.stop()

    async def _write(self) -> None:
        await self.writer.follow_log()
        for tenant in await self._tenants_heard():
            await self._follow_lifecycles(tenant)

    async def stop(self, grace_s: float = 0) -> None:
        """Give up what is still being sent after a while: it is sent again, by whoever comes first."""
        await self.sender.close(grace_s)

    async def close(self) -> None:
        """Close every connection."""
        await self.sender.close()
        await self._poster.close()

    async def verify(self) -> list[Finding]:
        """Compare what was written for subscriptions with what happened."""
        return await verify(self._db, self.writer, days=self._days)

    # --- handlers

    def _calls(
        self, definitions: Mapping[str, Definition], handlers: Mapping[str, object]
    ) -> list[tuple[str, Handlers]]:
        made = []
        for definition in definitions.values():
            if definition.handlers:
                name = f"operation/{definition.name}"
                owner = _pipeline_of(self._lifespans, definition)
                made.append(self._call(name, definition.handlers, owner, definition.name))
        for name, given in handlers.items():
            made.append(self._call(name, handlers_of(given), _itself(given), None))
        return made

    def _call(
        self, name: str, names: tuple[str, ...], owner: Callable[[], Awaitable[object]], operation: str | None
    ) -> tuple[str, Handlers]:
        self._wanted[name] = (handler_types(names), operation)
        return handler_id(name), Handlers(handler_id(name), names, owner, self._errors, self._write_next)

    async def _errors(self, operation: str, after: str | None) -> Page[RowError]:
        return await self._operations.errors(operation, cursor=after, limit=ERROR_ROWS, data=True)

    async def _write_next(self, subscription: str, document: Mapping[str, Any], after: str) -> None:
        """A delivery for the next failed rows of an operation; to write it again changes nothing."""
        data = document["data"]
        first = data.get("of", document["id"])
        event = Event(
            f"{first}-rows-{after}",
            telling.ROWS_TYPE,
            document["subject"],
            telling.time_of(document),
            {"id": document["subject"], "name": data.get("name"), "of": first, "after": after},
        )

        async def work(tx: Connection) -> None:
            await lock_outbox(self._db, tx)
            query = select(subscriptions).where(subscriptions.c.id == subscription, subscriptions.c.state == ACTIVE)
            found = (await tx.execute(query)).one_or_none()
            if found is not None:
                await self.writer.write_one(tx, event, found, attempts_max=ATTEMPTS_MAX)

        await self._db.transaction(work, "outbox")

    # --- lifecycles

    async def _hear_lifecycles(self, tenant: str) -> None:
        """Be told of the moves of a tenant's instances from now on."""
        await self._lifecycles.tenant(tenant).deliveries.register(CONSUMER, attempts_max=2**31 - 1, retry_after=5)

    async def _tenants_heard(self) -> list[str]:
        async with self._db.read() as tx:
            return [tenant for (tenant,) in (await tx.send(_TENANTS_HEARD)).rows]

    async def _follow_lifecycles(self, tenant: str) -> None:
        """Write deliveries for moves of a tenant's instances."""
        told = self._lifecycles.tenant(tenant).deliveries
        for _ in range(LIFECYCLE_PASSES):
            claimed = await told.claim(CONSUMER, limit=LIFECYCLE_EACH, lease=LIFECYCLE_LEASE_S)
            if not claimed:
                return
            try:
                await self._write_moves(tenant, claimed)
            except (DBAPIError, NotStorable):
                await self._write_one_by_one(tenant, claimed)

    async def _write_one_by_one(self, tenant: str, claimed: Sequence[LifecycleDelivery]) -> None:
        """Write what can be written; the rest of an instance's moves waits for the first that cannot."""
        waiting: set[str] = set()
        for each in claimed:
            guid = each.entry.guid
            if guid in waiting:
                continue
            try:
                await self._write_moves(tenant, [each])
            except (DBAPIError, NotStorable) as error:
                waiting.add(guid)
                log.error("move %d of instance %s cannot be told: %s", each.entry.sequence, guid, error)

    async def _write_moves(self, tenant: str, claimed: Sequence[LifecycleDelivery]) -> None:
        """Write deliveries for moves, and answer for these in the same transaction."""
        told = self._lifecycles.tenant(tenant).deliveries
        with suppress(Conflict):  # somebody else has them by now
            async with self._db.unit() as unit:
                await lock_outbox(self._db, unit.connection)
                known = await _instances(unit.connection, tenant, {each.entry.guid for each in claimed})
                found = [_lifecycle_event(each, tenant, known.get(each.entry.guid, ("", None))) for each in claimed]
                await self.writer.write(unit.connection, found)
                for each in claimed:
                    await told.acknowledge(each.message_id, claim=each.claim, tx=unit)


async def _instances(tx: Connection, tenant: str, guids: Collection[str]) -> dict[str, tuple[str, str | None]]:
    """The definitions' names and the references of instances, by their guids."""
    query = (
        select(instances.c.guid, definitions.c.name, instances.c.reference)
        .join(versions, versions.c.id == instances.c.version)
        .join(definitions, definitions.c.id == versions.c.definition)
        .where(instances.c.tenant == tenant, instances.c.guid.in_(guids))
    )
    return {row.guid: (row.name, row.reference) for row in await tx.execute(query)}


def _lifecycle_event(delivery: LifecycleDelivery, tenant: str, known: tuple[str, str | None]) -> Event:
    entry, (definition, reference) = delivery.entry, known
    data = {
        "id": entry.guid,
        "name": definition,
        "reference": reference,
        "event": entry.event or entry.kind,
        "previousStatus": entry.source,
        "status": entry.target,
        "actor": entry.actor,
        "cause": entry.cause,
        "correlation": entry.correlation,
        "version": entry.version,
        "sequence": entry.sequence,
    }
    return Event(
        f"lifecycle-{entry.guid}-{entry.sequence}",
        shortened(f"penstock.lifecycle.{entry.event or entry.kind}", TYPE_CHARS_MAX),
        entry.guid,
        entry.at,
        data,
        tenant=tenant,
    )


async def _describe_blobs(tx: Connection, ids: Collection[str]) -> Mapping[str, Facts]:
    """What is told of blobs beside their moves: their files' names."""
    query = select(blobs.c.id, blobs.c.tenant, blobs.c.file_name).where(blobs.c.id.in_(ids))
    return {row.id: Facts(tenant=row.tenant, data={"fileName": row.file_name}) for row in await tx.execute(query)}


def _pipeline_of(lifespans: Lifespans, definition: Definition) -> Callable[[], Awaitable[object]]:
    return lambda: lifespans.pipeline(definition)


def _itself(owner: object) -> Callable[[], Awaitable[object]]:
    async def given() -> object:
        return owner

    return given


_TENANTS_HEARD = select(consumers.c.tenant).where(consumers.c.name == CONSUMER).order_by(consumers.c.tenant)
