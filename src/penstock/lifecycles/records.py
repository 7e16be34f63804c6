"""Instances as they are stored: read by guid or number, and shown with the names of their graph."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from msgspec import Struct
from sqlalchemy import ColumnElement, Select, bindparam, exists, literal, select

from penstock.clock import from_micros
from penstock.db.connection import Connection
from penstock.db.database import Database
from penstock.errors import NotFound
from penstock.lifecycles.model import Instance
from penstock.lifecycles.queries import graph_of
from penstock.lifecycles.rules.graph import Graph
from penstock.lifecycles.scope import Scope
from penstock.lifecycles.states import InstanceFlag
from penstock.lifecycles.tables import consumers, instances, logs

__all__ = ["INSTANCES_EACH", "Record", "find_record", "instance_of", "prior_requests", "record_of", "records_of"]

# How many instances one statement names.
INSTANCES_EACH = 1000
SHORT_GUID = 8
GUID_CHARS = 36
NEAR_LISTED_MAX = 10


class Record(Struct, frozen=True):  # made in a twentieth of the time that a frozen dataclass takes
    """An instance's row at one moment, and whether its moves are to be delivered to somebody."""

    id: int
    guid: str
    version: int
    state: int
    last_event: int | None
    flags: InstanceFlag
    reference: str | None
    revision: int
    data: Mapping[str, Any]
    created_at: int
    modified_at: int
    entered_at: int
    has_consumers: bool
    prior: int | None = None  # the entry that the same request made before


_flags = cache(InstanceFlag)  # which Python takes long to make

_COLUMNS = (
    "id", "guid", "version", "state", "last_event", "flags", "reference", "revision", "data",
    "created_at", "modified_at", "entered_at",
)  # fmt: skip


async def record_of(tx: Connection, scope: Scope, instance: str | int, request_key: str | None = None) -> Record:
    """The instance with this guid or number; a guid may be cut to its first 8 characters or more."""
    found = await find_record(tx, scope, instance, request_key)
    if found is None and isinstance(instance, str) and SHORT_GUID <= len(instance) < GUID_CHARS:
        found = await _by_beginning(tx, scope, instance, request_key)
    if found is None:
        raise NotFound(f"no instance has the {'guid' if isinstance(instance, str) else 'id'} {instance!r}")
    return found


async def find_record(
    tx: Connection, scope: Scope, instance: str | int, request_key: str | None = None
) -> Record | None:
    """The instance with exactly this guid or number."""
    by = "guid" if isinstance(instance, str) else "id"
    if isinstance(instance, str) and not _may_be_guid(instance):
        return None
    asked = {"of_tenant": scope.tenant, "wanted": instance}
    if request_key is not None:
        asked["the_request"] = request_key
    # One statement: a request that was not made when the row was as we read it, cannot be made unless the row changes.
    found = (await tx.send(scope.db.prepared(_one, by, request_key is not None), asked)).rows
    return from_row(found[0]) if found else None


def _may_be_guid(text: str) -> bool:
    """Whether a text could be a guid or the beginning of one; others may not even be storable."""
    return len(text) <= GUID_CHARS and text.isascii() and text.isprintable()


async def _by_beginning(tx: Connection, scope: Scope, start: str, request_key: str | None) -> Record | None:
    if not _may_be_guid(start):
        return None
    query = select(instances.c.guid).where(
        instances.c.tenant == scope.tenant, instances.c.guid >= start, instances.c.guid < start + "\x7f"
    )
    guids = (await tx.execute(query.order_by(instances.c.guid).limit(NEAR_LISTED_MAX + 1))).scalars().all()
    if len(guids) > 1:
        listed = "\n  ".join([*guids[:NEAR_LISTED_MAX], *["and others"] * (len(guids) > NEAR_LISTED_MAX)])
        raise NotFound(f"several instances have guids that begin with {start!r}; give more of it:\n  {listed}")
    return await find_record(tx, scope, guids[0], request_key) if guids else None


async def records_of(tx: Connection, scope: Scope, guids: Sequence[str]) -> dict[str, Record]:
    """The instances with these guids; those that are not there are left out."""
    wanted = [guid for guid in guids if _may_be_guid(guid)]
    found = await tx.execute(scope.db.prepared(_many), {"of_tenant": scope.tenant, "wanted": wanted})
    return {row[1]: from_row(row) for row in found.all()}


async def prior_requests(tx: Connection, scope: Scope, wanted: Mapping[int, str]) -> dict[int, int]:
    """Which entry each instance's request has made already. Read after the instances, see `find_record`."""
    asked = {"of_tenant": scope.tenant, "ids": list(wanted), "keys": list(set(wanted.values()))}
    found = await tx.execute(scope.db.prepared(_prior), asked)
    return {row.instance: row.sequence for row in found if wanted[row.instance] == row.request_key}


async def instance_of(tx: Connection, scope: Scope, record: Record) -> Instance:
    """The instance with the names of its graph."""
    return named(record, await graph_of(tx, scope, record.version))


def named(record: Record, graph: Graph) -> Instance:
    """The instance with the names of its graph."""
    definition = graph.version.definition
    return Instance(
        record.id,
        record.guid,
        definition.name,
        definition.id,
        definition.environment,
        record.version,
        graph.version.number,
        graph.by_id[record.state].name,
        graph.event_name(record.last_event),
        record.flags,
        record.reference,
        record.revision,
        record.data,
        from_micros(record.created_at),
        from_micros(record.modified_at),
        from_micros(record.entered_at),
    )


def select_records(prior: ColumnElement[Any] | None = None) -> Select[Any]:
    """The columns of records; say which."""
    heard = exists().where(consumers.c.tenant == instances.c.tenant)
    return select(*(instances.c[name] for name in _COLUMNS), heard, literal(None) if prior is None else prior)


def _one(_: Database, by: str, is_keyed: bool) -> Select[Any]:
    prior = None
    if is_keyed:
        prior = (
            select(logs.c.sequence)
            .where(
                logs.c.tenant == instances.c.tenant,
                logs.c.instance == instances.c.id,
                logs.c.request_key == bindparam("the_request", type_=logs.c.request_key.type),
            )
            .scalar_subquery()
        )
    column = instances.c[by]
    return select_records(prior).where(
        instances.c.tenant == bindparam("of_tenant", type_=instances.c.tenant.type),
        column == bindparam("wanted", type_=column.type),
    )


def _many(db: Database) -> Select[Any]:
    return select_records().where(db.dialect.among_of(instances.c.tenant, "of_tenant", instances.c.guid, "wanted"))


def _prior(db: Database) -> Select[Any]:
    return select(logs.c.instance, logs.c.request_key, logs.c.sequence).where(
        db.dialect.among_of(logs.c.tenant, "of_tenant", logs.c.instance, "ids"),
        db.dialect.among(logs.c.request_key, "keys"),
    )


def from_row(row: Sequence[Any]) -> Record:
    """A row of `select_records`."""
    id, guid, version, state, event, flags, reference, revision, data, created, modified, entered, heard, prior = row
    known = _flags(flags), reference, revision, data or {}, created, modified, entered, bool(heard), prior
    return Record(id, guid, version, state, event, *known)
