"""`Penstock`, the composition root: the one place that sees every capability."""

from __future__ import annotations

import asyncio
import contextlib
import getpass
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from copy import copy
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from penstock.access.audit import Audit
from penstock.access.keys import ApiKeys
from penstock.access.model import Principal
from penstock.blobs.checks.policy import BlobPolicy
from penstock.blobs.opening import open_storage
from penstock.blobs.service import Blobs
from penstock.blobs.sweeping import Sweeper
from penstock.clock import Clock, Entropy, FollowingClock, SystemClock, operation_id
from penstock.db.database import Database
from penstock.db.shared_clock import share_clock
from penstock.db.unit import UnitOfWork
from penstock.errors import DeclarationError, Unavailable
from penstock.event_sources import EventSources
from penstock.idempotency.service import Idempotency
from penstock.idempotency.sql import SqlStore
from penstock.lifecycles.calling import limited
from penstock.lifecycles.guards import Guard
from penstock.lifecycles.model import Handler
from penstock.lifecycles.scope import Scope
from penstock.lifecycles.service import Lifecycles
from penstock.operations.intake import Source
from penstock.operations.model import Difference, Operation, VerifyReport
from penstock.operations.proof.doctor import diagnose
from penstock.operations.proof.symptoms import Diagnosis
from penstock.operations.rows.lifespans import Lifespans
from penstock.operations.service import Operations
from penstock.operations.signals import Signals
from penstock.operations.views.operation_views import is_time_counted, latest_instant
from penstock.operations.visibility import Visible
from penstock.operations.worker.worker import Worker
from penstock.pipeline import Definition, definition_of
from penstock.services import Check, OnHint, Service, SymptomSource
from penstock.settings import Settings, load_settings
from penstock.targets.quotas import use_quotas
from penstock.targets.sql_quotas import SqlQuotas

__all__ = ["Penstock", "run"]

OnProgress = Callable[[Operation], None]

# Another worker may be about to end the operation; each look that finds it has not doubles the pause.
REST_LOOK_S = 0.01


KEYS_SWEEP_S = 60.0
LIFECYCLES_TICK_S = 2.0
DELIVERIES_TICK_S = 1.0
BLOBS_SWEEP_S = 60.0
DELIVERIES_GRACE_S = 5.0  # for what is being sent when the last worker stops


