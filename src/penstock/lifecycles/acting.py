"""Changes of an instance that no event makes: its flags, its data, a forced state, and its deletion."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import msgspec
from sqlalchemy import delete, select

from penstock.db.connection import Connection
from penstock.errors import Conflict
from penstock.graphs.flags import StateFlag
from penstock.journal.queries import record as record_move
from penstock.lifecycles.changes import Change, Stamp, checked_data, write
from penstock.lifecycles.delivery_log import forget_moves
from penstock.lifecycles.model import Instance
from penstock.lifecycles.queries import graph_of
from penstock.lifecycles.records import Record, instance_of, record_of
from penstock.lifecycles.rules.graph import Graph
from penstock.lifecycles.scope import Scope
from penstock.lifecycles.states import ACTIONS, TERMINAL, InstanceFlag, entered
from penstock.lifecycles.tables import checkpoints, deliveries, instances, logs, timers
from penstock.lifecycles.triggering import reading

__all__ = ["act", "change_data", "delete_instance", "force"]

TRIES_MAX = 20
MACHINE = "lifecycle"
JOURNAL_CHARS = 40

Planned = Callable[[Record, Graph], Change | None]


async def act(scope: Scope, instance: str | int, name: str, stamp: Stamp) -> Instance:
    """Change flags by one of `ACTIONS`; where they are so already, nothing is written."""
    action = ACTIONS[name]

    def plan(record: Record, graph: Graph) -> Change | None:
        flags = action.applied(record.flags)
        if flags == record.flags:
            return None
        return _same_state(record, graph, stamp, action.kind, flags)

    return await _change(scope, instance, plan, name)


async def change_data(
    scope: Scope,
    instance: str | int,
    changes: Mapping[str, Any],
    stamp: Stamp,
    *,
    revision: int | None = None,
    tx: Connection | None = None,
) -> Instance:
    """Set fields of an instance's data, or remove those that are None; the log entry holds what was asked for."""

    def plan(record: Record, graph: Graph) -> Change | None:
        if revision is not None and record.revision != revision:
            raise Conflict(f"instance {record.guid} is at revision {record.revision}, not at {revision} any more")
        gone = {name for name, value in changes.items() if value is None}
        merged = {name: value for name, value in {**record.data, **changes}.items() if name not in gone}
        data = checked_data(merged) or {}
        if _is_same(data, record.data):
            return None
        told = Stamp(stamp.actor, stamp.cause, stamp.correlation, None, {"changes": dict(changes)}, stamp.flags)
        return msgspec.structs.replace(_same_state(record, graph, told, "data_changed", record.flags), data=data)

    return await _change(scope, instance, plan, "change_data", tx)


def _is_same(data: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether two are the same as JSON: for Python 1, 1.0 and True are equal."""
    first, second = (msgspec.json.encode(each, order="deterministic") for each in (data, other))
    return first == second


async def force(scope: Scope, instance: str | int, state: str, stamp: Stamp, tx: Connection | None = None) -> Instance:
    """Put an instance into a state whatever its table says; flags follow the state, and the log says that it was so."""

    def plan(record: Record, graph: Graph) -> Change | None:
        target = graph.state(state)
        flags = record.flags
        if StateFlag.FINAL not in target.flags:
            flags = (flags | InstanceFlag.ACTIVE) & ~(InstanceFlag.COMPLETED | InstanceFlag.FAILED)
        return Change(
            record,
            "forced",
            record.version,
            graph.version.definition.id,
            target,
            entered(flags, target.flags),
            stamp,
            leaves=graph.by_id[record.state],
            last_event=record.last_event,
        )

    return await _change(scope, instance, plan, "force", tx)


def _same_state(record: Record, graph: Graph, stamp: Stamp, kind: Any, flags: InstanceFlag) -> Change:
    return Change(
        record,
        kind,
        record.version,
        graph.version.definition.id,
        graph.by_id[record.state],
        flags,
        stamp,
        last_event=record.last_event,
    )


async def _change(
    scope: Scope, instance: str | int, plan: Planned, act_name: str, tx: Connection | None = None
) -> Instance:
    """Read, plan and write, again as long as others come between."""
    for _ in range(TRIES_MAX):
        async with reading(scope, tx) as look:
            record = await record_of(look, scope, instance)
            graph = await graph_of(look, scope, record.version)
        change = plan(record, graph)
        work = None if change is None else partial(_written, scope, change, act_name)
        if work is None or await (work(tx) if tx is not None else scope.db.transaction(work, "lifecycle_change")):
            async with reading(scope, tx) as look:
                return await instance_of(look, scope, await record_of(look, scope, record.id))
    raise Conflict(f"instance {instance} was changed by others {TRIES_MAX} times in a row; try again")


async def _written(scope: Scope, change: Change, act_name: str, tx: Connection) -> bool:
    is_written = await write(tx, scope, change)
    if is_written:
        actor, cause = change.stamp.actor, change.stamp.cause
        await scope.audit(tx, f"instance.{act_name}", change.record.guid, actor=actor, cause=cause)
    return is_written


async def delete_instance(
    scope: Scope, instance: str | int, *, force: bool, actor: str, cause: str | None = None
) -> None:
    """Delete an instance with its log; one that has not ended only by force. The one transition log keeps the fact."""

    async def work(tx: Connection) -> None:
        record = await record_of(tx, scope, instance)
        graph = await graph_of(tx, scope, record.version)
        if not force and not record.flags & TERMINAL:
            raise Conflict(
                f"instance {record.guid} is in {graph.by_id[record.state].name!r} and has not ended; archive it, "
                "or delete it by force"
            )
        gone = delete(instances).where(
            instances.c.tenant == scope.tenant, instances.c.id == record.id, instances.c.revision == record.revision
        )
        if (await tx.execute(gone)).rowcount != 1:
            raise Conflict(f"instance {record.guid} was changed meanwhile; look at it again")
        told = deliveries.c.tenant == scope.tenant, deliveries.c.instance == record.id
        await forget_moves(tx, scope, (await tx.execute(select(deliveries.c.message_id).where(*told))).scalars().all())
        for table in (logs, checkpoints, timers, deliveries):
            await tx.execute(delete(table).where(table.c.tenant == scope.tenant, table.c.instance == record.id))
        await record_move(
            scope.db, tx, machine=MACHINE, subject=record.guid, source=graph.by_id[record.state].name[:JOURNAL_CHARS],
            event="deleted", target="Deleted", actor=actor, cause=cause,
            details={
                "tenant": scope.tenant, "definition": graph.version.definition.name, "reference": record.reference,
                "state": graph.by_id[record.state].name, "revision": record.revision,
            },
        )  # fmt: skip
        await scope.audit(tx, "instance.delete", record.guid, actor=actor, cause=cause)

    await scope.db.transaction(work, "lifecycle_delete")
