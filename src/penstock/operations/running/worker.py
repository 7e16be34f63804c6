"""A worker claims what is due and runs it: files to read, chunks to work, chunks to drain."""

from __future__ import annotations

import asyncio
import contextlib
import gc
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Self

from penstock.blobs.store import FileStore
from penstock.clock import Clock, Entropy, FollowingClock
from penstock.db.database import Database
from penstock.errors import FileRejected, FileUnreadable, NotFound, Unavailable
from penstock.formats import Limits
from penstock.operations import chunks as store
from penstock.operations.held import Held
from penstock.operations.lifespans import Lifespans
from penstock.operations.reading import Reading
from penstock.operations.referee import move
from penstock.operations.running.actor import ChunkActor, Halt, Tempo
from penstock.operations.running.claiming import Claims
from penstock.operations.running.draining import drain_chunk
from penstock.operations.running.executions import Broken, CannotRun, Executions
from penstock.operations.running.lease import Lease
from penstock.operations.running.limits import LimitShares
from penstock.operations.running.outage import Outage
from penstock.operations.running.readers import Readers
from penstock.operations.running.set_aside import SetAside
from penstock.operations.running.sources import Sources
from penstock.operations.running.tasks import Tasks
from penstock.operations.running.troubles import Troubles
from penstock.operations.running.turns import Turns
from penstock.operations.running.vitals import Vitals
from penstock.operations.running.watch import Watch
from penstock.operations.tables import operations
from penstock.pipeline import Definition
from penstock.settings import Settings

__all__ = ["Worker"]

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


@dataclass(frozen=True, slots=True)
class Peers:
    """The live workers: how many there are, and which of them we are, counted from 0."""

    rank: int = 0
    workers: int = 1


