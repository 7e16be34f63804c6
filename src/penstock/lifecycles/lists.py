"""Lists and counts of instances."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import ColumnElement, Table, func, select

from penstock.db.connection import Connection
from penstock.errors import InvalidInput
from penstock.graphs.names import name_key
from penstock.lifecycles.log import one_of
from penstock.lifecycles.model import Count, Instance
from penstock.lifecycles.queries import graph_of
from penstock.lifecycles.records import INSTANCES_EACH, from_row, instance_of, select_records
from penstock.lifecycles.scope import Scope
from penstock.lifecycles.states import InstanceFlag
from penstock.lifecycles.tables import events, instances, states, versions
from penstock.listing import Page

__all__ = ["count_instances", "counts", "flag_conditions", "guids_by_reference", "list_instances"]


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
    query = select_records().where(instances.c.tenant == scope.tenant, *flag_conditions(all_of, any_of, none_of))
    if state is not None:
        query = query.where(one_of(instances.c.state, await _ids(tx, scope, states, state, known)))
    if last_event is not None:
        query = query.where(one_of(instances.c.last_event, await _ids(tx, scope, events, last_event, known)))
    if known is not None and state is None and last_event is None:  # these are of one version each
        query = query.where(one_of(instances.c.version, known))
    if reference is not None:
        query = query.where(instances.c.reference == reference)
    if entered_before_us is not None:
        query = query.where(instances.c.entered_at < entered_before_us)
    if cursor is not None:
        if not cursor.isdigit():
            raise InvalidInput(f"{cursor!r} is no cursor of this list; pass the next cursor of an earlier page")
        query = query.where(instances.c.id > int(cursor))
    found = [from_row(row) for row in await tx.execute(query.order_by(instances.c.id).limit(limit + 1))]
    shown = [await instance_of(tx, scope, record) for record in found[:limit]]
    return Page(shown, str(found[limit - 1].id) if len(found) > limit else None)


async def guids_by_reference(
    tx: Connection, scope: Scope, definition: int, references: Sequence[str]
) -> dict[str, str]:
    """The guids of the instances that references have, each in the newest version that has one."""
    query = (
        select(instances.c.reference, instances.c.guid)
        .join(versions, (versions.c.tenant == instances.c.tenant) & (versions.c.id == instances.c.version))
        .where(instances.c.tenant == scope.tenant, versions.c.definition == definition)
        .order_by(versions.c.number)
    )
    found: dict[str, str] = {}
    for first in range(0, len(references), INSTANCES_EACH):
        some = instances.c.reference.in_(references[first : first + INSTANCES_EACH])
        found |= {row.reference: row.guid for row in await tx.execute(query.where(some))}
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
    found: list[ColumnElement[bool]] = []
    flags = instances.c.flags
    if all_of:
        found.append(flags.bitwise_and(int(all_of)) == int(all_of))
    if any_of:
        found.append(flags.bitwise_and(int(any_of)) != 0)
    if none_of:
        found.append(flags.bitwise_and(int(none_of)) == 0)
    return found


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
