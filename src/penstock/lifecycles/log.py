"""The transition log: append-only, read by instance, by states, by time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import ColumnElement, FromClause, Row, Select, and_, or_, select

from penstock.clock import from_micros
from penstock.db.connection import Connection
from penstock.graphs.names import name_key
from penstock.lifecycles.model import LogEntry
from penstock.lifecycles.scope import Scope
from penstock.lifecycles.states import InstanceFlag, LogFlag
from penstock.lifecycles.tables import events, instances, logs, states, versions
from penstock.listing import Page, parse_numbers_cursor

__all__ = ["entries", "entries_at", "entry_of", "latest", "one_of", "select_entries"]

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
    which = [logs.c.tenant == scope.tenant]
    if instance is not None:
        which.append(logs.c.instance == instance)
    if definition is not None:
        mine = select(versions.c.id).where(versions.c.tenant == scope.tenant, versions.c.definition == definition)
        which.append(logs.c.version.in_(mine))
    for column, name in ((logs.c.source, source), (logs.c.target, target)):
        if name is not None:
            which.append(one_of(column, (await tx.execute(_states_named(scope, name))).scalars().all()))
    if source is not None or target is not None:
        which.append(logs.c.kind.in_(("started", "moved", "forced", "migrated")))
    if since_us is not None:
        which.append(logs.c.at >= since_us)
    if until_us is not None:
        which.append(logs.c.at < until_us)
    if correlation is not None:
        which.append(logs.c.correlation == correlation)
    names = ("sequence",) if instance is not None else ("at", "instance", "sequence")
    if cursor is not None:
        key = [logs.c[name] for name in names]
        which.append(_behind(key, parse_numbers_cursor(cursor, len(names)), newest_first=newest_first))
    # The page first, then its names: joined first, servers would join the whole log.
    page = select(logs).where(*which).order_by(*_ordered(logs, names, newest_first)).limit(limit + 1).subquery("page")
    found = (await tx.execute(select_entries(page).order_by(*_ordered(page, names, newest_first)))).all()
    more = None
    if len(found) > limit:
        more = ".".join(str(found[limit - 1]._mapping[name]) for name in names)
    return Page([entry_of(row) for row in found[:limit]], more)


def one_of(column: ColumnElement[Any], ids: Sequence[Any]) -> ColumnElement[bool]:
    """Whether a column has one of these values; a single one is compared, so that an index gives the rows in order."""
    return column == ids[0] if len(ids) == 1 else column.in_(ids)


def _ordered(rows: FromClause, names: Sequence[str], newest_first: bool) -> list[ColumnElement[Any]]:
    return [rows.c[name].desc() if newest_first else rows.c[name] for name in names]


async def latest(tx: Connection, scope: Scope, instance: int) -> LogEntry | None:
    """The newest entry of an instance; None when all were purged."""
    page = await entries(tx, scope, instance=instance, newest_first=True, limit=1)
    return page.items[0] if page.items else None


async def entries_at(tx: Connection, scope: Scope, wanted: Mapping[int, int]) -> dict[int, LogEntry]:
    """One entry of each instance, by its number."""
    mine = logs.c.tenant == scope.tenant, logs.c.instance.in_(list(wanted)), logs.c.sequence.in_(set(wanted.values()))
    found = await tx.execute(select_entries().where(*mine))
    return {row.instance: entry_of(row) for row in found if row.sequence == wanted[row.instance]}


def select_entries(of: FromClause = logs) -> Select[Any]:
    """Entries with the names of what they refer to, of the log or of some rows of it."""
    return (
        select(
            of,
            instances.c.guid,
            _SOURCE.c.name.label("source_name"),
            _TARGET.c.name.label("target_name"),
            events.c.name.label("event_name"),
            versions.c.number,
        )
        .join(instances, instances.c.id == of.c.instance)
        .join(_TARGET, _TARGET.c.id == of.c.target)
        .join(versions, versions.c.id == of.c.version)
        .outerjoin(_SOURCE, _SOURCE.c.id == of.c.source)
        .outerjoin(events, events.c.id == of.c.event)
    )


def _states_named(scope: Scope, name: str) -> Select[Any]:
    return select(states.c.id).where(states.c.tenant == scope.tenant, states.c.name_key == name_key(name))


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
