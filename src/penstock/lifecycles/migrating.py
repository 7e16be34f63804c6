"""Moving instances to another version of their definition, state by state; with a dry run that names every problem."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from functools import partial

from sqlalchemy import func, select
from sqlalchemy.exc import IntegrityError

from penstock.db.connection import Connection
from penstock.errors import Conflict, Fault, InvalidInput
from penstock.graphs.names import name_key, similar
from penstock.lifecycles.changes import Change, Stamp, write_many
from penstock.lifecycles.model import Migration
from penstock.lifecycles.records import INSTANCES_EACH, Record, from_row, select_records
from penstock.lifecycles.rules.graph import Graph, LifecycleState
from penstock.lifecycles.scope import Scope
from penstock.lifecycles.starting import hold_version
from penstock.lifecycles.states import entered
from penstock.lifecycles.tables import instances

__all__ = ["migrate"]

ROUNDS_MAX = 10

StateMap = dict[int, LifecycleState]


async def migrate(
    scope: Scope,
    source: Graph,
    target: Graph,
    states: Mapping[str, str],
    stamp: Stamp,
    *,
    dry_run: bool,
) -> Migration:
    """Move every instance of one version to another; with a fault nothing moves.

    States that both versions have keep their names unless `states` says otherwise.
    """
    async with scope.db.read() as tx:
        mapped, faults = await _mapped(tx, scope, source, target, states)
        faults += await _collisions(tx, scope, source, target)
        planned = await _planned(tx, scope, source, mapped)
    plan = Migration(source.version.number, target.version.number, planned, tuple(faults), is_dry_run=dry_run)
    if dry_run:
        return plan
    if faults:
        raise InvalidInput(f"the instances cannot be moved: {'; '.join(map(str, faults))}", faults)
    return await _migrate(scope, source, target, mapped, stamp)


async def _mapped(
    tx: Connection, scope: Scope, source: Graph, target: Graph, states: Mapping[str, str]
) -> tuple[StateMap, list[Fault]]:
    wanted = {name_key(old): new for old, new in states.items()}
    faults = [
        Fault(f"{source.version.title} has no such state{similar(old, (s.name for s in source.states))}", old)
        for old in states
        if source.find_state(old) is None
    ]
    used = await _used_states(tx, scope, source)
    mapped: StateMap = {}
    for state in source.states:
        named = wanted.get(name_key(state.name), state.name)
        found = target.find_state(named)
        if found is not None:
            mapped[state.id] = found
        elif name_key(state.name) in wanted:
            known = (each.name for each in target.states)
            faults.append(Fault(f"{target.version.title} has no state {named!r}{similar(named, known)}", state.name))
        elif used.get(state.id):
            faults.append(Fault(f"{used[state.id]:,} instance(s) are in it; say which state they go to", state.name))
    return mapped, faults


async def _used_states(tx: Connection, scope: Scope, source: Graph) -> dict[int, int]:
    query = (
        select(instances.c.state, func.count().label("many"))
        .where(instances.c.tenant == scope.tenant, instances.c.version == source.version.id)
        .group_by(instances.c.state)
    )
    return {row.state: row.many for row in await tx.execute(query)}


async def _planned(tx: Connection, scope: Scope, source: Graph, mapped: StateMap) -> dict[tuple[str, str], int]:
    used = await _used_states(tx, scope, source)
    return {(source.by_id[state].name, mapped[state].name): many for state, many in used.items() if state in mapped}


async def _collisions(tx: Connection, scope: Scope, source: Graph, target: Graph) -> list[Fault]:
    """A reference may be in a version once."""
    there = instances.alias("there")
    query = (
        select(instances.c.reference)
        .join(there, (there.c.tenant == instances.c.tenant) & (there.c.reference == instances.c.reference))
        .where(
            instances.c.tenant == scope.tenant,
            instances.c.version == source.version.id,
            there.c.version == target.version.id,
        )
    )
    found = (await tx.execute(query.order_by(instances.c.id).limit(10))).scalars().all()
    return [Fault(f"reference {each!r} has an instance in {target.version.title} already") for each in found]


async def _migrate(scope: Scope, source: Graph, target: Graph, mapped: StateMap, stamp: Stamp) -> Migration:
    moved: Counter[tuple[str, str]] = Counter()
    # Instances that change meanwhile are met again in the next round.
    for _ in range(ROUNDS_MAX):
        last = 0
        while records := await _some(scope, source, last):
            last = records[-1].id
            changes = [_change(record, source, target, mapped, stamp) for record in records if record.state in mapped]
            try:
                written = await scope.db.transaction(partial(_write, scope, target, changes), "lifecycle_migrate")
            except IntegrityError as error:
                raise Conflict(
                    f"a reference was started in {target.version.title} meanwhile; a dry run names it, "
                    f"{sum(moved.values()):,} instance(s) have moved"
                ) from error
            moved.update(
                (source.by_id[change.record.state].name, change.state.name)
                for change in changes
                if change.record.id in written
            )
        if not await _some(scope, source, 0):
            break
    left = await _left(scope, source)
    return Migration(source.version.number, target.version.number, dict(moved), skipped=left)


async def _write(scope: Scope, target: Graph, changes: list[Change], tx: Connection) -> set[int]:
    await hold_version(tx, scope, target)
    written = await write_many(tx, scope, changes)
    if written:
        actor, name = changes[0].stamp.actor, target.version.definition.name
        await scope.audit(tx, "migrate", name, actor=actor, version=target.version.number, instances=len(written))
    return written


async def _some(scope: Scope, source: Graph, last: int) -> list[Record]:
    query = select_records().where(
        instances.c.tenant == scope.tenant, instances.c.version == source.version.id, instances.c.id > last
    )
    async with scope.db.read() as tx:
        return [from_row(row) for row in await tx.execute(query.order_by(instances.c.id).limit(INSTANCES_EACH))]


async def _left(scope: Scope, source: Graph) -> int:
    async with scope.db.read() as tx:
        return sum((await _used_states(tx, scope, source)).values())


def _change(record: Record, source: Graph, target: Graph, mapped: StateMap, stamp: Stamp) -> Change:
    last_event = source.event_name(record.last_event)
    known = target.find_event(last_event) if last_event is not None else None
    return Change(
        record,
        "migrated",
        target.version.id,
        target.version.definition.id,
        mapped[record.state],
        entered(record.flags, mapped[record.state].flags),
        stamp,
        leaves=source.by_id[record.state],
        last_event=known.id if known else None,
    )
