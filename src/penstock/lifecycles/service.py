"""`penstock.lifecycles`: everything a caller can ask of definitions and instances."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any

from sqlalchemy import select

from penstock.clock import micros
from penstock.db.connection import Connection
from penstock.db.unit import UnitOfWork, joined
from penstock.errors import InvalidInput
from penstock.lifecycles import bulk, lists, log, proving, purging, queries, starting, triggering
from penstock.lifecycles.actions import InstanceActions
from penstock.lifecycles.definitions import VersionName
from penstock.lifecycles.deliveries import Deliveries, Span, micros_of
from penstock.lifecycles.model import (
    Available,
    Count,
    Difference,
    Instance,
    LogEntry,
    Outcome,
    Start,
    Started,
    Trigger,
)
from penstock.lifecycles.monitoring import Tick, tick
from penstock.lifecycles.records import instance_of, record_of
from penstock.lifecycles.scope import Scope
from penstock.lifecycles.states import InstanceFlag, LogFlag
from penstock.listing import Page

__all__ = ["Lifecycles"]

NONE = InstanceFlag.NONE
TICK_EACH = 100
TICK_LEASE_S = 60


class Lifecycles(InstanceActions):
    """The lifecycles of one tenant. Instances are named by guid (8 characters or more of it) or by number."""

    def __init__(self, scope: Scope) -> None:
        super().__init__(scope)
        self.deliveries = Deliveries(scope)
        self._tenants: dict[str, Lifecycles] = {scope.tenant: self}

    def tenant(self, name: str) -> Lifecycles:
        """The lifecycles of another tenant; nothing of one is seen by another."""
        if name not in self._tenants:
            self._tenants[name] = Lifecycles(replace(self._scope, tenant=name, graphs={}))
        return self._tenants[name]

    def seen_by(self, tenant: str, *, actor: str) -> Lifecycles:
        """The same for one caller of a tenant, in whose name changes are made."""
        return Lifecycles(replace(self.tenant(tenant)._scope, actor=actor))

    async def tenants(self) -> list[str]:
        """Every tenant that has instances; the one without a name is ''."""
        return await proving.tenants(self._scope)

    # --- instances

    async def start(
        self,
        definition: str | int,
        reference: str | None = None,
        *,
        data: Mapping[str, Any] | None = None,
        version: VersionName = None,
        environment: str | int | None = None,
        actor: str | None = None,
        cause: str | None = None,
        correlation: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        tx: UnitOfWork | None = None,
    ) -> Instance:
        """Start an instance in the initial state of a version: the latest published one unless named.

        A reference has one instance in a version: started again, it is found, and its data stays as it is.
        """
        async with triggering.reading(self._scope, joined(tx)) as look:
            graph = await self._graph(look, definition, version, environment)
        stamp = self._stamp(actor, cause, correlation, metadata)
        started = await starting.start(self._scope, graph, Start(reference, data), stamp, joined(tx))
        return await self.get(started.id, tx=tx)

    async def start_many(
        self,
        definition: str | int,
        wanted: Iterable[Start | str],
        *,
        version: VersionName = None,
        environment: str | int | None = None,
        actor: str | None = None,
        cause: str | None = None,
        correlation: str | None = None,
    ) -> list[Started]:
        """Start many instances, from references or `Start(reference, data)`, a thousand in a transaction."""
        async with self._scope.db.read() as tx:
            graph = await self._graph(tx, definition, version, environment)
        todo = (each if isinstance(each, Start) else Start(each) for each in wanted)
        return await starting.start_many(self._scope, graph, todo, self._stamp(actor, cause, correlation))

    async def get(self, instance: str | int, *, tx: UnitOfWork | None = None) -> Instance:
        """One instance."""
        async with triggering.reading(self._scope, joined(tx)) as look:
            return await instance_of(look, self._scope, await record_of(look, self._scope, instance))

    async def instances(
        self,
        *,
        definition: str | int | None = None,
        version: VersionName = None,
        environment: str | int | None = None,
        state: str | None = None,
        last_event: str | None = None,
        reference: str | None = None,
        all_of: InstanceFlag = NONE,
        any_of: InstanceFlag = NONE,
        none_of: InstanceFlag = NONE,
        in_state_for: Span | None = None,
        cursor: str | None = None,
        limit: int = 100,
    ) -> Page[Instance]:
        """Instances that fit every filter given, in the order they were started."""
        scope = self._scope
        async with scope.db.read() as tx:
            which = await self._which(tx, definition, version, environment)
            before = None
            if in_state_for is not None:
                before = (await tx.execute(select(scope.db.now()))).scalar_one() - micros_of(in_state_for)
            return await lists.list_instances(
                tx,
                scope,
                **which,
                state=state,
                last_event=last_event,
                reference=reference,
                all_of=all_of,
                any_of=any_of,
                none_of=none_of,
                entered_before_us=before,
                cursor=cursor,
                limit=scope.page(limit),
            )

    async def guids(
        self, definition: str | int, references: Iterable[str], *, environment: str | int | None = None
    ) -> dict[str, str]:
        """The guids of the instances that references have in any version, the newest one first; others are left out."""
        async with self._scope.db.read() as tx:
            found = await queries.definition_named(tx, self._scope, definition, environment)
            return await lists.guids_by_reference(tx, self._scope, found.id, list(dict.fromkeys(references)))

    async def counts(
        self,
        *,
        definition: str | int | None = None,
        version: VersionName = None,
        environment: str | int | None = None,
    ) -> list[Count]:
        """How many instances are where, by version, state and flags."""
        async with self._scope.db.read() as tx:
            return await lists.counts(tx, self._scope, **await self._which(tx, definition, version, environment))

    async def count(
        self,
        *,
        definition: str | int | None = None,
        version: VersionName = None,
        environment: str | int | None = None,
        all_of: InstanceFlag = NONE,
        any_of: InstanceFlag = NONE,
        none_of: InstanceFlag = NONE,
    ) -> int:
        """How many instances there are, of a version and with flags if asked for."""
        async with self._scope.db.read() as tx:
            which = await self._which(tx, definition, version, environment)
            return await lists.count_instances(tx, self._scope, **which, all_of=all_of, any_of=any_of, none_of=none_of)

    # --- events

    async def trigger(
        self,
        instance: str | int,
        event: str,
        *,
        request_key: str | None = None,
        actor: str | None = None,
        cause: str | None = None,
        correlation: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        flags: LogFlag = LogFlag.NONE,
        retries: int = 0,
        tx: UnitOfWork | None = None,
    ) -> Outcome:
        """Move an instance by an event: state, flags, log entry, timers and deliveries in one transaction.

        Refusals are values. A request key makes it safe to ask again: the second answer is what the first came to.
        Of several at once one wins, and the others are told of a conflict, or tried again `retries` times.
        """
        stamp = self._stamp(actor, cause, correlation, metadata, flags=flags, request_key=request_key)
        return await triggering.trigger(self._scope, instance, event, stamp, retries=retries, tx=joined(tx))

    async def trigger_many(
        self,
        triggers: Iterable[Trigger | str],
        event: str | None = None,
        *,
        actor: str | None = None,
        cause: str | None = None,
        correlation: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        flags: LogFlag = LogFlag.NONE,
        retries: int = 3,
    ) -> list[Outcome]:
        """Move many instances, a thousand in a transaction, and say what became of each, in the order given.

        Give guids and one event, or `Trigger(guid, event)` for each.
        """
        stamp = self._stamp(actor, cause, correlation, metadata, flags=flags)
        return await bulk.trigger_many(self._scope, _triggers(triggers, event), stamp, retries=retries)

    async def can(
        self,
        instance: str | int,
        event: str,
        *,
        actor: str | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> Outcome:
        """What a trigger would come to now; nothing moves. Its kind is `allowed` where it would be applied."""
        return await triggering.can(self._scope, instance, event, self._stamp(actor, metadata=metadata))

    async def available_events(
        self, instance: str | int, *, actor: str | None = None, metadata: Mapping[str, Any] | None = None
    ) -> list[Available]:
        """The events that an instance's state admits, and what its guards say now."""
        return await triggering.available(self._scope, instance, self._stamp(actor, metadata=metadata))

    # --- the log

    async def log(
        self,
        instance: str | int | None = None,
        *,
        definition: str | int | None = None,
        environment: str | int | None = None,
        source: str | None = None,
        target: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        correlation: str | None = None,
        newest_first: bool = False,
        cursor: str | None = None,
        limit: int = 100,
    ) -> Page[LogEntry]:
        """Log entries that fit every filter given: of an instance, between two states, in a span of time."""
        scope = self._scope
        async with scope.db.read() as tx:
            which = await self._which(tx, definition, None, environment)
            return await log.entries(
                tx,
                scope,
                instance=None if instance is None else (await record_of(tx, scope, instance)).id,
                definition=which["definition"],
                source=source,
                target=target,
                since_us=_instant(since),
                until_us=_instant(until),
                correlation=correlation,
                newest_first=newest_first,
                cursor=cursor,
                limit=scope.page(limit),
            )

    async def latest(self, instance: str | int) -> LogEntry | None:
        """The newest log entry of an instance; None when all were purged."""
        async with self._scope.db.read() as tx:
            return await log.latest(tx, self._scope, (await record_of(tx, self._scope, instance)).id)

    async def purge(self, before: datetime, *, dry_run: bool = False) -> int:
        """Remove log entries written before an instant, and say how many; what is left still explains every state."""
        instant = _instant(before)
        assert instant is not None
        if dry_run:
            return await purging.count_purgeable(self._scope, instant)
        return await purging.purge(self._scope, instant)

    async def rebuild_indexes(self) -> None:
        """Let the database rebuild the indexes of the lifecycle tables, as after a large purge."""
        await purging.rebuild_indexes(self._scope)

    async def verify(self) -> tuple[int, list[Difference]]:
        """Fold the log of every instance and compare: how many there are, and every difference."""
        return await proving.verify(self._scope)

    # --- the monitor

    async def tick(self, *, limit: int = TICK_EACH) -> Tick:
        """One pass of the monitor: fire timers, call this process's consumers, give up deliveries that are spent."""
        lease_s = max(TICK_LEASE_S, 2 * self._scope.call_timeout_s)
        return await tick(self._scope, self.deliveries.handlers, limit=limit, lease_us=micros_of(lease_s))

    async def tick_all(self) -> Tick:
        """One pass for each tenant that has instances, one after the other."""
        return Tick.total([await self.tenant(name).tick() for name in await self.tenants()])

    async def metrics(self) -> dict[str, dict[str, int]]:
        """What was counted since this process began, and how many instances have each flag now."""
        names = ("lifecycle_transitions_total", "delivery_retries_total", "lifecycle_imports_total")
        found: dict[str, dict[str, int]] = {name: {} for name in names}
        for (name, label), value in sorted(self._scope.tally.items()):
            found[name][label] = value
        found["lifecycle_instances"] = {
            (flag.name or "").lower(): await self.count(all_of=flag) for flag in InstanceFlag if flag
        }
        return found

    async def _which(
        self,
        tx: Connection,
        definition: str | int | None,
        version: VersionName,
        environment: str | int | None,
    ) -> dict[str, int | None]:
        if definition is None:
            if version is not None or environment is not None:
                raise InvalidInput("a version or an environment is one of a definition; name that too")
            return {"definition": None, "version": None}
        found = await queries.definition_named(tx, self._scope, definition, environment)
        number = None if version is None else (await queries.version_named(tx, found, version)).id
        return {"definition": found.id, "version": number}


def _triggers(given: Iterable[Trigger | str], event: str | None) -> Iterable[Trigger]:
    for each in given:
        if isinstance(each, Trigger):
            yield each
        elif event is None:
            raise InvalidInput("guids need an event; give one, or Trigger(guid, event) for each")
        else:
            yield Trigger(each, event)


def _instant(given: datetime | None) -> int | None:
    if given is None:
        return None
    if given.tzinfo is None:
        raise InvalidInput("an instant has its time zone, such as datetime.now(UTC)")
    return micros(given)
