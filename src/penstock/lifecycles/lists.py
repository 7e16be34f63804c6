"""Lists and counts of instances."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import ColumnElement, Select, Table, false, func, select, union_all

from penstock.db.connection import Connection
from penstock.graphs.names import name_key
from penstock.lifecycles.log import one_of
from penstock.lifecycles.model import Count, Instance
from penstock.lifecycles.queries import graph_of
from penstock.lifecycles.records import INSTANCES_EACH, from_row, instance_of, select_records
from penstock.lifecycles.scope import Scope
from penstock.lifecycles.states import InstanceFlag
from penstock.lifecycles.tables import events, instances, states, versions
from penstock.listing import Page, parse_number_cursor

__all__ = ["count_instances", "counts", "flag_conditions", "guids_by_reference", "list_instances"]


MERGED_MAX = 64  # values of a column whose instances are merged


async def list_instances(
    tx: Connection,
    scope: Scope,
    *,
    definition: int | None = None,
    version: int | None = None,
    state: str | None = None,
    last_event: str | None = None,
    reference: str | None = None,
    all_of: InstanceFlag = InstanceFlag.NONE,
    any_of: InstanceFlag = InstanceFlag.NONE,
    none_of: InstanceFlag = InstanceFlag.NONE,
    entered_before_us: int | None = None,
    cursor: str | None = None,
    limit: int = 100,
) -> Page[Instance]:
    """Instances that fit every filter given, in the order they were started."""
    known = await _versions(tx, scope, definition, version)
    which: list[ColumnElement[bool]] = [instances.c.tenant == scope.tenant]
    # Of the columns that are asked for, those that have an index: the first is read by it, the others are compared.
    indexed: list[tuple[ColumnElement[Any], Sequence[int]]] = []
    if state is not None:
        indexed.append((instances.c.state, await _ids(tx, scope, states, state, known)))
    if last_event is not None:
        indexed.append((instances.c.last_event, await _ids(tx, scope, events, last_event, known)))
    if all_of or any_of or none_of:
        indexed.append((instances.c.flags, flag_values(all_of, any_of, none_of)))
    if known is not None and state is None and last_event is None:  # these are of one version each
        indexed.append((instances.c.version, known))
    if reference is not None:
        which.append(instances.c.reference == reference)
    if entered_before_us is not None:
        which.append(instances.c.entered_at < entered_before_us)
    after = 0 if cursor is None else parse_number_cursor(cursor)
    if reference is not None:  # which has an index of its own, and few instances
        which += [one_of(column, values) for column, values in indexed]
        indexed = []
    rows = await tx.execute(_page(scope, which, indexed, after=after, limit=limit + 1))
    found = [from_row(row) for row in rows]
    shown = [await instance_of(tx, scope, record) for record in found[:limit]]
    return Page(shown, str(found[limit - 1].id) if len(found) > limit else None)


def _page(
    scope: Scope,
    which: Sequence[ColumnElement[bool]],
    indexed: Sequence[tuple[ColumnElement[Any], Sequence[int]]],
    *,
    after: int,
    limit: int,
) -> Select[Any]:
    """The first instances by number. An index gives them in order for one value; for several, some of each are merged.

    Databases would read all that have one of the values and sort them, or go through everything by number.
    """
    if not indexed or len(indexed[0][1]) > MERGED_MAX:
        fits = (*which, instances.c.id > after, *(one_of(column, values) for column, values in indexed))
        return select_records().where(*fits).order_by(instances.c.id).limit(limit)
    (column, values), *others = indexed
    fits = (*which, *(one_of(other, found) for other, found in others))
    parts = []
    for value in values:
        bounds, order = scope.db.dialect.in_order(column, value, instances.c.id, after)
        parts.append(select(instances.c.id).where(*fits, *bounds).order_by(*order).limit(limit).subquery())
    if not parts:
        return select_records().where(false())
    page = union_all(*(select(part.c.id) for part in parts)).subquery("page")
    first = select(page.c.id).order_by(page.c.id).limit(limit).subquery("first")
    return select_records().join(first, first.c.id == instances.c.id).order_by(instances.c.id)


async def guids_by_reference(
    tx: Connection, scope: Scope, definition: int, references: Sequence[str]
) -> dict[str, str]:
    """The guids of the instances that references have, each in the newest version that has one."""
    query = (
        select(instances.c.reference, instances.c.guid)
        .join(versions, (versions.c.tenant == instances.c.tenant) & (versions.c.id == instances.c.version))
        .where(scope.db.dialect.among_of(instances.c.tenant, "of_tenant", instances.c.reference, "wanted"))
        .where(versions.c.definition == definition)
        .order_by(versions.c.number)
    )
    found: dict[str, str] = {}
    for first in range(0, len(references), INSTANCES_EACH):
        some = {"of_tenant": scope.tenant, "wanted": references[first : first + INSTANCES_EACH]}
        found |= {row.reference: row.guid for row in await tx.execute(query, some)}
    return found


async def counts(
    tx: Connection, scope: Scope, *, definition: int | None = None, version: int | None = None
) -> list[Count]:
    """How many instances are where, by version, state and flags."""
    query = (
        select(instances.c.version, instances.c.state, instances.c.flags, func.count())
        .where(*await _which(tx, scope, definition, version))
        .group_by(instances.c.version, instances.c.state, instances.c.flags)
    )
    found = []
    for number, state, flags, many in (await tx.execute(query)).all():
        graph = await graph_of(tx, scope, number)
        found.append(Count(graph.version.number, graph.by_id[state].name, InstanceFlag(flags), many))
    return sorted(found, key=lambda count: (count.version, count.state, count.flags))


async def count_instances(
    tx: Connection,
    scope: Scope,
    *,
    definition: int | None = None,
    version: int | None = None,
    all_of: InstanceFlag = InstanceFlag.NONE,
    any_of: InstanceFlag = InstanceFlag.NONE,
    none_of: InstanceFlag = InstanceFlag.NONE,
) -> int:
    """How many instances there are, of a version and with flags if asked for."""
    which = *await _which(tx, scope, definition, version), *flag_conditions(all_of, any_of, none_of)
    return int((await tx.execute(select(func.count()).select_from(instances).where(*which))).scalar_one())


def flag_conditions(all_of: InstanceFlag, any_of: InstanceFlag, none_of: InstanceFlag) -> list[ColumnElement[bool]]:
    """Bits that are all set, of which one is set, that are not set."""
    if not (all_of or any_of or none_of):
        return []
    return [one_of(instances.c.flags, flag_values(all_of, any_of, none_of))]


def flag_values(all_of: InstanceFlag, any_of: InstanceFlag, none_of: InstanceFlag) -> list[int]:
    """Every value of the flags that fits. There are few, so an index finds them, as it cannot find bits."""
    return [
        int(flags)
        for flags in map(InstanceFlag, range(max(InstanceFlag) * 2))
        if flags & all_of == all_of and (not any_of or flags & any_of) and not flags & none_of
    ]


async def _which(
    tx: Connection, scope: Scope, definition: int | None, version: int | None
) -> list[ColumnElement[bool]]:
    known = await _versions(tx, scope, definition, version)
    return [instances.c.tenant == scope.tenant, *([] if known is None else [one_of(instances.c.version, known)])]


async def _versions(tx: Connection, scope: Scope, definition: int | None, version: int | None) -> Sequence[int] | None:
    """The ids of the versions that are meant; None for all."""
    if version is not None or definition is None:
        return None if version is None else [version]
    mine = versions.c.tenant == scope.tenant, versions.c.definition == definition
    return (await tx.execute(select(versions.c.id).where(*mine))).scalars().all()


async def _ids(tx: Connection, scope: Scope, table: Table, name: str, known: Sequence[int] | None) -> Sequence[int]:
    """The ids of the states or events of this name."""
    query = select(table.c.id).where(table.c.tenant == scope.tenant, table.c.name_key == name_key(name))
    if known is not None:
        query = query.where(table.c.version.in_(known))
    return (await tx.execute(query)).scalars().all()
