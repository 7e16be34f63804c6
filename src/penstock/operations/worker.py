"""A worker claims what is due and runs it: files to read, chunks to work, chunks to drain."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections.abc import Coroutine, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from functools import partial
from typing import Any, Self

from sqlalchemy import select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from penstock.blobs.store import FileStore
from penstock.clock import Clock, Entropy, FollowingClock
from penstock.db.database import Database
from penstock.errors import NotFound, Unavailable
from penstock.formats import Limits, Position, open_reader
from penstock.operations import chunks as store
from penstock.operations import mailroom
from penstock.operations.actor import ChunkActor, Halt, Tempo
from penstock.operations.crew import Crew
from penstock.operations.draining import abandon, abandon_readings, drain_chunk
from penstock.operations.execution import Execution
from penstock.operations.held import Held, recover, unpack_rows
from penstock.operations.lease import Heart, Lease, bury
from penstock.operations.outcomes import Desk
from penstock.operations.planning import Group, next_group
from penstock.operations.reading import Reading, take
from penstock.operations.referee import HEAD, Head, move, touch
from penstock.operations.states import OPERATION
from penstock.operations.tables import chunks, operations
from penstock.operations.turns import Turns
from penstock.pipeline import Definition, Run
from penstock.settings import Settings

__all__ = ["Worker"]

log = logging.getLogger("penstock.worker")

CHUNKS_HELD_MIN = 3  # one runs, one is written, one is fetched
READINGS_MAX = 2
SWEEP_S = 5.0
LONG_DEAD_S = 3600.0
SHUTDOWN_WRITE_S = 5  # for writing what was known, after the last running step was cut off


class NotRunning(Exception):
    """The operation was stopped or paused between the look and the claim."""


class Worker:
    """One process's share of the work; `tick` starts what can be started now and says whether anything was."""

    def __init__(
        self,
        db: Database,
        files: FileStore,
        definitions: Mapping[str, Definition],
        settings: Settings,
        *,
        clock: Clock,
        entropy: Entropy,
    ) -> None:
        self.db, self.files, self.definitions, self.settings = db, files, definitions, settings
        self.clock, self.entropy = FollowingClock(clock), entropy
        self.lease = Lease(db, clock, entropy, lease_s=settings.lease_s, margin_s=settings.lease_margin_s)
        self._heart: Heart | None = None
        self._next_sweep = 0.0
        self.limits = Limits(row_bytes_max=settings.row_bytes_max)
        self.wake = asyncio.Event()
        self.turns = Turns()
        self._tempo = Tempo(
            flush_s=settings.flush_s,
            flush_rows=settings.flush_rows,
            grace_s=settings.cancel_grace_s,
            shutdown_s=settings.shutdown_s,
            patience_s=settings.lease_s,
        )
        self._names = [definition.name for definition in definitions.values()]
        self._executions: dict[int, Execution] = {}
        self._pipelines: dict[str, object] = {}
        self._actors: dict[int, ChunkActor | None] = {}  # by chunk; None while it is being claimed or drained
        self._readings: dict[int, Reading | None] = {}  # by operation
        self._is_stopping = False
        self._tasks: set[asyncio.Task[None]] = set()
        self._failure: BaseException | None = None
        self._stack = AsyncExitStack()
        self._threads = ThreadPoolExecutor(settings.sync_threads, thread_name_prefix="penstock-step")

    async def __aenter__(self) -> Self:
        await self.lease.begin()
        if self.clock.is_real:
            self._heart = self._start_heart()
        self._spawn(self._watch())
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self.stop()

    # --- the loop

    async def run(self, until: asyncio.Event) -> None:
        """Work until told to stop."""
        while not until.is_set():
            if not await self.tick():
                await self._idle(until)

    async def tick(self) -> bool:
        """Start whatever can be started now; says whether anything was."""
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure
        if self._is_stopping:
            return False
        self.wake.clear()
        try:
            if self._heart is None:  # time stands still between two ticks
                await self.lease.beat()
            started = await self._start_readings()
            return await self._start_chunks() or started
        except Unavailable as error:
            log.warning("the database is away: %s", error)
            return False

    @property
    def is_busy(self) -> bool:
        """Whether anything is being worked on."""
        return bool(self._actors or self._readings)

    async def stop(self) -> None:
        """Begin nothing more, let running rows end within the limit, write, let go, and leave."""
        self._is_stopping = True
        self._halt_all("shutdown")
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self.settings.shutdown_s + SHUTDOWN_WRITE_S):
                while self.is_busy:
                    self.wake.clear()
                    await self.wake.wait()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._stack.aclose()
        self._threads.shutdown(wait=False, cancel_futures=True)
        if self._heart is not None:
            await asyncio.to_thread(self._heart.stop)
        with contextlib.suppress(Unavailable):
            await self.lease.end()

    def _halt_all(self, why: Halt, operation: int | None = None) -> None:
        for actor in self._actors.values():
            if actor is not None and operation in (None, actor.held.operation):
                actor.halt(why)
        for number, reading in self._readings.items():
            if reading is not None and operation in (None, number):
                reading.halt()

    async def _idle(self, until: asyncio.Event) -> None:
        waits = {asyncio.ensure_future(self.wake.wait()), asyncio.ensure_future(until.wait())}
        try:
            await asyncio.wait(waits, timeout=self.settings.wake_poll_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()

    def _start_heart(self) -> Heart:
        loop = asyncio.get_running_loop()

        def lost(why: str) -> None:
            log.critical("worker %s: %s", self.lease.id, why)
            if loop.is_closed():
                return
            if "blocked" in why:
                os._exit(os.EX_TEMPFAIL)  # nothing else stops a step that never yields; its row counts as lost
            loop.call_soon_threadsafe(self._fail, Unavailable(why))

        heart = Heart(
            self.lease,
            lambda: Database.connect(self.settings.database_url, clock=self.clock, pool_size=1),
            self.clock,
            beat_s=self.settings.heartbeat_s,
            stall_s=self.settings.stall_s,
            on_lost=lost,
        )
        heart.start()
        return heart

    # --- looking round

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(self.settings.control_poll_s)
            if self._heart is not None:
                self._heart.loop_is_alive()
            with contextlib.suppress(Unavailable):
                await self.look_round()
                await self._sweep_sometimes()

    async def look_round(self) -> None:
        """Hear what was decided elsewhere: operations that pause or stop, and mail for the chunks we hold."""
        async with self.db.read() as tx:
            states = await tx.execute(
                select(operations.c.number, operations.c.state).where(operations.c.number.in_(self._working()))
            )
            stopped = {number: state for number, state in states if state in ("Paused", "Stopping")}
            owned = await tx.execute(
                select(chunks.c.id, chunks.c.mail, chunks.c.fence).where(chunks.c.owner == self.lease.id)
            )
            found = {chunk: (mail, fence) for chunk, mail, fence in owned}
            reading = await tx.execute(
                select(operations.c.number, operations.c.fence).where(operations.c.owner == self.lease.id)
            )
            strays = [(number, fence) for number, fence in reading if number not in self._readings]
        actors = {chunk: actor for chunk, actor in self._actors.items() if actor is not None}
        for chunk, (mail, fence) in found.items():
            actor = actors.get(chunk)
            if actor is not None and fence == actor.held.fence:
                actor.look(mail)
            elif chunk not in self._actors:
                await self._give_up(chunk, fence)
        for number, fence in strays:
            await self._give_up_reading(number, fence)
        for number, state in stopped.items():
            self._halt_all(state, number)

    def _working(self) -> set[int]:
        return {actor.held.operation for actor in self._actors.values() if actor is not None} | set(self._readings)

    async def _give_up(self, chunk: int, fence: int) -> None:
        """Let go of a chunk that is ours on disk but not in hand: the answer to a claim or a release was lost."""

        async def let_go(tx: AsyncConnection) -> None:
            mine = (chunks.c.id == chunk, chunks.c.fence == fence, chunks.c.owner == self.lease.id)
            await tx.execute(update(chunks).where(*mine).values(owner=None))

        await self.db.transaction(let_go, "give_up")

    async def _give_up_reading(self, number: int, fence: int) -> None:
        async def let_go(tx: AsyncConnection) -> None:
            await touch(tx, number, operations.c.fence == fence, operations.c.owner == self.lease.id, owner=None)

        await self.db.transaction(let_go, "give_up")

    async def _sweep_sometimes(self) -> None:
        """Cover callers that died between storing a signal and waking its row, and workers that died beside us."""
        if self.clock.monotonic() < self._next_sweep:
            return
        self._next_sweep = self.clock.monotonic() + SWEEP_S
        await self._follow_clock()
        await self._forget_settled()
        if await bury(self.db, long_dead_s=LONG_DEAD_S) or await mailroom.sweep(self.db):
            self.wake.set()

    async def _follow_clock(self) -> None:
        """Due times and deadlines are on the database's clock; ours may be off."""
        if not self.clock.is_real or self.db.dialect.is_file:
            return
        before = self.clock.now_us()
        async with self.db.read() as tx:
            theirs = (await tx.execute(select(self.db.now()))).scalar_one()
        ours = (before + self.clock.now_us()) // 2
        self.clock.follow(self.clock.ahead_us + theirs - ours)

    async def _forget_settled(self) -> None:
        """Operations that have ended need no place in memory."""
        idle = set(self._executions) - self._working()
        if idle:
            async with self.db.read() as tx:
                query = select(operations.c.number).where(
                    operations.c.number.in_(idle), operations.c.state.in_(OPERATION.settled)
                )
                settled = (await tx.execute(query)).scalars().all()
            for number in settled:
                del self._executions[number]

    # --- reading files

    async def _start_readings(self) -> bool:
        await abandon_readings(self.db, actor=self.lease.id)
        room = READINGS_MAX - len(self._readings)
        if room <= 0 or not self._names:
            return False
        async with self.db.read() as tx:
            found = await tx.execute(
                select(*HEAD)
                .where(
                    operations.c.state.in_(("Pending", "Validating")),
                    operations.c.reading == "open",
                    operations.c.name.in_(self._names),
                    store.is_free(self.db, operations.c.owner),
                )
                .order_by(operations.c.number)
                .limit(room)
            )
            heads = [Head(**row._mapping) for row in found]
        started = False
        for seen in heads:
            head = await take(self.db, seen, owner=self.lease.id)
            if head is not None:
                self._readings[head.number] = None
                self._spawn(self._read(head))
                started = True
        return started

    async def _read(self, head: Head) -> None:
        try:
            execution = await self._execution(head.number)
            if execution is None:
                await self.db.transaction(partial(abandon, self.db, head, actor=self.lease.id), "abandon")
                return
            with await asyncio.to_thread(self.files.open, execution.file_key) as source:
                reading = self._readings[head.number] = Reading(
                    self.db,
                    execution,
                    head,
                    owner=self.lease.id,
                    limits=self.limits,
                    chunk_rows=self.settings.chunk_rows,
                    patience_s=self.settings.lease_s,
                    turn=self.turns.turn,
                )
                await reading.run(source)
        except NotFound as error:
            await self._break(head.number, str(error))
            await self.db.transaction(partial(abandon, self.db, head, actor=self.lease.id), "abandon")
        finally:
            self._readings.pop(head.number, None)
            self.wake.set()

    # --- working chunks

    async def _start_chunks(self) -> bool:
        limit = self._appetite() - len(self._actors)
        if limit <= 0:
            return False
        async with self.db.read() as tx:
            found = await store.candidates(self.db, tx, names=self._names, limit=limit, skip=self._actors)
        started = False
        for held in found:
            started = await self._start_chunk(held) or started
        return started

    def _appetite(self) -> int:
        """How many chunks it takes to keep every hand of the running operations busy."""
        widest = max((e.definition.options.max_row_concurrency for e in self._executions.values()), default=0)
        return CHUNKS_HELD_MIN + widest // self.settings.chunk_rows

    async def _start_chunk(self, held: Held) -> bool:
        self._actors[held.id] = None
        try:
            work = await self._prepare(held)
        except BaseException:
            del self._actors[held.id]
            raise
        if work is None:
            del self._actors[held.id]
            return False
        self._spawn(self._hold(held, work))
        return True

    async def _prepare(self, held: Held) -> Coroutine[Any, Any, object] | None:
        """The work to be done on a candidate, claimed; None when it is not to be had."""
        if held.operation_state == "Stopping":
            return drain_chunk(self.db, held, owner=self.lease.id, clock=self.clock)
        if held.operation_state == "Retrying":
            await self.db.transaction(
                lambda tx: move(
                    self.db, tx, held.operation, "resumed", operations.c.state == "Retrying", actor=self.lease.id
                ),
                "resumed",
            )
        try:
            execution = await self._execution(held.operation)
            actor = None if execution is None else await self._claim(execution, held)
        except NotFound as error:
            await self._break(held.operation, str(error))
            execution = actor = None
        if execution is None:
            return asyncio.sleep(0)  # it broke; the next tick drains it
        if actor is None:
            return None
        self._actors[held.id] = actor
        return actor.run()

    async def _hold(self, held: Held, work: Coroutine[Any, Any, object]) -> None:
        try:
            await work
        finally:
            self._actors.pop(held.id, None)
            self.wake.set()

    async def _claim(self, execution: Execution, held: Held) -> ChunkActor | None:
        """Own a chunk; a fresh one gets its first intent in the same statement."""
        if held.version == 0 and held.mail == 0:
            held.ledger.base = self.clock.now_us()
            desk = await self._desk(execution, held)
            group = next_group(held, execution.spans, now=held.ledger.base, limit=self.settings.flush_rows)
            if group is not None:
                held.ledger.start(group.rows)
            return self._actor(desk, group) if await self._own(held, write=group is not None) else None
        if not await self._own(held, write=False):
            return None
        async with self.db.read() as tx:
            await store.load_stories(tx, held)
        recover(held, self.clock.now_us())
        return self._actor(await self._desk(execution, held), None)

    async def _own(self, held: Held, *, write: bool) -> bool:
        async def own(tx: AsyncConnection) -> bool:
            if not await store.claim(self.db, tx, held, owner=self.lease.id, write=write):
                return False
            query = select(operations.c.state).where(operations.c.number == held.operation)
            if (await tx.execute(query)).scalar_one() != "Running":
                raise NotRunning
            return True

        try:
            is_ours = await self.db.transaction(own, "claim")
        except NotRunning:
            return False
        if is_ours:
            held.fence += 1
            held.version += int(write)
        return is_ours

    def _actor(self, desk: Desk, group: Group | None) -> ChunkActor:
        return ChunkActor(self.db, desk, group, owner=self.lease.id, tempo=self._tempo, turn=self.turns.turn)

    async def _desk(self, execution: Execution, held: Held) -> Desk:
        if held.data is not None:
            return Desk(execution, held, unpack_rows(held.data))
        return Desk(execution, held, await asyncio.to_thread(self._reread, execution, held))

    def _reread(self, execution: Execution, held: Held) -> list[Any]:
        """The rows of a chunk from its source, for operations that keep no row data."""
        with self.files.open(execution.file_key) as source:
            reader = open_reader(
                source, format=execution.file_format, schema=execution.definition.row.schema, limits=self.limits
            )
            batches = reader.batches(held.row_count, Position(held.source_offset, held.first_row))
            return list(next(batches).rows)

    # --- operations in this process

    async def _execution(self, number: int) -> Execution | None:
        """The operation with its code, or None when its declaration no longer fits what was stored at creation."""
        if number in self._executions:
            return self._executions[number]
        async with self.db.read() as tx:
            row = (await tx.execute(select(operations).where(operations.c.number == number))).one()
        declared = self.definitions[row.name.casefold()]
        definition = declared.with_overrides(row.plan["overrides"])
        planned = [(step["attribute"], step["kind"]) for step in row.plan["steps"]]
        if planned != [(step.attribute, step.kind) for step in definition.steps]:
            before = ", ".join(name for name, _ in planned)
            await self._break(number, f"its steps were {before} when it was created, and are others now")
            return None
        execution = Execution(
            number=number,
            file_format=row.file_format,
            file_key=row.file_key,
            definition=definition,
            pipeline=await self._pipeline(declared),
            run=Run(
                row.id, row.name, definition.meta.load(row.metadata), definition, public_url=self.settings.public_url
            ),
            columns=row.columns,
            crew=Crew(definition.options.max_row_concurrency, self._spawn),
            clock=self.clock,
            jitter=self.entropy.jitter,
            threads=self._threads,
            may_start=self.lease.may_start,
        )
        self._executions[number] = execution
        return execution

    async def _pipeline(self, definition: Definition) -> object:
        if definition.name not in self._pipelines:
            self._pipelines[definition.name] = await self._stack.enter_async_context(definition.lifespan())
        return self._pipelines[definition.name]

    async def _break(self, number: int, reason: str) -> None:
        log.error("operation %s broke: %s", number, reason)
        await self.db.transaction(
            lambda tx: move(
                self.db, tx, number, "broke", actor=self.lease.id, cause=reason, stop_outcome="Failed", error=reason
            ),
            "broke",
        )

    # --- tasks

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        """Something went wrong that is nobody's row: the next tick raises it."""
        if self._failure is None:
            self._failure = error
        self.wake.set()