class Worker:
    """One process's share of the work; `tick` starts what can be started now and says whether anything was.

    With `owns_process` it may end the process, when a step never yields, and tune its garbage collector. Without, it is
    a guest there and does neither.
    """

    def __init__(
        self,
        db: Database,
        files: FileStore,
        definitions: Mapping[str, Definition],
        settings: Settings,
        lifespans: Lifespans,
        *,
        clock: Clock,
        entropy: Entropy,
        owns_process: bool = False,
    ) -> None:
        self.db, self.files, self.settings = db, files, settings
        self._owns_process = owns_process
        self.clock = FollowingClock(clock)
        self.wake = asyncio.Event()
        self.tasks = Tasks(self.wake)
        self.rests = asyncio.Event()  # set when there was work and none is left
        self.turns = Turns()
        self.actors: dict[int, ChunkActor | None] = {}  # by chunk; None while it is being claimed or drained
        self.readings: dict[int, Reading | None] = {}  # by operation
        self.stopped: dict[int, Halt] = {}  # operations that were pausing or stopping when we last looked
        self.peers = Peers()
        self.set_aside = SetAside(clock.monotonic)
        self.outage = Outage(clock.monotonic)
        self.lease = Lease(db, clock, entropy, lease_s=settings.lease_s, margin_s=settings.lease_margin_s)
        self.troubles = Troubles(db, self.set_aside, owner=self.lease.id)
        self.executions = Executions(
            db,
            definitions,
            settings,
            lifespans,
            clock=self.clock,
            entropy=entropy,
            spawn=self.tasks.spawn,
            start_limit=self.lease.start_limit,
            beat=self._is_alive,
        )
        self.limit_shares = LimitShares(db, worker=self.lease.id, clock=clock, look_s=settings.control_poll_s)
        self.limits = Limits(row_bytes_max=settings.row_bytes_max)
        tempo = Tempo(
            flush_s=settings.flush_s,
            flush_rows=settings.flush_rows,
            grace_s=settings.cancel_grace_s,
            shutdown_s=settings.shutdown_s,
            patience_s=settings.lease_s,
            poison_rows_max=settings.poison_rows_max,
        )
        self.sources = Sources(files, self.limits)
        self._claims = Claims(
            db,
            self.sources,
            owner=self.lease.id,
            clock=self.clock,
            tempo=tempo,
            turn=self.turns.turn,
        )
        self._watch, self._readers = Watch(self), Readers(self)
        self._vitals: Vitals | None = None
        self.is_stopping = self._is_gone = False
        self._next_look = 0.0

    async def __aenter__(self) -> Self:
        if self._owns_process:
            calm_collector()
        await self._watch.follow_clock()
        await self.lease.begin()
        if self.clock.is_real:  # on any other clock nothing happens by itself
            self._vitals = self._start_vitals()
            self.tasks.spawn(self._watch.run())
            self.tasks.spawn(self._watch.listen())
        return self

    async def __aexit__(self, error_type: type[BaseException] | None, *exc_info: object) -> None:
        await self.stop()
        if error_type is None:
            self.tasks.raise_failure()

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
        self.tasks.raise_failure()
        if self.is_stopping:
            return False
        self.wake.clear()
        try:
            if self._vitals is None:  # time stands still between two ticks
                await self.lease.beat()
            if self.lease.has_lapsed:
                await self._watch.look_round()
            if not self.lease.may_start():
                return False
            started = await self._start_chunks()
            # Files wait for a moment while there are chunks enough: each look for them costs as much as a claim.
            if not started or self.clock.monotonic() >= self._next_look:
                self._next_look = self.clock.monotonic() + FILES_LOOK_S
                started = await self._readers.start() or started
            self.outage.worked("work")
            return started
        except Unavailable as error:
            self.outage.failed("work", error)
            return False

    @property
    def is_busy(self) -> bool:
        """Whether anything is being worked on."""
        return bool(self.actors or self.readings)

    @property
    def working(self) -> set[int]:
        """The operations we hold something of."""
        return {actor.held.operation for actor in self.actors.values() if actor is not None} | set(self.readings)

    @property
    def running(self) -> set[int]:
        """The operations of which we hold chunks whose rows run."""
        return {a.held.operation for a in self.actors.values() if a is not None and not a.held.is_raw}

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
        self.is_stopping = True
        self.halt("shutdown")
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self.settings.shutdown_s + SHUTDOWN_WRITE_S):
                while self.is_busy:
                    self.wake.clear()
                    await self.wake.wait()
        await self._end_tasks()
        with contextlib.suppress(Unavailable):
            await self.limit_shares.leave()
        with contextlib.suppress(Unavailable):
            await self.lease.end()

    async def vanish(self) -> None:
        """Leave as a killed process would, without a word to the database; for tests."""
        self.is_stopping = self._is_gone = True
        await self._end_tasks()

    async def _end_tasks(self) -> None:
        await self.tasks.cancel()
        self.executions.close()
        self.sources.close()
        if self._vitals is not None:
            await self._vitals.stop()

    async def _idle(self, until: asyncio.Event, pause_s: float) -> None:
        waits = {asyncio.ensure_future(self.wake.wait()), asyncio.ensure_future(until.wait())}
        try:
            await asyncio.wait(waits, timeout=pause_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()

    def _is_alive(self) -> None:
        """A step says that it is at work, though it keeps the loop to itself."""
        if self._vitals is not None:
            self._vitals.loop_is_alive()

    def _start_vitals(self) -> Vitals:
        vitals = Vitals(
            self.lease,
            self.settings,
            self.clock,
            self.outage,
            owns_process=self._owns_process,
            on_lost=lambda why: self.tasks.fail(Unavailable(why)),
        )
        vitals.start()
        return vitals

    # --- working chunks

    async def _start_chunks(self) -> bool:
        # Enough chunks to keep every hand of the running operations busy.
        limit = CHUNKS_HELD_MIN + self.executions.widest // self.settings.chunk_rows - len(self.actors)
        if limit <= 0:
            return False
        names, peers, aside = self.executions.names, self.peers, self.set_aside.numbers
        skip, reading = tuple(self.actors), tuple(self.readings)
        found = await self.db.look(
            lambda tx: store.candidates(
                self.db,
                tx,
                names=names,
                limit=limit,
                skip=skip,
                reading=reading,
                aside=aside,
                rank=peers.rank,
                workers=peers.workers,
            )
        )
        started = False
        for held in found:
            started = await self._start_chunk(held) or started
        return started

    async def _start_chunk(self, held: Held) -> bool:
        if held.operation in self.set_aside and held.operation_state != "Stopping":
            return False
        self.actors[held.id] = None
        work = None
        try:
            work = await self._prepare(held)
        except (CannotRun, FileRejected, FileUnreadable, OSError) as error:
            await self.troubles.put_aside(held.operation, error)
        except (Broken, NotFound) as error:
            await self.troubles.break_operation(held.operation, str(error))
            return True  # the next tick drains it
        finally:
            if work is None:
                del self.actors[held.id]
        if work is None:
            return False
        self.tasks.spawn(self._hold(held, work))
        return True

    async def _prepare(self, held: Held) -> Callable[[], Awaitable[object]] | None:
        """The work to be done on a candidate, claimed; None when it is not to be had."""
        if held.operation_state == "Stopping":
            return partial(
                drain_chunk,
                self.db,
                held,
                owner=self.lease.id,
                clock=self.clock,
                definitions=self.executions.definitions,
            )
        execution = await self.executions.get(held.operation)
        if not held.is_raw and not await self.limit_shares.take_part(execution):
            self.set_aside.for_a_moment(held.operation, self.settings.control_poll_s)
            return None
        if held.operation_state == "Retrying":
            is_retrying = operations.c.state == "Retrying"
            await self.db.transaction(
                lambda tx: move(self.db, tx, held.operation, "resumed", is_retrying, actor=self.lease.id), "resumed"
            )
        self.stopped.pop(held.operation, None)  # the claim asks anew; what is heard from here on counts
        actor = await self._claims.claim(execution, held)
        if actor is None:
            return None
        self.actors[held.id] = actor
        execution.is_cancelled = self.stopped.get(held.operation) == "Stopping"
        if self.is_stopping:
            actor.halt("shutdown")
        elif held.operation in self.stopped:  # that was heard while we were claiming
            actor.halt(self.stopped[held.operation])
        return actor.run

    async def _hold(self, held: Held, work: Callable[[], Awaitable[object]]) -> None:
        try:
            if not held.is_raw:
                await self.troubles.take_up(held.operation, had_trouble=held.has_trouble)
            await work()
            if held.is_raw:
                await self._have_read(held)
        except Unavailable as error:
            self.outage.failed("work", error)  # the chunk is given up within a second, and claimed again
        finally:
            self.actors.pop(held.id, None)
            self.wake.set()

    async def _have_read(self, held: Held) -> None:
        """Whether the file of a chunk that was not stored could be read shows when it was worked on."""
        actor = self.actors[held.id]
        if actor is not None and actor.desk.unreadable is not None:
            await self.troubles.put_aside(held.operation, actor.desk.unreadable)
        else:
            await self.troubles.take_up(held.operation, had_trouble=held.has_trouble)
