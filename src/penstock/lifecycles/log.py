"""The transition log: append-only, read by instance, by states, by time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import ColumnElement, Row, Select, and_, or_, select

from penstock.clock import from_micros
from penstock.db.connection import Connection
from penstock.errors import InvalidInput
from penstock.graphs.names import name_key
from penstock.lifecycles.model import LogEntry
from penstock.lifecycles.scope import Scope
from penstock.lifecycles.states import InstanceFlag, LogFlag
from penstock.lifecycles.tables import events, instances, logs, states, versions
from penstock.listing import Page

__all__ = ["entries", "entry_at", "latest"]

_SOURCE, _TARGET = states.alias("source_state"), states.alias("target_state")


async def entries(
    tx: Connection,
    scope: Scope,
    *,
    instance: int | None = None,
    definition: int | None = None,
    source: str | None = None,
    target: str | None = None,
    since_us: int | None = None,
    until_us: int | None = None,
    correlation: str | None = None,
    newest_first: bool = False,
    cursor: str | None = None,
    limit: int = 100,
) -> Page[LogEntry]:
    """Entries that fit every filter given, by time; those of one instance by their numbers."""
    query = _entries(scope)
    if instance is not None:
        query = query.where(logs.c.instance == instance)
    if definition is not None:
        mine = select(versions.c.id).where(versions.c.tenant == scope.tenant, versions.c.definition == definition)
        query = query.where(logs.c.version.in_(mine))
    for column, name in ((logs.c.source, source), (logs.c.target, target)):
        if name is not None:
            query = query.where(column.in_(_states_named(scope, name)))
    if source is not None or target is not None:
        query = query.where(logs.c.kind.in_(("started", "moved", "forced", "migrated")))
    if since_us is not None:
        query = query.where(logs.c.at >= since_us)
    if until_us is not None:
        query = query.where(logs.c.at < until_us)
    if correlation is not None:
        query = query.where(logs.c.correlation == correlation)
    key = [logs.c.sequence] if instance is not None else [logs.c.at, logs.c.instance, logs.c.sequence]
    if cursor is not None:
        query = query.where(_behind(key, _parsed(cursor, len(key)), newest_first=newest_first))
    query = query.order_by(*(column.desc() if newest_first else column for column in key))
    found = (await tx.execute(query.limit(limit + 1))).all()
    more = None
    if len(found) > limit:
        more = ".".join(str(found[limit - 1]._mapping[column.name]) for column in key)
    return Page([entry_of(row) for row in found[:limit]], more)


async def latest(tx: Connection, scope: Scope, instance: int) -> LogEntry | None:
    """The newest entry of an instance; None when all were purged."""
    page = await entries(tx, scope, instance=instance, newest_first=True, limit=1)
    return page.items[0] if page.items else None


async def entry_at(tx: Connection, scope: Scope, instance: int, sequence: int) -> LogEntry:
    """One entry by its number."""
    query = _entries(scope).where(logs.c.instance == instance, logs.c.sequence == sequence)
    return entry_of((await tx.execute(query)).one())


def select_entries() -> Select[Any]:
    """Entries with the names of what they refer to; say which."""
    return (
        select(
            logs,
            instances.c.guid,
            _SOURCE.c.name.label("source_name"),
            _TARGET.c.name.label("target_name"),
            events.c.name.label("event_name"),
            versions.c.number,
        )
        .join(instances, instances.c.id == logs.c.instance)
        .join(_TARGET, _TARGET.c.id == logs.c.target)
        .join(versions, versions.c.id == logs.c.version)
        .outerjoin(_SOURCE, _SOURCE.c.id == logs.c.source)
        .outerjoin(events, events.c.id == logs.c.event)
    )


def _entries(scope: Scope) -> Select[Any]:
    return select_entries().where(logs.c.tenant == scope.tenant)


def _states_named(scope: Scope, name: str) -> Select[Any]:
    return select(states.c.id).where(states.c.tenant == scope.tenant, states.c.name_key == name_key(name))


def _parsed(cursor: str, parts: int) -> list[int]:
    found = cursor.split(".")
    if len(found) != parts or not all(part.isdigit() for part in found):
        raise InvalidInput(f"{cursor!r} is no cursor of this list; pass the next cursor of an earlier page")
    return [int(part) for part in found]


def _behind(key: Sequence[ColumnElement[Any]], last: Sequence[int], *, newest_first: bool) -> ColumnElement[bool]:
    """Whether a row comes behind another in the order of the key."""
    options = []
    for place, column in enumerate(key):
        is_behind = column < last[place] if newest_first else column > last[place]
        options.append(and_(*(key[n] == last[n] for n in range(place)), is_behind))
    return or_(*options)


def entry_of(row: Row[Any]) -> LogEntry:
    """A row of `select_entries`."""
    return LogEntry(
        row.guid,
        row.sequence,
        row.kind,
        row.source_name,
        row.event_name,
        row.target_name,
        InstanceFlag(row.instance_flags),
        LogFlag(row.flags),
        row.actor,
        row.cause,
        row.correlation,
        row.request_key,
        row.metadata,
        row.number,
        from_micros(row.at),
    )