class Penstock:
    """Operations on one database. Use `async with Penstock.open(…)`, or `penstock.run` from a script."""

    def __init__(
        self,
        db: Database,
        settings: Settings,
        definitions: Mapping[str, Definition],
        *,
        clock: Clock,
        entropy: Entropy,
        guards: Mapping[str, Guard] = MappingProxyType({}),
        effects: Mapping[str, Handler] = MappingProxyType({}),
        handlers: Mapping[str, object] = MappingProxyType({}),
        blob_policy: BlobPolicy | None = None,
    ) -> None:
        self.db, self.settings, self.definitions = db, settings, definitions
        self.clock, self.entropy = clock, entropy
        self.files = open_storage(settings)
        self.lifespans = Lifespans()
        self._workers: set[Worker] = set()
        self.hint_carriers: list[OnHint] = []
        self.symptom_sources: list[SymptomSource] = []
        self.checks = [
            Check("lifecycles", self._verify_lifecycles),
            Check("blobs", self._verify_blobs),
            Check("events", self._verify_events),
        ]
        actor = _user()
        self.blobs = Blobs(
            db,
            self.files,
            blob_policy or BlobPolicy(bytes_max=settings.upload_bytes_max or None),
            clock=clock,
            entropy=entropy,
            actor=actor,
            page_max=settings.page_max,
        )
        self.operations = Operations(
            db,
            self.blobs,
            settings,
            definitions,
            self.lifespans,
            clock=clock,
            entropy=entropy,
            actor=actor,
            hint=self.hint,
        )
        self.idempotency = Idempotency(SqlStore(db), entropy=entropy)
        self.signals = Signals(
            db,
            definitions,
            clock=clock,
            entropy=entropy,
            actor=actor,
            hint=self.hint,
            secret_keys=settings.secret_keys,
        )
        self.lifecycles = Lifecycles(
            Scope(
                db,
                clock=clock,
                entropy=entropy,
                actor=actor,
                guards=limited(guards, settings.handler_timeout_s),
                effects=limited(effects, settings.handler_timeout_s),
                page_max=settings.page_max,
                call_timeout_s=settings.handler_timeout_s,
            )
        )
        self.deliveries = self.lifecycles.deliveries
        self.events = EventSources(
            db,
            settings,
            definitions,
            handlers,
            operations=self.operations,
            lifecycles=self.lifecycles,
            lifespans=self.lifespans,
            clock=clock,
            entropy=entropy,
            actor=actor,
        )
        self.webhooks = self.events.webhooks
        self.quotas = SqlQuotas(db, lambda: operation_id(clock, entropy))
        self.audit = Audit(db, page_max=settings.page_max)
        self.keys = ApiKeys(db, clock=clock, entropy=entropy, actor=actor)

    @classmethod
    @asynccontextmanager
    async def open(
        cls,
        url: str | None = None,
        *,
        operations: Iterable[object] = (),
        settings: Settings | None = None,
        clock: Clock | None = None,
        entropy: Entropy | None = None,
        guards: Mapping[str, Guard] = MappingProxyType({}),
        effects: Mapping[str, Handler] = MappingProxyType({}),
        handlers: Mapping[str, object] = MappingProxyType({}),
        blob_policy: BlobPolicy | None = None,
    ) -> AsyncIterator[Penstock]:
        """Connect to a database with these operations: classes or functions marked by `@operation`.

        `guards` are what lifecycles' transitions and states name as guards and gates: functions, sync or async, that
        allow or deny a move. `effects` are what states name as such: functions that are called after the move.
        `handlers` are objects with methods such as `on_completed`, by names that stay the same: each is told of every
        operation, at least once, by whichever worker has a handler of that name.
        `blob_policy` says which uploads are taken.

        A SQLite database is made and upgraded when needed; a server refuses until `penstock db upgrade` was run.
        """
        if settings is None:
            settings = load_settings(database_url=url)
        elif url is not None:
            settings = settings.model_copy(update={"database_url": url})
        definitions = by_name(operations)
        _require_callable("guards", guards)
        _require_callable("effects", effects)
        clock = clock or SystemClock()
        db = await Database.open(settings.database_address, clock=clock)
        try:
            clock = await _database_clock(db, clock, settings)
            penstock = cls(
                db,
                settings,
                definitions,
                clock=clock,
                entropy=entropy or Entropy(),
                guards=guards,
                effects=effects,
                handlers=handlers,
                blob_policy=blob_policy,
            )
            use_quotas(penstock.quotas)  # targets that are used from here on share them with other processes
            try:
                await penstock.events.begin()
                yield penstock
            finally:
                await penstock.events.close()
                penstock.quotas.close()
                await penstock.lifespans.close()
        finally:
            await db.close()

    @asynccontextmanager
    async def worker(self, *, owns_process: bool = False) -> AsyncIterator[Worker]:
        """A worker in this process: run it with `worker.run(stop)`. `SettingsInvalid` when it could not read any file.

        As a guest it never ends the process: when a step blocks the event loop for longer than `stall_s`, its chunks go
        to other workers until the loop runs again. One that `owns_process` ends it (exit 75), and tunes its garbage
        collector.
        """
        self.files.require()
        worker = Worker(
            self.db,
            self.files,
            self.definitions,
            self.settings,
            self.lifespans,
            clock=self.clock,
            entropy=self.entropy,
            owns_process=owns_process,
            services=self._services(),
            capabilities={Lifecycles: self.lifecycles},
        )
        async with worker:
            self._workers.add(worker)
            try:
                yield worker
            finally:
                self._workers.discard(worker)
                if not self._workers:
                    await self.events.stop(min(self.settings.shutdown_s, DELIVERIES_GRACE_S))

    @asynccontextmanager
    async def working(self) -> AsyncIterator[Worker]:
        """A worker that runs in the background while the block lasts, as in the lifespan of a web application.

        The block's end stops it as SIGTERM would stop `penstock worker`. What ends the worker ends the block.
        """
        stop = asyncio.Event()
        async with self.worker() as worker, asyncio.TaskGroup() as group:
            group.create_task(worker.run(stop), name="worker")
            try:
                yield worker
            finally:
                stop.set()

    def _services(self) -> tuple[Service, ...]:
        """What capabilities have their workers do in the background."""
        return (
            Service("idempotency keys", KEYS_SWEEP_S, self._sweep_keys),
            Service("lifecycles", LIFECYCLES_TICK_S, self._tick_lifecycles),
            Service("deliveries", DELIVERIES_TICK_S, self.events.tick),
            Service("blobs", BLOBS_SWEEP_S, Sweeper(self.db, self.files, self.clock).tick),
        )

    async def verify(self, operation: str | None = None, *, deep: bool = False) -> VerifyReport:
        """Re-derive all that is stored of one operation, or of everything: operations, lifecycles, blobs."""
        found = await self.operations.verify(operation, deep=deep)
        if operation is not None:
            return found
        others = [Difference(rule, message) for check in self.checks for rule, message in await check.find(deep)]
        return replace(found, differences=(*found.differences, *others))

    async def _verify_lifecycles(self, deep: bool) -> list[tuple[str, str]]:
        found = []
        for tenant in await self.lifecycles.tenants():
            _, wrong = await self.lifecycles.tenant(tenant).verify()
            found += [(each.rule, each.message) for each in wrong]
        return found

    async def _verify_events(self, deep: bool) -> list[tuple[str, str]]:
        return [(each.rule, each.message) for each in await self.events.verify()]

    async def _verify_blobs(self, deep: bool) -> list[tuple[str, str]]:
        return [(each.rule, f"blob {each.blob}: {each.message}") for each in await self.blobs.verify(deep=deep)]

    async def _sweep_keys(self) -> None:
        await self.idempotency.sweep()

    async def _tick_lifecycles(self) -> None:
        await self.lifecycles.tick_all()

    def seen_by(self, principal: Principal) -> Penstock:
        """The same for one caller: their tenant's operations and lifecycles, of the operations that they may use.

        For them nothing else exists: it is not found, not listed and not touched. What they do is done in their name.
        """
        scoped = copy(self)
        scoped.checks = []  # they look at what belongs to all
        visible = Visible.of(principal.tenant, principal.operations, self.definitions)
        scoped.operations = self.operations.seen_by(visible, actor=principal.name)
        scoped.signals = self.signals.seen_by(visible, actor=principal.name)
        scoped.lifecycles = self.lifecycles.seen_by(principal.tenant, actor=principal.name)
        scoped.deliveries = scoped.lifecycles.deliveries
        scoped.blobs = replace(self.blobs, of_tenant=principal.tenant, actor=principal.name)
        whole = principal.operations is None
        scoped.webhooks = self.webhooks.seen_by(principal.tenant, actor=principal.name, is_whole=whole)
        scoped.audit = self.audit.seen_by(principal.tenant)
        scoped.definitions = {key: found for key, found in self.definitions.items() if visible.includes(key)}
        return scoped

    def transaction(self) -> UnitOfWork:
        """A transaction for your own statements: `async with penstock.transaction() as tx: await tx.execute(…)`.

        It commits when the block ends well. `operations.create`, `signals.complete` and `fail`, `lifecycles.start`,
        `trigger`, `force`, `change_data`, `deliveries.acknowledge` and `blobs.reference`, `unreference`, `hold`,
        `release` and `delete` take it as `tx` and commit with it; nothing else of this `Penstock` that writes is called
        inside it.
        """
        return self.db.unit()

    async def diagnose(self) -> Diagnosis:
        """What `penstock doctor` finds: checks of the database, workers, open operations and file storage."""
        return await diagnose(self.settings, self.clock, self.symptom_sources)

    def hint(self, operation: str | None = None, due_us: int | None = None) -> None:
        """Tell the workers of this process, and whoever carries hints to others, that there may be something to do."""
        for worker in self._workers:
            worker.hint(operation, due_us)
        for carry in self.hint_carriers:
            carry(operation, due_us)

    async def run_until_done(
        self,
        operation: str,
        *,
        watch: OnProgress | None = None,
        every_s: float = 0.25,
        stop: asyncio.Event | None = None,
        owns_process: bool = False,
    ) -> Operation:
        """Work in this process until the operation is settled, or `stop` is set; `watch` is shown its progress.

        `owns_process` as for `worker`.
        """
        stop = stop or asyncio.Event()
        async with self.worker(owns_process=owns_process) as worker:
            follower = asyncio.create_task(self._follow(operation, worker, stop, watch, every_s))
            try:
                await worker.run(stop)
            finally:
                worker.rests.set()
                if not stop.is_set():
                    follower.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await follower
        ended = await self.operations.get(operation)
        if ended.is_settled and self.clock.is_real:
            # Nobody else may come to tell of its end.
            await self.events.tell_within(self.settings.handler_timeout_s)
        return ended

    async def _follow(
        self, operation: str, worker: Worker, stop: asyncio.Event, watch: OnProgress | None, every_s: float
    ) -> None:
        """Look at the operation now and then, and more often when the worker has nothing left to do."""
        pause_s, is_due, rests = every_s, True, worker.rests
        try:
            while not stop.is_set():
                try:
                    now = await self.operations.get(operation)
                except Unavailable as error:
                    worker.outage.failed("progress", error)
                else:
                    worker.outage.worked("progress")
                    if watch is not None and (is_due or now.is_settled):
                        watch(now)
                    if now.is_settled:
                        return
                try:
                    await asyncio.wait_for(rests.wait(), pause_s)
                    pause_s, is_due = min(REST_LOOK_S, every_s), False
                except TimeoutError:
                    is_due = pause_s == every_s
                    pause_s = min(2 * pause_s, every_s)
                rests.clear()
        finally:
            stop.set()


