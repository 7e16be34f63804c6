"""All SQL of blobs. Every change of a record is a compare-and-set on its state and revision, logged with it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, Insert, Row, bindparam, delete, exists, func, insert, select, update

from penstock.blobs.model import BlobDescriptor, BlobEvent, Hold, Reference
from penstock.blobs.states import BLOB
from penstock.blobs.tables import holds, references, rows
from penstock.clock import from_micros, micros
from penstock.db.connection import Connection
from penstock.db.database import Database
from penstock.errors import Conflict, InvalidInput, NotFound
from penstock.journal import queries as journal
from penstock.journal.tables import transitions
from penstock.listing import Page

__all__ = [
    "add_reference",
    "all_after",
    "create",
    "drop_reference",
    "due_to_clear",
    "due_to_expire",
    "events",
    "find",
    "find_many",
    "forget_purged",
    "forget_temporary",
    "holds_of",
    "is_used",
    "list_blobs",
    "lock",
    "move",
    "note",
    "place_hold",
    "references_of",
    "refuse_if_used",
    "remove_hold",
    "renew",
    "tenants",
    "unswept",
    "unused_temporary",
    "valid_between",
    "without_bytes",
]

INSTANTS = ("created_at", "expires_at", "lease_until", "validated_at", "rejected_at", "deleted_at")
FLAGS = ("has_bytes", "is_temporary")
EVENTS_MAX = 1000


async def create(db: Database, tx: Connection, made: BlobDescriptor) -> None:
    """Store a new blob, and log it."""
    await tx.send(_NEW, _columns(made))
    await _log(db, tx, made, None, "created", actor=made.created_by)


async def move(
    db: Database,
    tx: Connection,
    before: BlobDescriptor,
    after: BlobDescriptor,
    event: str,
    *,
    actor: str,
    cause: str | None = None,
    details: Mapping[str, Any] | None = None,
) -> BlobDescriptor:
    """Store what a `mark_as_…` method has made of a blob, and log it; `Conflict` when it was changed meanwhile."""
    if BLOB.after(before.status, event, subject=f"blob {before.id}") != after.status:
        raise ValueError(f"{event!r} does not lead from {before.status} to {after.status}")
    made = replace(after, revision=before.revision + 1)
    values = _columns(made)
    del values["id"]
    seen = {"the_blob": before.id, "seen_state": before.status, "seen_revision": before.revision}
    if (await tx.send(_CHANGED, {**values, **seen})).matched != 1:
        raise Conflict(f"blob {before.id} was changed meanwhile; look at it again")
    await _log(db, tx, made, before.status, event, actor=actor, cause=cause, details=details)
    return made


_NEW = insert(rows)
# The columns that are sent along are set.
_CHANGED = update(rows).where(
    rows.c.id == bindparam("the_blob"),
    rows.c.state == bindparam("seen_state"),
    rows.c.revision == bindparam("seen_revision"),
)


async def lock(tx: Connection, blob: str, *guards: ColumnElement[bool], tenant: str | None = None) -> bool:
    """Raise a blob's revision, so that whoever decided from an older one does nothing; False when a guard fails.

    Until the commit nobody else changes the blob, its references or its holds.
    """
    mine = [rows.c.id == blob, *guards]
    if tenant is not None:
        mine.append(rows.c.tenant == tenant)
    return (await tx.execute(update(rows).where(*mine).values(revision=rows.c.revision + 1))).rowcount == 1


async def lock_upload(tx: Connection, begun: BlobDescriptor) -> BlobDescriptor:
    """A blob that we store or check, as it is now: it may be held. `Conflict` when it is not ours any more."""
    assert begun.lease_until is not None
    is_mine = (rows.c.state == begun.status, rows.c.lease_until == micros(begun.lease_until))
    if not await lock(tx, begun.id, *is_mine):
        raise Conflict(f"blob {begun.id} was changed meanwhile; look at it again")
    return await find(tx, begun.id)


async def renew(tx: Connection, blob: BlobDescriptor, lease_until: datetime | None) -> BlobDescriptor:
    """Change until when somebody stores or checks a blob; `Conflict` when it was changed meanwhile."""
    made = replace(blob, revision=blob.revision + 1, lease_until=lease_until)
    values = {"revision": made.revision, "lease_until": None if lease_until is None else micros(lease_until)}
    if (await tx.execute(update(rows).where(*_as_seen(blob)).values(**values))).rowcount != 1:
        raise Conflict(f"blob {blob.id} was changed meanwhile; look at it again")
    return made


async def find(tx: Connection, blob: str, *, tenant: str | None = None) -> BlobDescriptor:
    """The blob with this id, of this tenant; `NotFound` otherwise."""
    found = await find_many(tx, [blob], tenant=tenant)
    if not found:
        raise NotFound(f"no blob has the id {blob!r}")
    return found[0]


async def find_many(tx: Connection, blobs: Sequence[str], *, tenant: str | None = None) -> list[BlobDescriptor]:
    """Those of these blobs that there are."""
    query = select(rows).where(rows.c.id.in_(blobs))
    if tenant is not None:
        query = query.where(rows.c.tenant == tenant)
    return [_descriptor(row) for row in await tx.execute(query)]


async def list_blobs(
    tx: Connection,
    *,
    tenant: str | None,
    status: str | Sequence[str] | None = None,
    file_name: str | None = None,
    sha256: str | None = None,
    created_by: str | None = None,
    created_from: datetime | None = None,
    created_to: datetime | None = None,
    is_held: bool | None = None,
    is_used: bool | None = None,
    is_temporary: bool | None = None,
    cursor: str | None = None,
    limit: int = 100,
) -> Page[BlobDescriptor]:
    """Blobs that fit every filter given, newest first."""
    which: list[ColumnElement[bool]] = [] if tenant is None else [rows.c.tenant == tenant]
    if status is not None:
        which.append(rows.c.state.in_(_states([status] if isinstance(status, str) else status)))
    for column, value in ((rows.c.file_name, file_name), (rows.c.sha256, sha256), (rows.c.created_by, created_by)):
        if value is not None:
            which.append(column == value)
    if created_from is not None:
        which.append(rows.c.created_at >= micros(created_from))
    if created_to is not None:
        which.append(rows.c.created_at < micros(created_to))
    if is_temporary is not None:
        which.append(rows.c.is_temporary == int(is_temporary))
    for wanted, condition in ((is_held, _HELD), (is_used, _USED)):
        if wanted is not None:
            which.append(condition if wanted else ~condition)
    if cursor is not None:
        which.append(rows.c.id < cursor)
    query = select(rows).where(*which).order_by(rows.c.id.desc()).limit(limit + 1)
    found = [_descriptor(row) for row in await tx.execute(query)]
    return Page(found[:limit], found[limit - 1].id if len(found) > limit else None)


async def due_to_expire(db: Database, tx: Connection, *, limit: int) -> list[BlobDescriptor]:
    """Blobs that nobody has finished in time, those that are late for longest first."""
    is_late = rows.c.expires_at < db.now(), rows.c.state.in_(BLOB.sources("expired"))
    query = select(rows).where(*is_late).order_by(rows.c.expires_at).limit(limit)
    return [_descriptor(row) for row in await tx.execute(query)]


async def due_to_clear(tx: Connection, *, after: str = "", limit: int) -> list[BlobDescriptor]:
    """Blobs that are over and whose bytes may still be there, by id."""
    is_over = rows.c.state.in_(("Rejected", "Deleted")), rows.c.has_bytes == 1, rows.c.id > after
    query = select(rows).where(*is_over).order_by(rows.c.id).limit(limit)
    return [_descriptor(row) for row in await tx.execute(query)]


async def unswept(db: Database, tx: Connection, *, since_us: int) -> tuple[int, int]:
    """How many uploads are late for so long, and how many blobs are over for so long and may have bytes."""
    before = db.now() - since_us
    late = rows.c.expires_at < before, rows.c.state.in_(BLOB.sources("expired"))
    over = rows.c.state.in_(("Rejected", "Deleted")), rows.c.has_bytes == 1
    since = func.coalesce(rows.c.deleted_at, rows.c.rejected_at) < before
    counts = [select(func.count()).select_from(rows).where(*which) for which in (late, (*over, since))]
    return int((await tx.execute(counts[0])).scalar_one()), int((await tx.execute(counts[1])).scalar_one())


async def valid_between(
    tx: Connection, *, tenant: str, after: str, until: str | None, limit: int
) -> list[BlobDescriptor]:
    """Valid blobs of a tenant behind an id, up to another, by id."""
    which = [rows.c.tenant == tenant, rows.c.state == "Valid", rows.c.id > after]
    if until is not None:
        which.append(rows.c.id <= until)
    query = select(rows).where(*which).order_by(rows.c.id).limit(limit)
    return [_descriptor(row) for row in await tx.execute(query)]


async def all_after(tx: Connection, *, after: str, limit: int) -> list[BlobDescriptor]:
    """Blobs of all tenants behind an id, by id."""
    query = select(rows).where(rows.c.id > after).order_by(rows.c.id).limit(limit)
    return [_descriptor(row) for row in await tx.execute(query)]


async def tenants(tx: Connection) -> list[str]:
    """Every tenant that has a blob."""
    return list((await tx.execute(select(rows.c.tenant).distinct())).scalars())


async def unused_temporary(tx: Connection, *, before: int, limit: int) -> list[BlobDescriptor]:
    """Temporary blobs that were validated before an instant, and that nothing uses or holds."""
    is_old = rows.c.validated_at < before, rows.c.is_temporary == 1, rows.c.state == "Valid"
    query = select(rows).where(*is_old, ~_HELD, ~_USED).order_by(rows.c.id).limit(limit)
    return [_descriptor(row) for row in await tx.execute(query)]


async def forget_temporary(tx: Connection, *, before: int, limit: int) -> bool:
    """Remove the records of temporary blobs that were rejected before an instant; whether there may be more."""
    is_old = rows.c.rejected_at < before, rows.c.is_temporary == 1
    is_over = rows.c.state == "Rejected", rows.c.has_bytes == 0
    found = (await tx.execute(select(rows.c.id).where(*is_over, *is_old).limit(limit))).scalars().all()
    await _forget(tx, found)
    return len(found) == limit


async def without_bytes(tx: Connection, blob: BlobDescriptor) -> bool:
    """Note that the storage has no bytes of a blob any more; False when it was changed meanwhile."""
    values = {"has_bytes": 0, "revision": blob.revision + 1}
    return (await tx.execute(update(rows).where(*_as_seen(blob)).values(**values))).rowcount == 1


async def forget_purged(tx: Connection, blobs: Sequence[str]) -> None:
    """Remove the records of those of these blobs that were made for an operation and are deleted."""
    if blobs:
        over = rows.c.id.in_(blobs), rows.c.state == "Deleted", rows.c.is_temporary == 1, rows.c.has_bytes == 0
        await _forget(tx, (await tx.execute(select(rows.c.id).where(*over))).scalars().all())


async def _forget(tx: Connection, blobs: Sequence[str]) -> None:
    """Remove the records of blobs with their logs."""
    if blobs:
        mine = transitions.c.machine == BLOB.name, transitions.c.subject.in_(blobs)
        await tx.execute(delete(transitions).where(*mine))
        await tx.execute(delete(rows).where(rows.c.id.in_(blobs)))


# --- references and holds. Whoever writes one has locked the blob before.


async def add_reference(db: Database, tx: Connection, blob: str, owner: str) -> None:
    """Note that something uses the blob; to note it again changes nothing."""
    await tx.send(db.prepared(_referenced), [{"blob": blob, "owner": owner}])


def _referenced(db: Database) -> Insert:
    return db.dialect.upsert(references, key=("blob", "owner"), update=()).values(since=db.now())


async def drop_reference(tx: Connection, blob: str, owner: str) -> bool:
    """Note that something does not use the blob any more; False when it did not."""
    mine = references.c.blob == blob, references.c.owner == owner
    return (await tx.execute(delete(references).where(*mine))).rowcount == 1


async def references_of(tx: Connection, blob: str, *, limit: int) -> list[Reference]:
    """What uses the blob, by owner."""
    query = select(references).where(references.c.blob == blob).order_by(references.c.owner).limit(limit)
    return [Reference(row.owner, from_micros(row.since)) for row in await tx.execute(query)]


async def place_hold(db: Database, tx: Connection, blob: BlobDescriptor, hold: Hold) -> bool:
    """Place a hold and log it; False when there is one of that name."""
    if any(hold.name == placed.name for placed in await holds_of(tx, blob.id)):
        return False
    placed_at = micros(hold.placed_at)
    values = {"blob": blob.id, "name": hold.name, "reason": hold.reason, "placed_by": hold.placed_by}
    await tx.execute(insert(holds).values(placed_at=placed_at, **values))
    await note(db, tx, blob, "held", actor=hold.placed_by, cause=hold.reason, details={"hold": hold.name})
    return True


async def remove_hold(tx: Connection, blob: str, name: str) -> bool:
    """Remove a hold; False when there is none of that name."""
    return (await tx.execute(delete(holds).where(holds.c.blob == blob, holds.c.name == name))).rowcount == 1


async def holds_of(tx: Connection, blob: str) -> list[Hold]:
    """The holds on a blob, by name."""
    found = await tx.execute(select(holds).where(holds.c.blob == blob).order_by(holds.c.name))
    return [Hold(row.name, row.reason, row.placed_by, from_micros(row.placed_at)) for row in found]


async def is_used(tx: Connection, blob: str) -> bool:
    """Whether something uses or holds a blob."""
    return bool(await holds_of(tx, blob) or await references_of(tx, blob, limit=1))


async def refuse_if_used(tx: Connection, blob: str) -> None:
    """`Conflict` that names what keeps a blob from being deleted."""
    placed = await holds_of(tx, blob)
    if placed:
        named = ", ".join(f"{hold.name!r} ({hold.reason})" for hold in placed)
        raise Conflict(f"blob {blob} is held: {named}; release it first")
    used = await references_of(tx, blob, limit=5)
    if used:
        raise Conflict(f"blob {blob} is used by {', '.join(reference.owner for reference in used)}")


# --- the log


async def note(
    db: Database,
    tx: Connection,
    blob: BlobDescriptor,
    event: str,
    *,
    actor: str,
    cause: str | None = None,
    details: Mapping[str, Any] | None = None,
) -> None:
    """Log something that leaves the blob's state as it is."""
    await _log(db, tx, blob, blob.status, event, actor=actor, cause=cause, details=details)


