"""The only writer of instances: a compare-and-set on (state, revision), with everything that goes with it.

Each change of an instance raises its revision and adds the log entry of that number; a move also sets and cancels
timers and leaves word for consumers. All of it is one transaction, the caller's.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec
from msgspec import Struct
from sqlalchemy import (
    ColumnElement,
    Delete,
    Insert,
    Update,
    and_,
    bindparam,
    delete,
    exists,
    insert,
    literal,
    literal_column,
    or_,
    select,
    update,
)

from penstock.db.connection import Connection
from penstock.db.database import Database
from penstock.errors import InvalidInput
from penstock.lifecycles.records import Record
from penstock.lifecycles.rules.effects import EFFECT_ATTEMPTS_MAX, effect_consumer
from penstock.lifecycles.rules.graph import LifecycleState, effects_of
from penstock.lifecycles.scope import Scope
from penstock.lifecycles.states import EntryKind, InstanceFlag, LogFlag
from penstock.lifecycles.tables import consumers, deliveries, instances, logs, timers

__all__ = ["Change", "Stamp", "checked_data", "entry_columns", "message_id", "write", "write_many"]


DATA_BYTES_MAX = 1024 * 1024


def checked_data(data: Mapping[str, Any] | None, what: str = "data") -> dict[str, Any] | None:
    """Data or metadata that can be stored; None for none."""
    if not data:
        return None
    if not isinstance(data, Mapping):
        raise InvalidInput(f"{what} is a mapping of names to JSON values; found {type(data).__name__}")
    try:
        size = len(msgspec.json.encode(data))
    except (TypeError, UnicodeEncodeError) as error:
        raise InvalidInput(f"{what} is JSON: {error}") from None
    if size > DATA_BYTES_MAX:
        raise InvalidInput(f"{what} has {size:,} bytes; {DATA_BYTES_MAX:,} fit")
    return dict(data)


@dataclass(frozen=True, slots=True)
class Stamp:
    """Who asked for a change, and why."""

    actor: str
    cause: str | None = None
    correlation: str | None = None
    request_key: str | None = None
    metadata: Mapping[str, Any] | None = None
    flags: LogFlag = LogFlag.NONE

    def again(self) -> Stamp:
        """The stamp of a change that is tried again after a conflict."""
        return replace(self, flags=self.flags | LogFlag.RETRY)


class Change(Struct, frozen=True):
    """What an instance becomes, and how the log tells it. `leaves` is the state that it was in, unless that stays."""

    record: Record
    kind: EntryKind
    version: int
    definition: int
    state: LifecycleState
    flags: InstanceFlag
    stamp: Stamp
    leaves: LifecycleState | None = None
    event: int | None = None
    last_event: int | None = None
    data: Mapping[str, Any] | None = None  # None leaves it as it is
    arms: bool = True  # the timer of the state it enters

    @property
    def sequence(self) -> int:
        """The number of its log entry."""
        return self.record.revision + 1

    @property
    def enters(self) -> bool:
        """Whether its time in its state begins now: a migration takes nobody into a state who was not there."""
        return self.leaves is not None and self.kind != "migrated"

    @property
    def is_told(self) -> bool:
        """Whether consumers hear of it, if there are any."""
        return self.kind in ("moved", "forced")

    @property
    def effects(self) -> tuple[str, ...]:
        """What is done after it, in order; nothing after a migration."""
        return effects_of(self.leaves, self.state) if self.is_told else ()


async def write(tx: Connection, scope: Scope, change: Change) -> bool:
    """Make a change; False, with nothing written, when the instance is no longer as it was read.

    So too when there were no consumers to be told of it, and now there are.
    """
    db, record = scope.db, change.record
    is_alone = change.is_told and not record.has_consumers
    has_data = change.data is not None
    values = {
        "of_tenant": scope.tenant,
        "the_id": record.id,
        "the_state": record.state,
        "the_revision": record.revision,
        **_columns(change),
    }
    if has_data:
        values["data"] = change.data
    if (await tx.send(db.prepared(_changed, change.enters, is_alone), values)).matched != 1:
        return False
    await tx.send(db.prepared(_entry), entry_columns(scope, change))
    if change.leaves is not None:
        await _set_timer(tx, scope, change, change.leaves)
    if change.is_told and not is_alone:
        told = {"the_prefix": f"{record.guid}:{change.sequence}:", "the_instance": record.id}
        told |= {"the_sequence": change.sequence, "of_tenant": scope.tenant, "the_definition": change.definition}
        await tx.send(db.prepared(_told), told)
    if effects := change.effects:
        now = (await tx.execute(select(db.now()))).scalar_one()
        await tx.execute(
            insert(deliveries), effect_rows(scope, record.id, record.guid, effects, sequence=change.sequence, now=now)
        )
    return True


async def write_many(tx: Connection, scope: Scope, changes: Sequence[Change]) -> set[int]:
    """Make many changes of different instances, set by set; the ids of those that were still as they were read."""
    wanted = {change.record.id: change for change in changes}
    found = await tx.execute(scope.db.prepared(_locked), {"of_tenant": scope.tenant, "ids": list(wanted)})
    # The rows are ours until the commit: what is compared now is what is changed.
    mine = [wanted[id] for id, revision in found.all() if revision == wanted[id].record.revision]
    groups: dict[tuple[Any, ...], list[Change]] = {}
    for change in mine:
        made = change.version, change.state.id, change.last_event, change.flags, change.enters
        groups.setdefault(made, []).append(change)
    for group in groups.values():
        ids = [change.record.id for change in group]
        changed = scope.db.prepared(_changed_many, group[0].enters)
        done = await tx.execute(changed, {"of_tenant": scope.tenant, "ids": ids, **_columns(group[0])})
        if done.rowcount != len(ids):
            raise RuntimeError(f"{done.rowcount} of {len(ids)} locked instances were changed")
    if mine:
        now = (await tx.execute(select(scope.db.now()))).scalar_one()
        await _log_many(tx, scope, mine, now)
        await _set_timers(tx, scope, mine, now)
        await _tell(tx, scope, mine, now)
    return {change.record.id for change in mine}


async def _log_many(tx: Connection, scope: Scope, changes: Sequence[Change], now: int) -> None:
    """The entries of changes that were made: in one statement where they differ in nothing but the instance."""
    groups: dict[tuple[Any, ...], list[Change]] = {}
    for change in changes:
        made = change.record.state, change.event, change.kind, change.state.id, change.flags, change.version
        groups.setdefault((*made, id(change.stamp)), []).append(change)
    single: list[Mapping[str, Any]] = []
    for group in groups.values():
        entry = {**entry_columns(scope, group[0]), "at": now}
        if len(group) == 1:
            single.append(entry)
        else:
            await log_alike(tx, scope, [change.record.id for change in group], entry)
    if single:
        await tx.send(_ENTRIES, single)


async def log_alike(tx: Connection, scope: Scope, ids: Sequence[int], entry: Mapping[str, Any]) -> None:
    """Add the same entry for each of some instances, numbered by its revision."""
    values = {f"the_{name}": value for name, value in entry.items() if name not in _FROM_INSTANCE}
    await tx.execute(scope.db.prepared(_alike_entries), {**values, "of_tenant": scope.tenant, "ids": ids})


def message_id(guid: str, sequence: int, consumer: str) -> str:
    """What a delivery is known by: the entry it is about, and for whom it is."""
    return f"{guid}:{sequence}:{consumer}"


def entry_columns(scope: Scope, change: Change) -> dict[str, Any]:
    """The log entry of a change, without its time."""
    stamp = change.stamp
    return {
        "tenant": scope.tenant,
        "instance": change.record.id,
        "sequence": change.sequence,
        "kind": change.kind,
        "version": change.version,
        "source": change.record.state,
        "event": change.event,
        "target": change.state.id,
        "instance_flags": int(change.flags),
        "flags": int(stamp.flags),
        "actor": stamp.actor,
        "cause": stamp.cause,
        "correlation": stamp.correlation,
        "request_key": stamp.request_key,
        "metadata": stamp.metadata,
    }


def _columns(change: Change) -> dict[str, Any]:
    return {
        "version": change.version,
        "state": change.state.id,
        "last_event": change.last_event,
        "flags": int(change.flags),
    }


# --- timers


async def _set_timer(tx: Connection, scope: Scope, change: Change, leaves: LifecycleState) -> None:
    the = {"of_tenant": scope.tenant, "the_instance": change.record.id}
    if leaves.timeout is not None:
        await tx.send(scope.db.prepared(_cancelled), the)
    if change.state.timeout is not None and change.arms:
        wait = {"wait_us": change.state.timeout.duration_us, "the_sequence": change.sequence}
        await tx.send(scope.db.prepared(_armed), {**the, **wait})


async def _set_timers(tx: Connection, scope: Scope, changes: Sequence[Change], now: int) -> None:
    timed = [change for change in changes if change.leaves is not None and change.leaves.timeout is not None]
    spent = await _spent_timers(tx, scope, [change.record.id for change in timed if not change.enters])
    if timed:
        left = [change.record.id for change in timed]
        await tx.execute(delete(timers).where(timers.c.tenant == scope.tenant, timers.c.instance.in_(left)))
    rows = [
        {
            "tenant": scope.tenant,
            "instance": change.record.id,
            "sequence": change.sequence,
            "due_at": (now if change.enters else change.record.entered_at) + change.state.timeout.duration_us,
            "firings": 0,
        }
        for change in changes
        if change.leaves is not None and change.state.timeout is not None and change.arms
        if change.state.timeout.repeats or change.record.id not in spent
    ]
    if rows:
        await tx.execute(insert(timers), rows)


async def _spent_timers(tx: Connection, scope: Scope, ids: Sequence[int]) -> set[int]:
    """Which of these instances, whose states have timeouts, have no timer any more: it has fired, and fires once."""
    if not ids:
        return set()
    query = select(timers.c.instance).where(timers.c.tenant == scope.tenant, timers.c.instance.in_(ids))
    return set(ids) - set((await tx.execute(query)).scalars())


async def arm_started(tx: Connection, scope: Scope, ids: Sequence[int], state: LifecycleState, now: int) -> None:
    """Set the timers of instances that start in a state."""
    if state.timeout is None or not ids:
        return
    due = now + state.timeout.duration_us
    rows = [{"tenant": scope.tenant, "instance": id, "sequence": 1, "due_at": due, "firings": 0} for id in ids]
    await tx.execute(insert(timers), rows)


# --- word for consumers


async def _tell(tx: Connection, scope: Scope, changes: Sequence[Change], now: int) -> None:
    rows = [
        row
        for each in changes
        if (effects := each.effects)
        for row in effect_rows(scope, each.record.id, each.record.guid, effects, sequence=each.sequence, now=now)
    ]
    told = [change for change in changes if change.is_told]
    found = (await tx.execute(select(consumers).where(consumers.c.tenant == scope.tenant))).all() if told else []
    rows += [
        {
            "tenant": scope.tenant,
            "message_id": message_id(change.record.guid, change.sequence, consumer.name),
            "consumer": consumer.name,
            "instance": change.record.id,
            "sequence": change.sequence,
            "state": "Pending",
            "attempts": 0,
            "attempts_max": consumer.attempts_max,
            "due_at": now,
            "created_at": now,
            "modified_at": now,
        }
        for change in told
        for consumer in found
        if consumer.definition in (None, change.definition)
    ]
    if rows:
        await tx.execute(insert(deliveries), rows)


def effect_rows(
    scope: Scope, id: int, guid: str, effects: Sequence[str], *, sequence: int, now: int
) -> list[dict[str, Any]]:
    """The deliveries of what is done after an instance's log entry, each under a name that keeps their order."""
    names = [effect_consumer(place, name) for place, name in enumerate(effects)]
    return [
        {
            "tenant": scope.tenant,
            "message_id": message_id(guid, sequence, name),
            "consumer": name,
            "instance": id,
            "sequence": sequence,
            "state": "Pending",
            "attempts": 0,
            "attempts_max": EFFECT_ATTEMPTS_MAX,
            "due_at": now,
            "created_at": now,
            "modified_at": now,
        }
        for name in names
    ]


