"""`verify` for lifecycles: fold every log and compare; look for records that belong to nothing."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from typing import Any

from sqlalchemy import Row, and_, func, select

from penstock.db.connection import Connection
from penstock.lifecycles.model import Difference
from penstock.lifecycles.queries import graph_of
from penstock.lifecycles.rules.effects import EFFECTS, effect_consumer
from penstock.lifecycles.rules.folding import Entry, Folded, fold_faults
from penstock.lifecycles.rules.graph import Graph, effects_of
from penstock.lifecycles.scope import Scope
from penstock.lifecycles.states import BLOCKING, InstanceFlag
from penstock.lifecycles.tables import checkpoints, deliveries, instances, logs, timers

__all__ = ["tenants", "verify"]

INSTANCES_READ = 200
LISTED_MAX = 1000

_COLUMNS = ("sequence", "kind", "version", "source", "event", "target", "instance_flags")


async def tenants(scope: Scope) -> list[str]:
    """Every tenant that has instances."""
    found: list[str] = []
    least = select(func.min(instances.c.tenant))
    async with scope.db.read() as tx:
        # From one to the next by the index: DISTINCT would read every instance.
        last = (await tx.execute(least)).scalar()
        while last is not None:
            found.append(last)
            last = (await tx.execute(least.where(instances.c.tenant > last))).scalar()
    return found


async def verify(scope: Scope) -> tuple[int, list[Difference]]:
    """How many instances were looked at, and what does not follow from their logs; work may go on meanwhile."""
    looked = 0
    found: list[Difference] = []
    async for some in _slabs(scope):
        looked += len(some[0])
        found += [] if len(found) >= LISTED_MAX else some[1]
    found += await _strays(scope)
    return looked, found[:LISTED_MAX]


async def _slabs(scope: Scope) -> AsyncIterator[tuple[Sequence[Row[Any]], list[Difference]]]:
    last = 0
    query = select(instances).where(instances.c.tenant == scope.tenant).order_by(instances.c.id).limit(INSTANCES_READ)
    while True:
        async with scope.db.read() as tx:  # one snapshot for the instances and their logs
            rows = (await tx.execute(query.where(instances.c.id > last))).all()
            if not rows:
                return
            found = await _check(tx, scope, rows)
        yield rows, found
        last = rows[-1].id


async def _check(tx: Connection, scope: Scope, rows: Sequence[Row[Any]]) -> list[Difference]:
    ids = [row.id for row in rows]
    entries: dict[int, list[Entry]] = {}
    mine = select(logs.c.instance, *(logs.c[name] for name in _COLUMNS)).where(
        logs.c.tenant == scope.tenant, logs.c.instance.in_(ids)
    )
    for row in await tx.execute(mine.order_by(logs.c.instance, logs.c.sequence)):
        flags = InstanceFlag(row.instance_flags)
        entry = Entry(row.sequence, row.kind, row.version, row.source, row.event, row.target, flags)
        entries.setdefault(row.instance, []).append(entry)
    kept = select(checkpoints).where(checkpoints.c.tenant == scope.tenant, checkpoints.c.instance.in_(ids))
    starts = {
        row.instance: Folded(row.sequence, row.version, row.state, InstanceFlag(row.instance_flags))
        for row in await tx.execute(kept)
    }
    armed = select(timers.c.instance).where(timers.c.tenant == scope.tenant, timers.c.instance.in_(ids))
    timed = set((await tx.execute(armed)).scalars())
    told = await _effects_told(tx, scope, ids)
    used = {row.version for row in rows} | {entry.version for some in entries.values() for entry in some}
    graphs = {version: await graph_of(tx, scope, version) for version in sorted(used)}
    found = []
    for row in rows:
        now = Folded(row.revision, row.version, row.state, InstanceFlag(row.flags))
        faults = list(fold_faults(graphs, starts.get(row.id), entries.get(row.id, ()), now))
        faults += _timer_faults(graphs[row.version], row, has_timer=row.id in timed)
        faults += _effect_faults(graphs, entries.get(row.id, ()), told.get(row.id, set()))
        found += [Difference(rule, row.guid, f"instance {row.guid}: {message}") for rule, message in faults]
    return found


async def _effects_told(tx: Connection, scope: Scope, ids: Sequence[int]) -> dict[int, set[tuple[int, str]]]:
    """By instance, the effects that have a delivery: the entry that each is about, and its name."""
    first, end = EFFECTS
    query = select(deliveries.c.instance, deliveries.c.sequence, deliveries.c.consumer).where(
        deliveries.c.tenant == scope.tenant,
        deliveries.c.instance.in_(ids),
        deliveries.c.consumer > first,
        deliveries.c.consumer < end,
    )
    found: dict[int, set[tuple[int, str]]] = {}
    for instance, sequence, consumer in await tx.execute(query):
        found.setdefault(instance, set()).add((sequence, consumer))
    return found


def _effect_faults(
    graphs: Mapping[int, Graph], entries: Sequence[Entry], told: set[tuple[int, str]]
) -> Iterator[tuple[str, str]]:
    for entry in entries:
        if entry.kind not in ("started", "moved", "forced"):
            continue
        states = graphs[entry.version].by_id
        if entry.target not in states or (entry.source is not None and entry.source not in states):
            continue  # the fold tells of that
        left = None if entry.source is None else states[entry.source]
        for place, name in enumerate(effects_of(left, states[entry.target])):
            if (entry.sequence, effect_consumer(place, name)) not in told:
                yield "effects_have_deliveries", f"entry {entry.sequence} has none for its effect {name!r}"


def _timer_faults(graph: Graph, row: Row[Any], *, has_timer: bool) -> list[tuple[str, str]]:
    state = graph.by_id.get(row.state)
    if state is None:
        return [("state_is_known", f"its state {row.state} is not one of its version")]
    if has_timer and state.timeout is None:
        return [("timers_fit_states", f"it has a timer, and {state.name!r} has no timeout")]
    is_due = state.timeout is not None and state.timeout.repeats and not InstanceFlag(row.flags) & BLOCKING
    if is_due and not has_timer:
        return [("timers_fit_states", f"it has no timer, and {state.name!r} has a timeout")]
    return []


async def _strays(scope: Scope) -> list[Difference]:
    """Records of instances that are not there."""
    found = []
    async with scope.db.read() as tx:
        for table in (logs, checkpoints, deliveries, timers):
            there = and_(instances.c.tenant == table.c.tenant, instances.c.id == table.c.instance)
            query = select(table.c.instance).outerjoin(instances, there).where(table.c.tenant == scope.tenant)
            for id in (await tx.execute(query.where(instances.c.id.is_(None)).limit(10))).scalars():
                found.append(Difference("no_stray_records", "", f"{table.name} has records of instance {id}: none is"))
    return found
