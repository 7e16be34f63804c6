"""Starting instances: idempotent by (version, reference), one by one or in bulk."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from itertools import islice
from typing import Any

from sqlalchemy import Select, select

from penstock.db.connection import Connection
from penstock.db.database import Database
from penstock.errors import Conflict, InvalidInput
from penstock.lifecycles.changes import Stamp, arm_started, checked_data, log_alike, tell_started
from penstock.lifecycles.model import Start, Started
from penstock.lifecycles.records import INSTANCES_EACH
from penstock.lifecycles.rules.graph import Graph
from penstock.lifecycles.scope import Scope
from penstock.lifecycles.states import InstanceFlag
from penstock.lifecycles.tables import instances, versions

__all__ = ["hold_version", "start", "start_many"]


async def start(scope: Scope, graph: Graph, wanted: Start, stamp: Stamp, tx: Connection | None = None) -> Started:
    """Start an instance, or find the one that its reference has in this version already."""
    plan = _rows(scope, graph, [wanted])
    work = partial(_start, scope, graph, plan, stamp)
    found = await (work(tx) if tx is not None else scope.db.transaction(work, "lifecycle_start"))
    return found[0]


async def start_many(scope: Scope, graph: Graph, wanted: Iterable[Start], stamp: Stamp) -> list[Started]:
    """Start many instances, a thousand in a transaction; in the order given."""
    todo, started = iter(wanted), []
    while some := list(islice(todo, INSTANCES_EACH)):
        plan = _rows(scope, graph, some)
        started += await scope.db.transaction(partial(_start, scope, graph, plan, stamp), "lifecycle_start")
    return started


async def _start(
    scope: Scope, graph: Graph, rows: Sequence[dict[str, Any]], stamp: Stamp, tx: Connection
) -> list[Started]:
    await hold_version(tx, scope, graph)
    now = (await tx.execute(select(scope.db.now()))).scalar_one()
    times = {"created_at": now, "modified_at": now, "entered_at": now}
    key = ("tenant", "version", "reference")
    new = {row["guid"]: {**row, **times} for row in rows}  # a reference that was given twice is one row
    await tx.execute(scope.db.dialect.upsert(instances, key=key, update=()), list(new.values()))
    found = await _stored(tx, scope, graph, rows)
    started, fresh = [], []
    for row in rows:
        id, guid = found[row["guid"] if row["reference"] is None else row["reference"]]
        is_new = guid == row["guid"] and new.pop(guid, None) is not None
        fresh += [(id, guid)] if is_new else []
        started.append(Started(id, guid, row["reference"], is_new))
    if fresh:
        ids = [id for id, _ in fresh]
        await log_alike(tx, scope, ids, _entry(graph, stamp, now))
        await arm_started(tx, scope, ids, graph.initial, now)
        await tell_started(tx, scope, fresh, graph.initial, now)
    return started


async def hold_version(tx: Connection, scope: Scope, graph: Graph) -> None:
    """See that the version is still there, and that it stays until we commit."""
    held = (
        select(versions.c.status)
        .where(versions.c.tenant == scope.tenant, versions.c.id == graph.version.id)
        .with_for_update(read=True)
    )
    if (await tx.execute(held)).scalar() != "Published":
        raise Conflict(f"{graph.version.title} is not published, or was deleted; no instance can start from it")


async def _stored(
    tx: Connection, scope: Scope, graph: Graph, rows: Sequence[dict[str, Any]]
) -> dict[str, tuple[int, str]]:
    """What is stored now: by reference, or by guid where there is none."""
    references = [row["reference"] for row in rows if row["reference"] is not None]
    guids = [row["guid"] for row in rows if row["reference"] is None]
    found: dict[str, tuple[int, str]] = {}
    for name, wanted in (("reference", references), ("guid", guids)):
        if wanted:
            of = {"of_tenant": scope.tenant, "wanted": wanted}
            for key, id, guid, version in await tx.execute(scope.db.prepared(_by, name), of):
                if version == graph.version.id:
                    found[key] = (id, guid)
    return found


def _by(db: Database, name: str) -> Select[Any]:
    """Instances by reference or guid; of any version, since an index on tenant and version would be the wrong one."""
    return select(instances.c[name], instances.c.id, instances.c.guid, instances.c.version).where(
        db.dialect.among_of(instances.c.tenant, "of_tenant", instances.c[name], "wanted")
    )


def _rows(scope: Scope, graph: Graph, wanted: Sequence[Start]) -> list[dict[str, Any]]:
    """New rows; guids are made here, so that a transaction that is repeated meets its own. One for each reference."""
    made: dict[str, dict[str, Any]] = {}
    rows = []
    for each in wanted:
        if each.reference is not None and not each.reference.strip():
            raise InvalidInput("a reference is text that names your record, or None")
        row = {
            "tenant": scope.tenant,
            "guid": scope.new_guid(),
            "version": graph.version.id,
            "state": graph.initial.id,
            "last_event": None,
            "flags": int(InstanceFlag.ACTIVE),
            "reference": each.reference,
            "revision": 1,
            "data": checked_data(each.data),
        }
        rows.append(row if each.reference is None else made.setdefault(each.reference, row))
    return rows


def _entry(graph: Graph, stamp: Stamp, now: int) -> dict[str, Any]:
    return {
        "kind": "started",
        "version": graph.version.id,
        "source": None,
        "event": None,
        "target": graph.initial.id,
        "instance_flags": int(InstanceFlag.ACTIVE),
        "flags": int(stamp.flags),
        "actor": stamp.actor,
        "cause": stamp.cause,
        "correlation": stamp.correlation,
        "request_key": None,
        "metadata": stamp.metadata,
        "at": now,
    }
