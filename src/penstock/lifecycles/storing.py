"""Writing the states, events and transitions of a version: many at a time, with their categories."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from sqlalchemy import Table, insert, select

from penstock.db.connection import Connection
from penstock.graphs.model import GraphDocument, StateLine, TransitionLine
from penstock.graphs.names import name_key
from penstock.lifecycles.scope import Scope
from penstock.lifecycles.tables import categories, events, states, transitions

__all__ = ["Ids", "add_events", "add_states", "add_transitions", "category_ids", "state_columns", "store_graph"]

Ids = dict[str, int]
"""Ids by the keys of names."""


async def store_graph(tx: Connection, scope: Scope, version: int, document: GraphDocument) -> None:
    """Write all of a document's graph."""
    state_ids = await add_states(tx, scope, version, document.states)
    event_ids = await add_events(tx, scope, version, document.events)
    await add_transitions(tx, scope, version, document.transitions, state_ids=state_ids, event_ids=event_ids)


async def add_states(tx: Connection, scope: Scope, version: int, lines: Sequence[StateLine], *, first: int = 0) -> Ids:
    """Write states; the ids of all that the version has then."""
    groups = await category_ids(tx, scope, (line.category for line in lines if line.category))
    rows = [
        {"tenant": scope.tenant, "version": version, "position": first + place, **state_columns(line, groups)}
        for place, line in enumerate(lines)
    ]
    if rows:
        await tx.execute(insert(states), rows)
    return await _ids(tx, states, scope, version)


def state_columns(line: StateLine, groups: Ids) -> dict[str, Any]:
    """What a state's row says about it."""
    timeout = line.timeout
    return {
        "name": line.name,
        "name_key": name_key(line.name),
        "flags": int(line.flags),
        "category": groups[name_key(line.category)] if line.category else None,
        "timeout_us": timeout and timeout.duration_us,
        "timeout_event": timeout and timeout.event,
        "timeout_repeats": None if timeout is None else int(timeout.repeats),
        "on_entry": [{each.kind: each.name} for each in line.on_entry] or None,
        "on_exit": [{each.kind: each.name} for each in line.on_exit] or None,
    }


async def add_events(tx: Connection, scope: Scope, version: int, names: Sequence[str], *, first: int = 0) -> Ids:
    """Write events; the ids of all that the version has then."""
    rows = [
        {
            "tenant": scope.tenant, "version": version, "position": first + place,
            "name": name, "name_key": name_key(name),
        }
        for place, name in enumerate(names)
    ]  # fmt: skip
    if rows:
        await tx.execute(insert(events), rows)
    return await _ids(tx, events, scope, version)


async def add_transitions(
    tx: Connection,
    scope: Scope,
    version: int,
    lines: Sequence[TransitionLine],
    *,
    state_ids: Ids,
    event_ids: Ids,
    first: int = 0,
) -> None:
    """Write transitions between states and events that are there."""
    rows = [
        {
            "tenant": scope.tenant,
            "version": version,
            "position": first + place,
            "source": state_ids[name_key(line.source)],
            "event": event_ids[name_key(line.event)],
            "target": state_ids[name_key(line.target)],
            "guard": line.guard,
            "condition": line.condition,
            "flags": int(line.flags),
        }
        for place, line in enumerate(lines)
    ]
    if rows:
        await tx.execute(insert(transitions), rows)


async def category_ids(tx: Connection, scope: Scope, names: Iterable[str]) -> Ids:
    """The ids of categories by name; those that are missing are made."""
    wanted = {name_key(name): name for name in names}
    if not wanted:
        return {}
    rows = [{"tenant": scope.tenant, "name": name, "name_key": key} for key, name in wanted.items()]
    await tx.execute(scope.db.dialect.upsert(categories, key=("tenant", "name_key"), update=()), rows)
    query = select(categories.c.name_key, categories.c.id).where(categories.c.tenant == scope.tenant)
    return {key: number for key, number in await tx.execute(query) if key in wanted}


async def _ids(tx: Connection, table: Table, scope: Scope, version: int) -> Ids:
    query = select(table.c.name_key, table.c.id).where(table.c.tenant == scope.tenant, table.c.version == version)
    return {row.name_key: row.id for row in await tx.execute(query)}
