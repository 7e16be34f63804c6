"""Handing deliveries over: who claims one has it for a while; who does not answer in time loses it to the next."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from sqlalchemy import ColumnElement, Update, and_, exists, func, or_, select, update

from penstock.db.connection import Connection
from penstock.errors import InvalidInput
from penstock.lifecycles.delivering import delivery_of, select_deliveries
from penstock.lifecycles.delivery_log import log_moves
from penstock.lifecycles.model import Delivery
from penstock.lifecycles.rules.effects import EFFECTS, NAME_AT, is_effect
from penstock.lifecycles.scope import Scope
from penstock.lifecycles.tables import deliveries
from penstock.outbox.states import DELIVERY

__all__ = ["claim", "claim_effects", "renew"]

_EARLIER = deliveries.alias("earlier")


async def claim(scope: Scope, consumer: str, *, limit: int, lease_us: int) -> list[Delivery]:
    """Hand over what is due to a consumer, oldest first; it is its own until the lease is over.

    Moves of one instance come one after the other, the next when the one before is settled.
    """
    if is_effect(consumer):
        raise InvalidInput(f"{consumer!r} is an effect; those are carried out by processes that have its function")
    behind = and_(_EARLIER.c.consumer == deliveries.c.consumer, _EARLIER.c.sequence < deliveries.c.sequence)
    found = await _claim(scope, deliveries.c.consumer == consumer, behind, limit=limit, lease_us=lease_us)
    scope.tally["delivery_retries_total", consumer] += sum(each.attempts > 1 for each in found)
    return found


async def claim_effects(scope: Scope, names: Collection[str], *, limit: int, lease_us: int) -> list[Delivery]:
    """Hand over effects of these names that are due. Those of one instance come in their order, one after the other."""
    first, end = EFFECTS
    mine = and_(
        deliveries.c.consumer > first,
        deliveries.c.consumer < end,
        func.substr(deliveries.c.consumer, NAME_AT + 1).in_(sorted(names)),
    )
    behind = and_(
        _EARLIER.c.consumer > first,
        _EARLIER.c.consumer < end,
        or_(
            _EARLIER.c.sequence < deliveries.c.sequence,
            and_(_EARLIER.c.sequence == deliveries.c.sequence, _EARLIER.c.consumer < deliveries.c.consumer),
        ),
    )
    found = await _claim(scope, mine, behind, limit=limit, lease_us=lease_us)
    scope.tally["delivery_retries_total", "effects"] += sum(each.attempts > 1 for each in found)
    return found


async def _claim(
    scope: Scope, mine: ColumnElement[bool], behind: ColumnElement[bool], *, limit: int, lease_us: int
) -> list[Delivery]:
    if lease_us <= 0:
        raise InvalidInput("a lease is longer than nothing")
    token, db = scope.new_guid(), scope.db

    async def work(tx: Connection) -> list[Delivery]:
        due = and_(
            deliveries.c.tenant == scope.tenant,
            mine,
            deliveries.c.due_at <= db.now(),
            deliveries.c.attempts < deliveries.c.attempts_max,
        )
        oldest = select(deliveries.c.id, deliveries.c.state).where(due, ~_is_any(scope, behind))
        oldest = oldest.order_by(deliveries.c.due_at, deliveries.c.id).limit(limit)
        wanted: dict[str, list[int]] = {}
        for id, state in await tx.execute(oldest):
            wanted.setdefault(state, []).append(id)
        if not wanted:
            return []
        lease = {"due_at": db.now() + lease_us}
        # By the states they are in, so that each move that is logged is one that was made.
        if fresh := wanted.get("Pending"):
            await tx.execute(_taken(scope, due, fresh, "Pending").values(claim=token, **lease))
            claimed = select(deliveries.c.message_id, deliveries.c.consumer).where(
                deliveries.c.tenant == scope.tenant, deliveries.c.claim == token
            )
            by_consumer: dict[str, list[tuple[str, str]]] = {}
            for message_id, consumer in await tx.execute(claimed):
                by_consumer.setdefault(consumer, []).append((message_id, "Pending"))
            for consumer, moved in by_consumer.items():
                await log_moves(tx, scope, moved, "delivered", actor=consumer)
        if again := wanted.get("Delivered"):
            await tx.execute(_taken(scope, due, again, "Delivered").values(claim=token, **lease))
        found = select_deliveries(scope).where(deliveries.c.claim == token).order_by(deliveries.c.id)
        return [delivery_of(row) for row in await tx.execute(found)]

    return await db.transaction(work, "lifecycle_claim")


async def renew(scope: Scope, token: str | None, *, lease_us: int) -> tuple[set[str], int]:
    """Begin the lease of a claim anew: the message ids that are still its own, and until when."""

    async def work(tx: Connection) -> tuple[set[str], int]:
        mine = deliveries.c.tenant == scope.tenant, deliveries.c.claim == token, deliveries.c.state == "Delivered"
        until: int = (await tx.execute(select(scope.db.now()))).scalar_one() + lease_us
        await tx.execute(update(deliveries).where(*mine).values(due_at=until))
        return set((await tx.execute(select(deliveries.c.message_id).where(*mine))).scalars()), until

    return await scope.db.transaction(work, "lifecycle_renew")


def _taken(scope: Scope, due: ColumnElement[bool], ids: Sequence[int], state: str) -> Update:
    which = deliveries.c.id.in_(sorted(ids)), due, deliveries.c.state == state
    values = {"attempts": deliveries.c.attempts + 1, "modified_at": scope.db.now()}
    return update(deliveries).where(*which).values(state=DELIVERY.after("Pending", "delivered"), **values)


def _is_any(scope: Scope, behind: ColumnElement[bool]) -> ColumnElement[bool]:
    """Whether an earlier one of the same instance is still to be dealt with."""
    return exists().where(
        _EARLIER.c.tenant == scope.tenant,
        _EARLIER.c.instance == deliveries.c.instance,
        behind,
        # Not "in": MariaDB would go through all open deliveries for each one, instead of those of the instance.
        _EARLIER.c.state.not_in(tuple(DELIVERY.settled)),
    )