async def tell_started(
    tx: Connection, scope: Scope, started: Sequence[tuple[int, str]], state: LifecycleState, now: int
) -> None:
    """Leave word of the effects of the state in which instances start."""
    effects = effects_of(None, state)
    rows = [row for id, guid in started for row in effect_rows(scope, id, guid, effects, sequence=1, now=now)]
    if rows:
        await tx.execute(insert(deliveries), rows)


# --- statements


def _is_it() -> Any:
    return and_(
        instances.c.tenant == bindparam("of_tenant", type_=instances.c.tenant.type),
        instances.c.id == bindparam("the_id", type_=instances.c.id.type),
        instances.c.state == bindparam("the_state", type_=instances.c.state.type),
        instances.c.revision == bindparam("the_revision", type_=instances.c.revision.type),
    )


def _numbered(db: Database) -> ColumnElement[bool]:
    """Some instances by number. Their tenant is compared, not looked up: a database without statistics takes it for
    rare, and would go through all that the tenant has.
    """
    tenant = instances.c.tenant + literal_column("''")
    return and_(
        tenant == bindparam("of_tenant", type_=instances.c.tenant.type), db.dialect.among(instances.c.id, "ids")
    )


def _changed(db: Database, enters: bool, is_alone: bool) -> Update:
    times = {"modified_at": db.now(), **({"entered_at": db.now()} if enters else {})}
    changed = update(instances).where(_is_it()).values(revision=instances.c.revision + 1, **times)
    return changed.where(~exists().where(consumers.c.tenant == instances.c.tenant)) if is_alone else changed


