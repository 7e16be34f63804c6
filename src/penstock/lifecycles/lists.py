"""Lists and counts of instances."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from sqlalchemy import (
    BindParameter,
    ColumnElement,
    Integer,
    Select,
    Table,
    bindparam,
    false,
    func,
    select,
    union_all,
)

from penstock.db.connection import Connection
from penstock.db.database import Database
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
KEPT_MAX = 256  # values of a column in a statement that is kept


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
    # Of the columns that are asked for, those that have an index: the first is read by it, the others are compared.
    indexed: list[tuple[str, Sequence[int]]] = []
    if state is not None:
        indexed.append(("state", await _ids(tx, scope, states, state, known)))
    if last_event is not None:
        indexed.append(("last_event", await _ids(tx, scope, events, last_event, known)))
    if all_of or any_of or none_of:
        indexed.append(("flags", flag_values(all_of, any_of, none_of)))
    if known is not None and state is None and last_event is None:  # these are of one version each
        indexed.append(("version", known))
    after = 0 if cursor is None else parse_number_cursor(cursor)
    asked: dict[str, Any] = {"of_tenant": scope.tenant, "after": after, "most": limit + 1}
    if reference is not None:
        asked["the_reference"] = reference
    if entered_before_us is not None:
        asked["entered_before"] = entered_before_us
    rows = await tx.execute(*_page(scope, indexed, asked))
    found = [from_row(row) for row in rows]
    shown = [await instance_of(tx, scope, record) for record in found[:limit]]
    return Page(shown, str(found[limit - 1].id) if len(found) > limit else None)


def _page(
    scope: Scope, indexed: Sequence[tuple[str, Sequence[int]]], asked: Mapping[str, Any]
) -> tuple[Select[Any], Mapping[str, Any]]:
    """The statement for a page, and what is sent with it. Building one takes longer than a database takes for it."""
    values = {f"{name}_{n}": value for name, found in indexed for n, value in enumerate(found)}
    sizes = tuple((name, len(found)) for name, found in indexed)
    conditions = tuple(name for name in _CONDITIONS if name in asked)
    # A reference has an index of its own, and few instances.
    is_merged = indexed and len(indexed[0][1]) <= MERGED_MAX and "the_reference" not in asked
    build = _merged if is_merged else _compared
    is_kept = all(size <= KEPT_MAX for _, size in sizes)
    statement = scope.db.prepared(build, conditions, sizes) if is_kept else build(scope.db, conditions, sizes)
    return statement, {**asked, **values}


_CONDITIONS: dict[str, ColumnElement[bool]] = {
    "of_tenant": instances.c.tenant == bindparam("of_tenant", type_=instances.c.tenant.type),
    "the_reference": instances.c.reference == bindparam("the_reference", type_=instances.c.reference.type),
    "entered_before": instances.c.entered_at < bindparam("entered_before", type_=instances.c.entered_at.type),
}
_AFTER = bindparam("after", type_=instances.c.id.type)
_MOST = bindparam("most", type_=Integer)

Sizes = tuple[tuple[str, int], ...]
"""Columns, and how many values of each are asked for."""


def _compared(_: Database, conditions: tuple[str, ...], sizes: Sizes) -> Select[Any]:
    fits = (*_fits(conditions, sizes), instances.c.id > _AFTER)
    return select_records().where(*fits).order_by(instances.c.id).limit(_MOST)


def _merged(db: Database, conditions: tuple[str, ...], sizes: Sizes) -> Select[Any]:
    """The first instances by number. An index gives them in order for one value; for several, some of each are merged.

    Databases would read all that have one of the values and sort them, or go through everything by number.
    """
    (name, size), *others = sizes
    fits, column = _fits(conditions, others), instances.c[name]
    parts = []
    for n in range(size):
        bounds, order = db.dialect.in_order(column, _value(name, n), instances.c.id, _AFTER)
        parts.append(select(instances.c.id).where(*fits, *bounds).order_by(*order).limit(_MOST).subquery())
    if not parts:
        return select_records().where(false())
    page = union_all(*(select(part.c.id) for part in parts)).subquery("page")
    first = select(page.c.id).order_by(page.c.id).limit(_MOST).subquery("first")
    return select_records().join(first, first.c.id == instances.c.id).order_by(instances.c.id)


def _fits(conditions: Iterable[str], sizes: Iterable[tuple[str, int]]) -> list[ColumnElement[bool]]:
    compared = (one_of(instances.c[name], [_value(name, n) for n in range(size)]) for name, size in sizes)
    return [*(_CONDITIONS[name] for name in conditions), *compared]


def _value(name: str, n: int) -> BindParameter[Any]:
    return bindparam(f"{name}_{n}", type_=instances.c[name].type)


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
