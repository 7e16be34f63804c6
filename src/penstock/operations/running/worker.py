"""A worker claims what is due and runs it: files to read, chunks to work, chunks to drain."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from functools import partial
from typing import Any, Self

from sqlalchemy import select

from penstock.blobs.store import FileStore
from penstock.clock import Clock, Entropy, FollowingClock
from penstock.db.database import Database
from penstock.errors import NotFound, Unavailable
from penstock.formats import Limits
from penstock.operations import chunks as store
from penstock.operations.held import Held
from penstock.operations.reading import Reading, take
from penstock.operations.referee import HEAD, Head, move
from penstock.operations.running.actor import ChunkActor, Halt, Tempo
from penstock.operations.running.claiming import Claims
from penstock.operations.running.draining import abandon, abandon_readings, drain_chunk
from penstock.operations.running.executions import Broken, Executions
from penstock.operations.running.lease import Heart, Lease
from penstock.operations.running.sources import Sources
from penstock.operations.running.turns import Turns
from penstock.operations.running.watch import Watch
from penstock.operations.tables import operations
from penstock.pipeline import Definition
from penstock.settings import Settings

__all__ = ["Worker"]

log = logging.getLogger("penstock.worker")

CHUNKS_HELD_MIN = 3  # one runs, one is written, one is fetched
FILES_LOOK_S = 0.25
IDLE_FIRST_S = 0.01  # where there was work there may be more; each look that finds none doubles the pause
GARBAGE_THRESHOLD = 50_000
SHUTDOWN_WRITE_S = 5  # for writing what was known, after the last running step was cut off


def calm_collector() -> None:
    """Look for garbage cycles less often: the rows of a chunk live for milliseconds and have none.

    At Python's own threshold, 700 objects, the search costs a fifth of the run.
    """
    now, *rest = gc.get_threshold()
    if 0 < now < GARBAGE_THRESHOLD:
        gc.set_threshold(GARBAGE_THRESHOLD, *rest)


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
        self.db, self.files, self.settings = db, files, settings
        self.clock = FollowingClock(clock)
        self.wake = asyncio.Event()
        self.rests = asyncio.Event()  # set when there was work and none is left
        self.turns = Turns()
        self.actors: dict[int, ChunkActor | None] = {}  # by chunk; None while it is being claimed or drained
        self.readings: dict[int, Reading | None] = {}  # by operation
        self.stopped: dict[int, Halt] = {}  # operations that were pausing or stopping when we last looked
        self.lease = Lease(db, clock, entropy, lease_s=settings.lease_s, margin_s=settings.lease_margin_s)
        self.executions = Executions(
            db,
            definitions,
            settings,
            clock=self.clock,
            entropy=entropy,
            spawn=self._spawn,
            start_limit=self.lease.start_limit,
            beat=self._is_alive,
        )
        self._limits = Limits(row_bytes_max=settings.row_bytes_max)
        tempo = Tempo(
            flush_s=settings.flush_s,
            flush_rows=settings.flush_rows,
            grace_s=settings.cancel_grace_s,
            shutdown_s=settings.shutdown_s,
            patience_s=settings.lease_s,
            poison_rows_max=settings.poison_rows_max,
        )
        self.sources = Sources(files, self._limits)
        self._claims = Claims(
            db,
            self.sources,
            owner=self.lease.id,
            clock=self.clock,
            tempo=tempo,
            turn=self.turns.turn,
        )
        self._watch = Watch(self)
        self._heart: Heart | None = None
        self._is_stopping = self._is_gone = False
        self._next_look = 0.0
        self._tasks: set[asyncio.Task[None]] = set()
        self._failure: BaseException | None = None

    async def __aenter__(self) -> Self:
        calm_collector()
        await self._watch.follow_clock()
        await self.lease.begin()
        if self.clock.is_real:  # on any other clock nothing happens by itself
            self._heart = self._start_heart()
            self._spawn(self._watch.run(self._heart))
            self._spawn(self._watch.listen())
        return self

    async def __aexit__(self, error_type: type[BaseException] | None, *exc_info: object) -> None:
        await self.stop()
        if error_type is None and self._failure is not None:
            raise self._failure

    # --- the loop

    async def run(self, until: asyncio.Event) -> None:
        """Work until told to stop."""
        pause_s, was_busy = IDLE_FIRST_S, False
        while not until.is_set():
            if await self.tick():
                pause_s, was_busy = IDLE_FIRST_S, True
                continue
            if was_busy and not self.is_busy:
                was_busy = False
                self.rests.set()
            await self._idle(until, pause_s)
            pause_s = min(2 * pause_s, self.settings.wake_poll_s)

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
            if self.lease.has_lapsed:
                await self._watch.look_round()
            if not self.lease.may_start():
                return False
            started = await self._start_chunks()
            # Files wait for a moment while there are chunks enough: each look for them costs as much as a claim.
            if not started or self.clock.monotonic() >= self._next_look:
                self._next_look = self.clock.monotonic() + FILES_LOOK_S
                started = await self._start_readings() or started
            return started
        except Unavailable as error:
            log.warning("the database is away: %s", error)
            return False

    @property
    def is_busy(self) -> bool:
        """Whether anything is being worked on."""
        return bool(self.actors or self.readings)

    @property
    def working(self) -> set[int]:
        """The operations we hold something of."""
        return {actor.held.operation for actor in self.actors.values() if actor is not None} | set(self.readings)

    async def look_round(self) -> None:
        """Hear what was decided elsewhere, now instead of within a second."""
        await self._watch.look_round()

    def halt(self, why: Halt, operation: int | None = None) -> None:
        """Begin nothing more of an operation, or of all."""
        if why == "Stopping" and operation is not None:
            self.executions.set_cancelled(operation)
        for actor in self.actors.values():
            if actor is not None and operation in (None, actor.held.operation):
                actor.halt(why)
        for number, reading in self.readings.items():
            if reading is not None and operation in (None, number):
                reading.halt()

    async def stop(self) -> None:
        """Begin nothing more, let running rows end within the limit, write, let go, and leave."""
        if self._is_gone:
            return
        self._is_stopping = True
        self.halt("shutdown")
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self.settings.shutdown_s + SHUTDOWN_WRITE_S):
                while self.is_busy:
                    self.wake.clear()
                    await self.wake.wait()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.executions.close()
        self.sources.close()
        if self._heart is not None:
            await asyncio.to_thread(self._heart.stop)
        with contextlib.suppress(Unavailable):
            await self.lease.end()

    async def vanish(self) -> None:
        """Leave as a killed process would, without a word to the database; for tests."""
        self._is_stopping = self._is_gone = True
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self.executions.close()
        self.sources.close()
        if self._heart is not None:
            await asyncio.to_thread(self._heart.stop)

    async def _idle(self, until: asyncio.Event, pause_s: float) -> None:
        waits = {asyncio.ensure_future(self.wake.wait()), asyncio.ensure_future(until.wait())}
        try:
            await asyncio.wait(waits, timeout=pause_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()

    def _is_alive(self) -> None:
        """A step says that it is at work, though it keeps the loop to itself."""
        if self._heart is not None:
            self._heart.loop_is_alive()

    def _start_heart(self) -> Heart:
        loop = asyncio.get_running_loop()

        def lost(why: str, is_stuck: bool) -> None:
            log.critical("worker %s: %s", self.lease.id, why)
            if is_stuck:
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

    # --- reading files

    async def _start_readings(self) -> bool:
        await abandon_readings(self.db, actor=self.lease.id)
        room = store.READINGS_MAX - len(self.readings)
        if room <= 0 or not self.executions.names:
            return False
        query = (
            select(*HEAD)
            .where(
                operations.c.state.in_(("Pending", "Validating")),
                operations.c.reading == "open",
                operations.c.name.in_(self.executions.names),
                operations.c.number.not_in(self.readings),
                store.is_free(self.db, operations.c.owner),
            )
            .order_by(operations.c.number)
            .limit(room)
        )
        async with self.db.read() as tx:
            heads = [Head(**row._mapping) for row in await tx.execute(query)]
        if heads and self.clock.is_real:
            await self._watch.look_round()  # within the last second others may have come, who can help
        started = False
        for seen in heads:
            head = await take(self.db, seen, owner=self.lease.id, chunk_rows=self.settings.chunk_rows)
            if head is not None:
                self.readings[head.number] = None
                self._spawn(self._read(head))
                started = True
        return started

    async def _read(self, head: Head) -> None:
        try:
            execution = await self.executions.get(head.number)
            with self.files.open(execution.file_key) as source:
                reading = self.readings[head.number] = Reading(
                    self.db,
                    execution,
                    head,
                    owner=self.lease.id,
                    limits=self._limits,
                    chunk_rows=self.settings.chunk_rows,
                    patience_s=self.settings.lease_s,
                    turn=self.turns.turn,
                    helpers=lambda: self.executions.share.workers - 1,
                )
                if self._is_stopping:
                    reading.halt()
                await reading.run(source)
        except (Broken, NotFound) as error:
            await self._break(head.number, str(error))
            await self.db.transaction(partial(abandon, self.db, head, actor=self.lease.id), "abandon")
        finally:
            self.readings.pop(head.number, None)
            self.wake.set()

    # --- working chunks

    async def _start_chunks(self) -> bool:
        # Enough chunks to keep every hand of the running operations busy.
        limit = CHUNKS_HELD_MIN + self.executions.widest // self.settings.chunk_rows - len(self.actors)
        if limit <= 0:
            return False
        names, share = self.executions.names, self.executions.share
        skip, reading = tuple(self.actors), tuple(self.readings)
        found = await self.db.look(
            lambda tx: store.candidates(
                self.db,
                tx,
                names=names,
                limit=limit,
                skip=skip,
                reading=reading,
                rank=share.rank,
                workers=share.workers,
            )
        )
        started = False
        for held in found:
            started = await self._start_chunk(held) or started
        return started

    async def _start_chunk(self, held: Held) -> bool:
        self.actors[held.id] = None
        work = None
        try:
            work = await self._prepare(held)
        except (Broken, NotFound) as error:
            await self._break(held.operation, str(error))
            return True  # the next tick drains it
        finally:
            if work is None:
                del self.actors[held.id]
        if work is None:
            return False
        self._spawn(self._hold(held, work))
        return True

    async def _prepare(self, held: Held) -> Callable[[], Awaitable[object]] | None:
        """The work to be done on a candidate, claimed; None when it is not to be had."""
        if held.operation_state == "Stopping":
            return partial(drain_chunk, self.db, held, owner=self.lease.id, clock=self.clock)
        if held.operation_state == "Retrying":
            is_retrying = operations.c.state == "Retrying"
            await self.db.transaction(
                lambda tx: move(self.db, tx, held.operation, "resumed", is_retrying, actor=self.lease.id), "resumed"
            )
        self.stopped.pop(held.operation, None)  # the claim asks anew; what is heard from here on counts
        actor = await self._claims.claim(await self.executions.get(held.operation), held)
        if actor is None:
            return None
        self.actors[held.id] = actor
        if self._is_stopping:
            actor.halt("shutdown")
        elif held.operation in self.stopped:  # that was heard while we were claiming
            actor.halt(self.stopped[held.operation])
        return actor.run

    async def _hold(self, held: Held, work: Callable[[], Awaitable[object]]) -> None:
        try:
            await work()
        finally:
            self.actors.pop(held.id, None)
            self.wake.set()

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