def _changed_many(db: Database, enters: bool) -> Update:
    times = {"modified_at": db.now(), **({"entered_at": db.now()} if enters else {})}
    names = ("version", "state", "last_event", "flags")
    values = {name: bindparam(name, type_=instances.c[name].type) for name in names}
    return update(instances).where(_numbered(db)).values(revision=instances.c.revision + 1, **times, **values)


def _locked(db: Database) -> Any:
    return (
        select(instances.c.id, instances.c.revision)
        .where(_numbered(db))
        .order_by(instances.c.id)  # all who lock several take them in one order
        .with_for_update()
    )


def _entry(db: Database) -> Insert:
    return insert(logs).values(at=db.now())


_ENTRIES = insert(logs)

_FROM_INSTANCE = {"tenant": instances.c.tenant, "instance": instances.c.id, "sequence": instances.c.revision}


def _alike_entries(db: Database) -> Insert:
    """The same entry for each of some instances that were changed."""
    values = [
        _FROM_INSTANCE.get(column.name, bindparam(f"the_{column.name}", type_=column.type)) for column in logs.columns
    ]
    changed = select(*values).where(_numbered(db))
    return insert(logs).from_select([column.name for column in logs.columns], changed)


def _cancelled(_: Database) -> Delete:
    return delete(timers).where(
        timers.c.tenant == bindparam("of_tenant", type_=timers.c.tenant.type),
        timers.c.instance == bindparam("the_instance", type_=timers.c.instance.type),
    )


