"""Removing old log entries. A checkpoint takes their place, so that what is left still explains every instance."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from sqlalchemy import ColumnElement, Select, Table, and_, case, delete, exists, func, or_, select

from penstock.db.connection import Connection
from penstock.db.schema import metadata
from penstock.lifecycles.delivery_log import forget_moves
from penstock.lifecycles.records import INSTANCES_EACH
from penstock.lifecycles.rules.effects import EFFECTS
from penstock.lifecycles.scope import Scope
from penstock.lifecycles.tables import checkpoints, consumers, deliveries, instances, logs

__all__ = ["count_purgeable", "purge", "rebuild_indexes"]

PREFIX = "penstock_lifecycle_"


async def purge(scope: Scope, before_us: int) -> int:
    """Remove entries written before an instant, in short transactions; how many there were.

    Only the beginning of an instance's log goes, and nothing that a consumer or an effect has not dealt with.
    """
    removed = last = 0
    while found := await _instances(scope, before_us, last):
        last = found[-1]
        removed += await scope.db.transaction(partial(_purge_some, scope, before_us, found), "lifecycle_purge")
    return removed


async def rebuild_indexes(scope: Scope) -> None:
    """Rebuild the indexes of every table of lifecycles, one after the other; others may use them meanwhile."""
    dialect, names = scope.db.dialect, sorted(name for name in metadata.tables if name.startswith(PREFIX))
    async with scope.db.connection() as connection:
        try:
            for statement in (
                *dialect.waits_for_locks,
                *(dialect.rebuild_indexes.format(table=name) for name in names),
            ):
                await connection.exec_driver_sql(statement)
        finally:
            await connection.invalidate()  # nobody else is to wait for locks as long


async def count_purgeable(scope: Scope, before_us: int) -> int:
    """How many entries a purge would remove."""
    count = last = 0
    while found := await _instances(scope, before_us, last):
        last = found[-1]
        async with scope.db.read() as tx:
            # A log has no gaps.
            count += sum(cut - first + 1 for first, cut in (await _spans(tx, scope, before_us, found)).values())
    return count


async def _instances(scope: Scope, before_us: int, last: int) -> Sequence[int]:
    query = (
        select(logs.c.instance)
        .where(logs.c.tenant == scope.tenant, logs.c.instance > last, logs.c.at < before_us)
        .group_by(logs.c.instance)
        .order_by(logs.c.instance)
    )
    async with scope.db.read() as tx:
        return (await tx.execute(query.limit(INSTANCES_EACH))).scalars().all()


async def _purge_some(scope: Scope, before_us: int, wanted: Sequence[int], tx: Connection) -> int:
    # Held until the commit: another purge must not put an older checkpoint over ours, nor a deletion leave ours behind.
    held = select(instances.c.id).where(instances.c.tenant == scope.tenant, instances.c.id.in_(wanted))
    found = (await tx.execute(held.order_by(instances.c.id).with_for_update())).scalars().all()
    cuts = {instance: cut for instance, (_, cut) in (await _spans(tx, scope, before_us, found)).items()}
    entries = select(logs).where(logs.c.tenant == scope.tenant, logs.c.instance.in_(list(cuts)))
    kept = [
        {
            "tenant": scope.tenant,
            "instance": row.instance,
            "sequence": row.sequence,
            "version": row.version,
            "state": row.target,
            "instance_flags": row.instance_flags,
            "at": row.at,
        }
        for row in await tx.execute(entries.where(logs.c.at < before_us))
        if row.sequence == cuts[row.instance]
    ]
    if not kept:
        return 0
    columns = ("sequence", "version", "state", "instance_flags", "at")
    await tx.execute(scope.db.dialect.upsert(checkpoints, key=("tenant", "instance"), update=columns), kept)
    ids = [row["instance"] for row in kept]
    told = _before_checkpoint(deliveries, scope, ids)
    await forget_moves(tx, scope, (await tx.execute(select(deliveries.c.message_id).where(*told))).scalars().all())
    await tx.execute(delete(deliveries).where(*told))
    removed = (await tx.execute(delete(logs).where(*_before_checkpoint(logs, scope, ids)))).rowcount
    await scope.audit(tx, "purge", "log", entries=removed, before=before_us)
    return removed


async def _spans(tx: Connection, scope: Scope, before_us: int, found: Sequence[int]) -> dict[int, tuple[int, int]]:
    """The first and the last entry of each instance's log that go; without those of which none goes."""
    held = {row.instance: row.first for row in await tx.execute(_waited_for(scope, found))}
    spans = {
        row.instance: (row.first, min(row.cut, held[row.instance] - 1) if row.instance in held else row.cut)
        for row in await tx.execute(_cuts(scope, before_us, found))
    }
    return {instance: (first, cut) for instance, (first, cut) in spans.items() if cut >= first}


def _cuts(scope: Scope, before_us: int, found: Sequence[int]) -> Select[tuple[int, int, int]]:
    """Where each instance's log begins, and the entry before the first that is young enough to stay."""
    first_kept = func.min(case((logs.c.at >= before_us, logs.c.sequence)))
    cut = func.coalesce(first_kept - 1, func.max(logs.c.sequence)).label("cut")
    mine = logs.c.tenant == scope.tenant, logs.c.instance.in_(found)
    return select(logs.c.instance, func.min(logs.c.sequence).label("first"), cut).where(*mine).group_by(logs.c.instance)


def _waited_for(scope: Scope, found: Sequence[int]) -> Select[tuple[int, int]]:
    """The first entry of each instance that a consumer, or an effect, has not dealt with."""
    mine = deliveries.c.tenant == scope.tenant, deliveries.c.instance.in_(found)
    first = func.min(deliveries.c.sequence).label("first")
    is_heard = exists().where(consumers.c.tenant == deliveries.c.tenant, consumers.c.name == deliveries.c.consumer)
    is_effect = and_(deliveries.c.consumer >= EFFECTS[0], deliveries.c.consumer < EFFECTS[1])
    is_open = deliveries.c.state.in_(("Pending", "Delivered"))
    can_be_resent = and_(deliveries.c.state == "Failed", or_(is_heard, is_effect))
    held = or_(is_open, can_be_resent)
    return select(deliveries.c.instance, first).where(*mine, held).group_by(deliveries.c.instance)


def _before_checkpoint(table: Table, scope: Scope, ids: Sequence[int]) -> list[ColumnElement[bool]]:
    reached = (
        select(checkpoints.c.sequence)
        .where(checkpoints.c.tenant == scope.tenant, checkpoints.c.instance == table.c.instance)
        .scalar_subquery()
    )
    return [table.c.tenant == scope.tenant, table.c.instance.in_(ids), table.c.sequence <= reached]
