"""`penstock.deliveries`: who is told of moves, and whether they have dealt with it."""

from __future__ import annotations

import builtins
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

from sqlalchemy import delete, select

from penstock.db.connection import Connection
from penstock.db.unit import UnitOfWork, joined
from penstock.errors import InvalidInput, NotFound
from penstock.lifecycles import claiming, delivering, queries
from penstock.lifecycles.calling import LimitedCall
from penstock.lifecycles.delivery_log import moves_of
from penstock.lifecycles.model import Delivery, DeliveryMove, Handler
from penstock.lifecycles.records import record_of
from penstock.lifecycles.rules.effects import EFFECTS, is_effect
from penstock.lifecycles.scope import Scope
from penstock.lifecycles.tables import consumers, deliveries
from penstock.listing import Page

__all__ = ["Consumer", "Deliveries", "micros_of"]

NAME_CHARS_MAX = 100

Span = float | timedelta
"""Seconds, or a timedelta."""


@dataclass(frozen=True, slots=True)
class Consumer:
    """Somebody who is told of moves. `suspends` stops an instance whose delivery has failed for good."""

    name: str
    definition: int | None
    attempts_max: int
    retry_after: timedelta
    retry_after_max: timedelta
    suspends: bool


class Deliveries:
    """The consumers of one tenant, and what was and is to be delivered to them."""

    def __init__(self, scope: Scope) -> None:
        self._scope = scope
        self.handlers: dict[str, Handler] = {}

    # --- consumers

    async def register(
        self,
        consumer: str,
        *,
        definition: str | None = None,
        environment: str | int | None = None,
        attempts_max: int = 10,
        retry_after: Span = 50,
        retry_after_max: Span = 3600,
        suspends: bool = False,
        handler: Handler | None = None,
    ) -> None:
        """Tell a consumer of every move from now on, or of those of one definition; again, to change how.

        An attempt that fails is repeated after `retry_after`, then after twice as long, up to the maximum. A `handler`
        is called in this process by `lifecycles.tick`, at least once for each move; others `claim` what is theirs.
        """
        if not 0 < len(consumer) <= NAME_CHARS_MAX or not consumer.isprintable():
            raise InvalidInput(f"a consumer's name is printable text of at most {NAME_CHARS_MAX} characters")
        if is_effect(consumer):
            raise InvalidInput(f"a consumer's name does not begin with {EFFECTS[0]!r}, as those of effects do")
        if attempts_max < 1:
            raise InvalidInput(f"attempts_max is {attempts_max}; at least one attempt is made")
        scope = self._scope

        async def work(tx: Connection) -> None:
            of = None
            if definition is not None:
                of = (await queries.definition_named(tx, scope, definition, environment)).id
            row = {
                "tenant": scope.tenant,
                "name": consumer,
                "definition": of,
                "attempts_max": attempts_max,
                "retry_after_us": micros_of(retry_after),
                "retry_after_us_max": micros_of(retry_after_max),
                "suspends": int(suspends),
                "created_at": (await tx.execute(select(scope.db.now()))).scalar_one(),
            }
            changed = ("definition", "attempts_max", "retry_after_us", "retry_after_us_max", "suspends")
            await tx.execute(scope.db.dialect.upsert(consumers, key=("tenant", "name"), update=changed), [row])

        await scope.db.transaction(work, "lifecycle_consumer")
        if handler is not None:
            self.handlers[consumer] = LimitedCall(handler, scope.call_timeout_s)

    async def unregister(self, consumer: str) -> int:
        """Tell a consumer of nothing more; what it has not processed is cancelled, and counted."""
        scope = self._scope

        async def work(tx: Connection) -> int:
            gone = delete(consumers).where(consumers.c.tenant == scope.tenant, consumers.c.name == consumer)
            if (await tx.execute(gone)).rowcount != 1:
                raise NotFound(f"no consumer is called {consumer!r}")
            left = await delivering.cancel(tx, scope, deliveries.c.consumer == consumer)
            await scope.audit(tx, "consumer.unregister", consumer, cancelled=left)
            return left

        self.handlers.pop(consumer, None)
        return await scope.db.transaction(work, "lifecycle_consumer")

    async def consumers(self) -> builtins.list[Consumer]:
        """Every consumer, by name."""
        query = select(consumers).where(consumers.c.tenant == self._scope.tenant).order_by(consumers.c.name)
        async with self._scope.db.read() as tx:
            return [
                Consumer(
                    row.name, row.definition, row.attempts_max, timedelta(microseconds=row.retry_after_us),
                    timedelta(microseconds=row.retry_after_us_max), bool(row.suspends),
                )
                for row in await tx.execute(query)
            ]  # fmt: skip

    # --- deliveries

    async def claim(self, consumer: str, *, limit: int = 50, lease: Span = 60) -> builtins.list[Delivery]:
        """What is due to a consumer, oldest first; nobody else gets it until the lease is over."""
        return await claiming.claim(self._scope, consumer, limit=self._scope.page(limit), lease_us=micros_of(lease))

    async def acknowledge(
        self, message_id: str, outcome: str = "processed", *, claim: str | None = None, tx: UnitOfWork | None = None
    ) -> Delivery:
        """Say that a message was processed, or only delivered. With its claim, a late word is refused."""
        return await delivering.acknowledge(self._scope, message_id, outcome, token=claim, tx=joined(tx))

    async def fail(self, message_id: str, reason: str, *, claim: str | None = None) -> Delivery:
        """Say that an attempt failed: it is made again later, or given up when the attempts are used up."""
        return await delivering.fail(self._scope, message_id, reason, token=claim)

    async def history(self, message_id: str) -> builtins.list[DeliveryMove]:
        """Every move of a delivery with its actor and cause, oldest first."""
        async with self._scope.db.read() as tx:
            await delivering.require(tx, self._scope, message_id)
            return await moves_of(tx, message_id)

    async def bump(self, message_id: str) -> Delivery:
        """Count an attempt that was made elsewhere, and put the next one off."""
        return await delivering.bump(self._scope, message_id)

    async def resend(
        self,
        message_id: str | None = None,
        *,
        consumer: str | None = None,
        older_than: Span | None = None,
        failed: bool = False,
    ) -> int:
        """Make deliveries due now and say how many: one, those that have waited so long, or `failed` ones.

        Those that have failed, or are in their last attempt, get their budget anew, on top of what they have used.
        """
        if message_id is None and older_than is None and not failed:
            raise InvalidInput("say which: a message id, older_than, or failed")
        age = None if older_than is None else micros_of(older_than)
        return await delivering.resend(
            self._scope, message_id=message_id, consumer=consumer, older_than_us=age, failed=failed
        )

    async def get(self, message_id: str) -> Delivery:
        """One delivery, by its message id."""
        async with self._scope.db.read() as tx:
            return await delivering.require(tx, self._scope, message_id)

    async def list(
        self,
        *,
        state: str | Sequence[str] | None = None,
        consumer: str | None = None,
        instance: str | int | None = None,
        older_than: Span | None = None,
        overdue: bool = False,
        cursor: str | None = None,
        limit: int = 100,
    ) -> Page[Delivery]:
        """Deliveries that fit every filter given: pending ones of some age, overdue ones, failed ones."""
        scope = self._scope
        async with scope.db.read() as tx:
            return await delivering.list_deliveries(
                tx,
                scope,
                state=state,
                consumer=consumer,
                instance=None if instance is None else (await record_of(tx, scope, instance)).id,
                older_than_us=None if older_than is None else micros_of(older_than),
                overdue=overdue,
                cursor=cursor,
                limit=scope.page(limit),
            )


def micros_of(span: Span) -> int:
    """A span of time in microseconds; at least none."""
    seconds = span.total_seconds() if isinstance(span, timedelta) else float(span)
    if seconds < 0:
        raise InvalidInput(f"a span of time is not negative: {span}")
    return round(seconds * 1e6)