def _armed(db: Database) -> Insert:
    wait = bindparam("wait_us", type_=timers.c.due_at.type)
    return insert(timers).values(
        tenant=bindparam("of_tenant", type_=timers.c.tenant.type),
        instance=bindparam("the_instance", type_=timers.c.instance.type),
        sequence=bindparam("the_sequence", type_=timers.c.sequence.type),
        due_at=db.now() + wait,
        firings=0,
    )


def _told(db: Database) -> Insert:
    """Word for every consumer of this definition's moves."""
    tenant = bindparam("of_tenant", type_=deliveries.c.tenant.type)
    definition = bindparam("the_definition", type_=consumers.c.definition.type)
    now = db.now()
    columns = {
        "tenant": consumers.c.tenant,
        "message_id": bindparam("the_prefix", type_=deliveries.c.message_id.type) + consumers.c.name,
        "consumer": consumers.c.name,
        "instance": bindparam("the_instance", type_=deliveries.c.instance.type),
        "sequence": bindparam("the_sequence", type_=deliveries.c.sequence.type),
        "state": literal("Pending", deliveries.c.state.type),
        "attempts": literal(0, deliveries.c.attempts.type),
        "attempts_max": consumers.c.attempts_max,
        "due_at": now,
        "created_at": now,
        "modified_at": now,
    }
    heard = consumers.c.tenant == tenant, or_(consumers.c.definition.is_(None), consumers.c.definition == definition)
    return insert(deliveries).from_select(list(columns), select(*columns.values()).where(*heard))
