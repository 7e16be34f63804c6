"""A worker finds what is due and works on it: files to read, chunks to run, chunks to drain."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Self

from penstock.blobs.storage import Storage
from penstock.clock import Clock, Entropy, FollowingClock
from penstock.db.database import Database
from penstock.errors import Unavailable
from penstock.formats import Limits
from penstock.operations.rows.lifespans import Lifespans
from penstock.operations.rows.step_threads import StepThread
from penstock.operations.running.actor import ChunkActor, Halt
from penstock.operations.validating.reading import Reading
from penstock.operations.validating.sources import Sources
from penstock.operations.worker.background import BackgroundDuties
from penstock.operations.worker.dispatching import DispatcherFactory, PollingDispatcher
from penstock.operations.worker.lease import Lease
from penstock.operations.worker.limit_shares import LimitShares
from penstock.operations.worker.runtimes import OperationRuntimes
from penstock.operations.worker.tasks import SharedLock, Tasks
from penstock.operations.worker.troubles import Outage, SetAside, Troubles
from penstock.operations.worker.vitals import Vitals
from penstock.pipeline import Definition
from penstock.services import Service
from penstock.settings import Settings

__all__ = ["Worker"]

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
    """Works on operations in one process; `tick` starts what can be started now and returns whether anything was.

    With `owns_process` it may end the process, when a step never yields, and tune its garbage collector.
    """

    def __init__(
        self,
        db: Database,
        files: Storage,
        definitions: Mapping[str, Definition],
        settings: Settings,
        lifespans: Lifespans,
        *,
        clock: Clock,
        entropy: Entropy,
        owns_process: bool = False,
        services: Sequence[Service] = (),
        dispatcher: DispatcherFactory = PollingDispatcher,
        capabilities: Mapping[type, object] = MappingProxyType({}),
    ) -> None:
        self.db, self.files, self.settings = db, files, settings
        self.owns_process = owns_process
        self.clock = FollowingClock(clock)
        self.wake = asyncio.Event()
        self.tasks = Tasks(self.wake)
        self.rests = asyncio.Event()  # set when there was work and none is left
        self.shared_lock = SharedLock()
        self.actors: dict[int, ChunkActor | None] = {}  # by chunk; None while it is being claimed or drained
        self.readings: dict[int, Reading | None] = {}  # by operation
        self.stopped: dict[int, Halt] = {}  # operations that were paused or stopping when we last looked
        self.rank, self.live_workers = 0, 1  # which of the live workers we are, and how many there are
        self.set_aside = SetAside(clock.monotonic)
        self.outage = Outage(clock.monotonic)
        code = {definition.name: definition.code_document() for definition in definitions.values()}
        self.lease = Lease(db, clock, entropy, lease_s=settings.lease_s, margin_s=settings.lease_margin_s, code=code)
        self.troubles = Troubles(db, self.set_aside, owner=self.lease.id)
        self.runtimes = OperationRuntimes(self, definitions, lifespans, entropy.jitter, capabilities)
        self.limit_shares = LimitShares(db, worker=self.lease.id, clock=clock, look_s=settings.control_poll_s)
        self.sources = Sources(files, Limits(row_bytes_max=settings.row_bytes_max))
        self._background, self.dispatcher = BackgroundDuties(self, services), dispatcher(self)
        self._vitals: Vitals | None = None
        self.is_stopping = self._is_gone = False
        self._due_us: int | None = None  # when a hint says that something is due

    async def __aenter__(self) -> Self:
        if self.owns_process:
            calm_collector()
        await self._background.follow_clock()
        if self.clock.is_real:
            await self._background.remove_dead()  # whoever starts again after a crash goes on at once
        await self.lease.begin()
        if self.clock.is_real:  # on a manual clock nothing happens by itself
            self._vitals = Vitals(self)
            self._vitals.start()
            self.tasks.spawn(self._background.run())
            self.tasks.spawn(self._background.listen())
            for service in self._background.services:
                self.tasks.spawn(self._background.serve(service))
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
        """Start what can be started now; returns whether anything was."""
        self.tasks.raise_failure()
        if self.is_stopping:
            return False
        self.wake.clear()
        try:
            if self._vitals is None:  # time stands still between two ticks
                await self.lease.beat()
            if self.lease.has_lapsed:
                await self._background.look_round()
            if not self.lease.may_start():
                return False
            started = await self.dispatcher.start_some()
            self.outage.worked("work")
            return started
        except Unavailable as error:
            self.outage.failed("work", error)
            return False

    @property
    def services(self) -> Sequence[Service]:
        """What is done in the background; a test may make a pass of one by its `tick`."""
        return self._background.services

    @property
    def is_busy(self) -> bool:
        """Whether anything is being worked on."""
        return bool(self.actors or self.readings)

    @property
    def working(self) -> set[int]:
        """The operations of which we own chunks or read the file."""
        return {actor.owned.operation for actor in self.actors.values() if actor is not None} | set(self.readings)

    def busy(self, many: int) -> set[int]:
        """The operations of which we own so many chunks."""
        owned = Counter(actor.owned.operation for actor in self.actors.values() if actor is not None)
        return {operation for operation, count in owned.items() if count >= many}

    @property
    def running(self) -> set[int]:
        """The operations of which we own chunks whose rows run."""
        return {a.owned.operation for a in self.actors.values() if a is not None and not a.owned.is_raw}

    async def look_round(self) -> None:
        """Look now for what has changed in the database, instead of within a second."""
        await self._background.look_round()

    def halt(self, why: Halt, operation: int | None = None) -> None:
        """Begin nothing more of an operation, or of all."""
        if why == "Stopping" and operation is not None:
            self.runtimes.set_cancelled(operation)
        for actor in self.actors.values():
            if actor is not None and operation in (None, actor.owned.operation):
                actor.halt(why)
        for number, reading in self.readings.items():
            if reading is not None and operation in (None, number):
                reading.halt()

    async def stop(self) -> None:
        """Begin nothing more, let running rows end within the limit, write, give up all chunks, and end the lease."""
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
        for leave in (self.limit_shares.leave, self.lease.end):
            with contextlib.suppress(Unavailable, TimeoutError):  # it runs out by itself
                async with asyncio.timeout(SHUTDOWN_WRITE_S):
                    await leave()

    async def vanish(self) -> None:
        """Stop as a killed process would, without writing anything; for tests."""
        self.is_stopping = self._is_gone = True
        await self._end_tasks()

    async def _end_tasks(self) -> None:
        await self.tasks.cancel()
        self.runtimes.close()
        self.sources.close()
        if self._vitals is not None:
            await self._vitals.stop()

    def hint(self, operation: str | None = None, due_us: int | None = None) -> None:
        """There may be something to do, of this operation, now or at that instant: look then."""
        if due_us is None or due_us <= self.clock.now_us():
            self.wake.set()
        else:
            self._due_us = due_us if self._due_us is None else min(due_us, self._due_us)

    async def _idle(self, until: asyncio.Event, pause_s: float) -> None:
        if self._due_us is not None:
            pause_s = max(0.0, min(pause_s, (self._due_us - self.clock.now_us()) / 1e6))
            self._due_us = None if pause_s == 0 else self._due_us
        waits = {asyncio.ensure_future(self.wake.wait()), asyncio.ensure_future(until.wait())}
        try:
            await asyncio.wait(waits, timeout=pause_s, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()

    def loop_is_alive(self) -> None:
        """Called by a step that makes progress while it blocks the loop; one on a thread of ours does not block it."""
        if self._vitals is not None and not isinstance(threading.current_thread(), StepThread):
            self._vitals.loop_watch.loop_is_alive()
