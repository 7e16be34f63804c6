"""Finding work for a worker: what a dispatcher is, and the one that looks in the database."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import TYPE_CHECKING, Protocol

from penstock.operations.chunk import store
from penstock.operations.worker.chunk_runner import ChunkRunner
from penstock.operations.worker.readers import Readers

if TYPE_CHECKING:
    from penstock.operations.worker.worker import Worker

__all__ = ["Dispatcher", "DispatcherFactory", "PollingDispatcher"]

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
        names, peers, aside = worker.runtimes.names, worker.peers, worker.set_aside.numbers
        skip, reading = tuple(worker.actors), tuple(worker.readings)
        found = await worker.db.look(
            lambda tx: store.candidates(
                worker.db,
                tx,
                names=names,
                limit=limit,
                skip=skip,
                reading=reading,
                aside=aside,
                beside=beside,
                rank=peers.rank,
                workers=peers.workers,
            )
        )
        started = False
        for owned in found:
            started = await self._chunks.start(owned) or started
        return started