async def events(tx: Connection, blob: str) -> list[BlobEvent]:
    """The log of a blob, in the order in which it was written."""
    found = await journal.entries(tx, machine=BLOB.name, subject=blob, limit=EVENTS_MAX)
    return [
        BlobEvent(
            line.sequence, line.source, line.event, line.target, from_micros(line.at), line.actor, line.cause,
            line.details,
        )
        for line in found
    ]  # fmt: skip


async def _log(
    db: Database,
    tx: Connection,
    blob: BlobDescriptor,
    source: str | None,
    event: str,
    *,
    actor: str,
    cause: str | None = None,
    details: Mapping[str, Any] | None = None,
) -> None:
    await journal.record(
        db,
        tx,
        machine=BLOB.name,
        subject=blob.id,
        source=source,
        event=event,
        target=blob.status,
        actor=actor,
        cause=cause,
        details=details,
    )


_HELD = exists().where(holds.c.blob == rows.c.id)
_USED = exists().where(references.c.blob == rows.c.id)


def _as_seen(blob: BlobDescriptor) -> tuple[ColumnElement[bool], ...]:
    return rows.c.id == blob.id, rows.c.state == blob.status, rows.c.revision == blob.revision


def _states(wanted: Sequence[str]) -> list[str]:
    unknown = [each for each in wanted if each not in BLOB.states]
    if unknown:
        raise InvalidInput(f"no blob is ever {', '.join(map(repr, unknown))}; they are: {', '.join(BLOB.states)}")
    return list(wanted)


def _columns(blob: BlobDescriptor) -> dict[str, Any]:
    values = {name: getattr(blob, name) for name in BlobDescriptor.__dataclass_fields__ if name != "status"}
    for name in INSTANTS:
        values[name] = None if values[name] is None else micros(values[name])
    for name in FLAGS:
        values[name] = int(values[name])
    return {**values, "state": blob.status}


def _descriptor(row: Row[Any]) -> BlobDescriptor:
    values = dict(row._mapping)
    for name in INSTANTS:
        values[name] = None if values[name] is None else from_micros(values[name])
    for name in FLAGS:
        values[name] = bool(values[name])
    return BlobDescriptor(status=values.pop("state"), **values)
