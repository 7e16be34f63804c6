"""Finding work for a worker: what a dispatcher is, and the one that looks in the database."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from sqlalchemy import Select, bindparam, or_, select

from penstock.db.database import Database
from penstock.errors import FileUnreadable, NotFound, Unavailable
from penstock.operations.chunk import store
from penstock.operations.draining import abandon_readings, give_back_reading
from penstock.operations.moves import HEAD, Head
from penstock.operations.rows.runtime import CannotRun, OperationRuntime
from penstock.operations.tables import operations
from penstock.operations.validating.reading import Reading, take
from penstock.operations.worker.chunk_runner import ChunkRunner

if TYPE_CHECKING:
    from penstock.operations.worker.worker import Worker

__all__ = ["Dispatcher", "DispatcherFactory", "PollingDispatcher"]

READ_AT_ONCE = 2  # files; more do not go faster
LONG_S = 5.0  # a reading that has taken so long does not count among them


class Readers:
    """Reads files for one worker."""

    def __init__(self, worker: Worker) -> None:
        self._worker, self._db, self._owner = worker, worker.db, worker.lease.id
        self._began: dict[int, tuple[str, float]] = {}  # the name of each operation that is read, and since when

    async def start(self) -> bool:
        """Begin to read files that no worker reads; returns whether any was begun."""
        worker = self._worker
        await abandon_readings(self._db, actor=self._owner)
        room = self._room()
        if room <= 0:
            return False
        found = await self._find(room)
        if found and worker.clock.is_real:
            await worker.look_round()  # other workers may have started within the last second, and can help
        started = False
        for seen, plan, had_trouble in found:
            started = await self._start(seen, plan, had_trouble=had_trouble) or started
        return started

    def _room(self) -> int:
        """How many files to read beside those that are read now; one that takes long keeps no other from its turn."""
        long_ago = self._worker.clock.monotonic() - LONG_S
        quick = sum(began > long_ago for _, began in self._began.values())
        return min(READ_AT_ONCE - quick, store.READINGS_ALL_MAX - len(self._began))

    async def _find(self, limit: int) -> list[tuple[Head, Mapping[str, Any], bool]]:
        """Operations to be read, their plans, and whether a worker had trouble with them."""
        worker, read = self._worker, Counter(name for name, _ in self._began.values())
        # Those whose validators hang, perhaps for ever, leave room for others.
        names = [name for name in worker.runtimes.names if read[name] < store.READINGS_MAX]
        if not names:
            return []
        skipped = store.filled_up((*worker.readings, *worker.set_aside.numbers))
        given = {"many": limit} | store.numbered("name", names) | store.numbered("skip", skipped)
        async with self._db.connection() as tx:
            found = (await tx.send(self._db.prepared(_unread, len(names), len(skipped)), given)).rows
        return [(Head(*head), plan, trouble is not None) for *head, plan, trouble in found]

    async def _start(self, seen: Head, plan: Mapping[str, Any], *, had_trouble: bool) -> bool:
        worker = self._worker
        try:
            runtime = await worker.runtimes.get(seen.number, plan)
        except CannotRun as error:
            await worker.troubles.put_aside(seen.number, error)
            return False
        head = await take(self._db, seen, owner=self._owner, chunk_rows=worker.settings.chunk_rows)
        if head is None:
            return False
        worker.readings[head.number] = None
        self._began[head.number] = head.name, worker.clock.monotonic()
        worker.tasks.spawn(self._run(head, runtime, had_trouble=had_trouble))
        return True

    async def _run(self, head: Head, runtime: OperationRuntime, *, had_trouble: bool) -> None:
        worker = self._worker
        try:
            try:
                with await asyncio.to_thread(worker.files.opened, runtime.file) as source:
                    reading = worker.readings[head.number] = Reading(
                        self._db,
                        runtime,
                        head,
                        owner=self._owner,
                        settings=worker.settings,
                        turn=worker.shared_lock.turn,
                        helpers=lambda: worker.live_workers - 1,
                        grace_s=partial(self._grace_s, head.number),
                        is_local=worker.files.is_local,
                    )
                    if worker.is_stopping:
                        reading.halt()
                    await worker.troubles.take_up(head.number, had_trouble=had_trouble)
                    await reading.run(source)
            except (NotFound, FileUnreadable, OSError) as error:
                if isinstance(error, NotFound):
                    await worker.troubles.break_operation(head.number, str(error))
                else:
                    await worker.troubles.put_aside(head.number, error)
                await give_back_reading(self._db, head, actor=self._owner)
        except Unavailable as error:
            worker.outage.failed("work", error)  # the reading is given up within a second, and begun again
        finally:
            worker.readings.pop(head.number, None)
            self._began.pop(head.number, None)
            worker.wake.set()

    def _grace_s(self, number: int) -> float | None:
        """How long a validator may go on after a halt; None when the operation only pauses."""
        worker = self._worker
        if worker.stopped.get(number) == "Stopping":
            return worker.settings.cancel_grace_s
        return worker.settings.shutdown_s if worker.is_stopping else None


def _unread(db: Database, names: int, skipped: int) -> Select[*tuple[Any, ...]]:
    return (
        select(*HEAD, operations.c.plan, operations.c.trouble)
        .where(
            or_(operations.c.state == "Pending", operations.c.state == "Validating"),
            operations.c.reading == "open",
            store.one_of(operations.c.name, "name", names),
            ~store.one_of(operations.c.number, "skip", skipped),
            store.is_free(db, operations.c.owner),
        )
        .order_by(operations.c.number)
        .limit(bindparam("many"))
    )


CHUNKS_OWNED_MIN = 3  # one runs, one is written, one is fetched
FILES_LOOK_S = 0.25
CHUNKS_BESIDE_MAX = 16  # more than these are never owned, however many operations are open
BESIDE_LOOK_S = 0.25


class Dispatcher(Protocol):
    """Finds work that is due, and has it started. A hint only says that a look is worth while; the database decides."""

    async def start_some(self) -> bool:
        """Start what can be started now; returns whether anything was."""
        ...


DispatcherFactory = Callable[["Worker"], Dispatcher]


class PollingDispatcher:
    """Looks in the database for chunks that are due, and for files to be read."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._chunks, self.readers = ChunkRunner(worker), Readers(worker)
        self._next_look = self._next_beside = 0.0
        self._nothing_beside: set[int] = set()  # the chunks that we owned when there was nothing to start beside them

    async def start_some(self) -> bool:
        """Start what can be started now; returns whether anything was."""
        started = await self._start_chunks()
        now = self._worker.clock.monotonic()
        # While there are enough chunks, files are looked for less often: it costs as much as a claim.
        if not started or now >= self._next_look:
            self._next_look = now + FILES_LOOK_S
            started = await self.readers.start() or started
        return started

    async def _start_chunks(self) -> bool:
        """Keep all tasks of the running operations busy; and let no operation or wait stand behind slow rows."""
        worker = self._worker
        room = CHUNKS_OWNED_MIN + worker.runtimes.widest // worker.settings.chunk_rows - len(worker.actors)
        if room > 0:
            return await self._start_found(room)
        if room <= -CHUNKS_BESIDE_MAX:
            return False
        # The chunks that we have may take long.
        now, owned = worker.clock.monotonic(), set(worker.actors)
        if owned == self._nothing_beside and now < self._next_beside:
            return False
        started = await self._start_found(1, beside=worker.busy(CHUNKS_OWNED_MIN))
        if not started:
            self._nothing_beside, self._next_beside = owned, now + BESIDE_LOOK_S
        return started

    async def _start_found(self, limit: int, *, beside: Collection[int] | None = None) -> bool:
        worker = self._worker
        names, aside = worker.runtimes.names, worker.set_aside.numbers
        skip, reading = tuple(worker.actors), tuple(worker.readings)
        rank, workers = worker.rank, worker.live_workers
        found = await worker.db.glance(
            lambda tx: store.candidates(
                worker.db,
                tx,
                names=names,
                limit=limit,
                skip=skip,
                reading=reading,
                aside=aside,
                beside=beside,
                rank=rank,
                workers=workers,
            )
        )
        started = False
        for owned in found:
            started = await self._chunks.start(owned) or started
        return started
