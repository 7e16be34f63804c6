"""A worker claims what is due and runs it: files to read, chunks to work, chunks to drain."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Coroutine, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from typing import Any, Self

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncConnection

from penstock.blobs.store import FileStore
from penstock.clock import Clock, Entropy
from penstock.db.database import Database
from penstock.errors import NotFound, Unavailable
from penstock.formats import Limits, Position, open_reader
from penstock.operations import chunks as store
from penstock.operations.actor import ChunkActor, Group, next_group
from penstock.operations.chunks import Lost
from penstock.operations.crew import Crew
from penstock.operations.execution import Execution
from penstock.operations.held import Held, cancel_unfinished, recover, unpack_rows
from penstock.operations.lease import Lease
from penstock.operations.outcomes import Desk
from penstock.operations.reading import Interrupted, read_operation, take
from penstock.operations.referee import Head, move
from penstock.operations.tables import operations
from penstock.pipeline import Definition, Run
from penstock.settings import Settings

__all__ = ["Worker"]

log = logging.getLogger("penstock.worker")

CHUNKS_HELD_MIN = 3  # one runs, one is written, one is fetched
READINGS_MAX = 2


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
        self.clock, self.entropy = clock, entropy
        self.lease = Lease(db, clock, entropy, lease_s=settings.lease_s, margin_s=settings.lease_margin_s)
        self.limits = Limits(row_bytes_max=settings.row_bytes_max)
        self.wake = asyncio.Event()
        self._stopping = False
        self._executions: dict[int, Execution] = {}
        self._pipelines: dict[str, object] = {}
        self._held: set[int] = set()
        self._reading: set[int] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._failure: BaseException | None = None
        self._stack = AsyncExitStack()
        self._threads = ThreadPoolExecutor(settings.sync_threads, thread_name_prefix="penstock-step")

    async def __aenter__(self) -> Self:
        await self.lease.begin()
        self._spawn(self._beat())
        return self

    async def __aexit__(self, *exc_info: object) -> None:
        await self._close()

    # --- the loop

    async def run(self, until: asyncio.Event) -> None:
        """Work until told to stop; then finish what is in hand."""
        while not until.is_set():
            if not await self.tick():
                await self._idle(until)

    async def tick(self) -> bool:
        """Start whatever can be started now."""
        self._raise_failure()
        self.wake.clear()
        try:
            started = await self._start_readings()
            return await self._start_chunks() or started
        except Unavailable as error:
            log.warning("the database is away: %s", error)
            return False

    @property
    def is_busy(self) -> bool:
        """Whether anything is being worked on."""
        return bool(self._held or self._reading)

    async def _idle(self, until: asyncio.Event) -> None:
        waits = {asyncio.ensure_future(self.wake.wait()), asyncio.ensure_future(until.wait())}
        await asyncio.wait(waits, timeout=self.settings.wake_poll_s, return_when=asyncio.FIRST_COMPLETED)
        for wait in waits:
            wait.cancel()

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(self.settings.heartbeat_s)
            if not await self.lease.beat():
                raise Unavailable("this worker's lease was taken from it; it must start again")

    # --- reading files

    async def _start_readings(self) -> bool:
        if len(self._reading) >= READINGS_MAX or not self.definitions:
            return False
        async with self.db.read() as tx:
            found = await tx.execute(
                select(*(operations.c[name] for name in Head.__dataclass_fields__))
                .where(
                    operations.c.state.in_(("Pending", "Validating")),
                    operations.c.reading == "open",
                    operations.c.name.in_([d.name for d in self.definitions.values()]),
                    store.is_free(self.db, operations.c.owner),
                )
                .order_by(operations.c.number)
                .limit(READINGS_MAX - len(self._reading))
            )
            heads = [Head(**row._mapping) for row in found]
        started = False
        for seen in heads:
            head = await take(self.db, seen, owner=self.lease.id)
            if head is not None:
                self._reading.add(head.number)
                self._spawn(self._read(head))
                started = True
        return started

    async def _read(self, head: Head) -> None:
        try:
            execution = await self._execution(head.number)
            if execution is None:
                return
            with await asyncio.to_thread(self.files.open, execution.file_key) as source:
                await read_operation(
                    self.db,
                    execution,
                    head,
                    source,
                    owner=self.lease.id,
                    limits=self.limits,
                    chunk_rows=self.settings.chunk_rows,
                )
        except Interrupted:
            log.info("reading of operation %s was interrupted", head.id)
        except NotFound as error:
            await self._break(head.number, str(error))
        finally:
            self._reading.discard(head.number)
            self.wake.set()

    # --- working chunks

    async def _start_chunks(self) -> bool:
        limit = max(CHUNKS_HELD_MIN, self._appetite()) - len(self._held)
        if limit <= 0:
            return False
        async with self.db.read() as tx:
            found = await store.candidates(
                self.db, tx, names=[d.name for d in self.definitions.values()], limit=limit, skip=self._held
            )
        started = False
        for held in found:
            started = await self._start_chunk(held) or started
        return started

    def _appetite(self) -> int:
        """How many chunks it takes to keep every hand of the running operations busy."""
        widest = max((e.definition.options.max_row_concurrency for e in self._executions.values()), default=0)
        return CHUNKS_HELD_MIN + widest // self.settings.chunk_rows

    async def _start_chunk(self, held: Held) -> bool:
        is_draining = held.operation_state == "Stopping"
        if held.operation_state == "Retrying":
            await self.db.transaction(
                lambda tx: move(
                    self.db, tx, held.operation, "resumed", operations.c.state == "Retrying", actor=self.lease.id
                )
            )
        execution = None if is_draining else await self._execution(held.operation)
        if execution is None and not is_draining:
            return False
        self._held.add(held.id)
        try:
            work = self._drain(held) if execution is None else await self._claim(execution, held)
        except BaseException:
            self._held.discard(held.id)
            raise
        if work is None:
            self._held.discard(held.id)
            return False
        self._spawn(self._hold(held, work))
        return True

    async def _hold(self, held: Held, work: Coroutine[Any, Any, None]) -> None:
        try:
            await work
        finally:
            self._held.discard(held.id)
            self.wake.set()

    async def _claim(self, execution: Execution, held: Held) -> Coroutine[Any, Any, None] | None:
        """Own a chunk; a fresh one gets its first intent in the same statement."""
        is_fresh = held.version == 0
        if is_fresh:
            held.ledger.base = self.clock.now_us()
            desk = await self._desk(execution, held)
            group = next_group(desk, now=held.ledger.base, limit=self.settings.flush_rows)
            if group is not None:
                held.ledger.start(group.rows)
            if not await self._own(held, write=True):
                return None
            return self._actor(desk, group).run()
        if not await self._own(held, write=False):
            return None
        async with self.db.read() as tx:
            await store.load_stories(tx, held)
        recover(held, self.clock.now_us())
        desk = await self._desk(execution, held)
        return self._actor(desk, None).run()

    async def _own(self, held: Held, *, write: bool) -> bool:
        async def own(tx: AsyncConnection) -> bool:
            if not await store.claim(self.db, tx, held, owner=self.lease.id, write=write):
                return False
            state = (
                await tx.execute(select(operations.c.state).where(operations.c.number == held.operation))
            ).scalar_one()
            if state != "Running":
                raise NotRunning
            return True

        try:
            is_ours = await self.db.transaction(own)
        except NotRunning:
            return False
        if is_ours:
            held.fence += 1
            held.version += int(write)
        return is_ours

    def _actor(self, desk: Desk, group: Group | None) -> ChunkActor:
        return ChunkActor(
            self.db,
            desk,
            owner=self.lease.id,
            group=group,
            flush_s=self.settings.flush_s,
            flush_rows=self.settings.flush_rows,
            patience_s=self.settings.lease_s,
        )

    async def _desk(self, execution: Execution, held: Held) -> Desk:
        raws = (
            unpack_rows(held.data) if held.data is not None else await asyncio.to_thread(self._reread, execution, held)
        )
        return Desk(execution, held, raws)

    def _reread(self, execution: Execution, held: Held) -> list[Any]:
        """The rows of a chunk from its source, for operations that keep no row data."""
        with self.files.open(execution.file_key) as source:
            reader = open_reader(
                source, format=execution.file_format, schema=execution.definition.row.schema, limits=self.limits
            )
            batches = reader.batches(held.row_count, Position(held.source_offset, held.first_row))
            return list(next(batches).rows)

    async def _drain(self, held: Held) -> None:
        """Give every row of a stopping operation's chunk its verdict; needs none of the operation's code."""

        async def own(tx: AsyncConnection) -> bool:
            return await store.claim(self.db, tx, held, owner=self.lease.id, write=False)

        if not await self.db.transaction(own):
            return
        held.fence += 1
        async with self.db.read() as tx:
            await store.load_stories(tx, held)
        now = self.clock.now_us()
        recover(held, now)
        cancel_unfinished(held, now)
        with contextlib.suppress(Lost):
            await self.db.transaction(lambda tx: store.close(self.db, tx, held, actor=self.lease.id, draining=True))

    # --- operations in this process

    async def _execution(self, number: int) -> Execution | None:
        """The operation with its code, or None when its declaration no longer fits what was stored at creation."""
        if number in self._executions:
            return self._executions[number]
        async with self.db.read() as tx:
            row = (await tx.execute(select(operations).where(operations.c.number == number))).one()
        declared = self.definitions[row.name.casefold()]
        definition = declared.with_overrides(row.plan["overrides"])
        planned = [(s["attribute"], s["kind"]) for s in row.plan["steps"]]
        if planned != [(s.attribute, s.kind) for s in definition.steps]:
            await self._break(
                number, f"its steps were {[name for name, _ in planned]} when it was created and are not now"
            )
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
            )
        )

    # --- tasks

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None and self._failure is None:
            self._failure = error
            self.wake.set()

    def _raise_failure(self) -> None:
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure

    async def _close(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._stack.aclose()
        self._threads.shutdown(wait=False, cancel_futures=True)
        with contextlib.suppress(Unavailable):
            await self.lease.end()


class NotRunning(Exception):
    """The operation was stopped or paused between the look and the claim."""