def run(
    operation: object,
    file: Source,
    *,
    metadata: Any = None,
    url: str | None = None,
    options: Mapping[str, Any] | None = None,
) -> Operation:
    """Run one file through one operation and wait for the verdicts: for scripts, which have no event loop.

    `RuntimeError` where an event loop runs, as in a coroutine or a notebook; its message says what to do there.
    """
    if _loop_runs():
        name = getattr(operation, "__name__", "MyOperation")
        raise RuntimeError(
            "penstock.run() cannot be called while an event loop runs, as in a coroutine or a notebook. "
            "Await the same there:\n"
            f"    async with penstock.Penstock.open(url, operations=[{name}]) as engine:\n"
            f"        made = await engine.operations.create({name}, file=file)\n"
            "        report = await engine.run_until_done(made.id)"
        )

    async def go() -> Operation:
        async with Penstock.open(url, operations=[operation]) as penstock:
            made = await penstock.operations.create(operation, file=file, metadata=metadata, options=options)
            return await penstock.run_until_done(made.id)

    return asyncio.run(go())


def _loop_runs() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def _require_callable(what: str, given: Mapping[str, object]) -> None:
    wrong = [name for name, function in given.items() if not callable(function)]
    if wrong:
        raise DeclarationError(f"{what} are functions; these are not: {', '.join(map(repr, wrong))}")


def by_name(operations: Iterable[object]) -> dict[str, Definition]:
    """Definitions by name, ignoring case; two of one name are refused."""
    found: dict[str, Definition] = {}
    for definition in map(definition_of, operations):
        twin = found.setdefault(definition.name.casefold(), definition)
        if twin is not definition:
            raise DeclarationError(
                f"two operations are called {twin.name!r} and {definition.name!r}; names ignore case"
            )
    return found


async def _database_clock(db: Database, clock: Clock, settings: Settings) -> Clock:
    """The clock that everything here goes by: the database's, whatever this machine's wall clock says."""
    if not clock.is_real:
        return clock
    await share_clock(
        db,
        latest=lambda tx: latest_instant(tx, settings.lease_s),
        is_in_use=lambda tx: is_time_counted(tx, db),
    )
    following = FollowingClock(clock)
    following.follow(*await db.clock_bounds())
    return following


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return "unknown"
