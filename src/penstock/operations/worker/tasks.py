"""The tasks of a worker, which owns them all; and a lock by which one group of rows can have the process for itself."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Coroutine
from contextlib import asynccontextmanager
from typing import Any

from penstock.operations.rows.gates import happens_within
from penstock.operations.rows.task_pool import WorkerTask

__all__ = ["SharedLock", "Tasks"]

ENDING_S = 5.0  # how long cancelled tasks may take to end; a step that swallows its cancel never does
PATIENCE_S = 1.0  # how long others are held up at first for a row that is to be alone; each time twice as long
PATIENCE_MAX_S = 30.0

log = logging.getLogger("penstock.worker")


class Tasks:
    """Tasks that run until they end or are cancelled; the first failure is kept, and `wake` is set."""

    def __init__(self, wake: asyncio.Event) -> None:
        self.failure: BaseException | None = None
        self._wake = wake
        self._tasks: set[asyncio.Task[None]] = set()

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = WorkerTask(work, loop=asyncio.get_running_loop())
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def fail(self, error: BaseException) -> None:
        """Keep an error that belongs to no row and no operation."""
        if self.failure is None:
            self.failure = error
        self._wake.set()

    def raise_failure(self) -> None:
        """Raise the error that was kept, once."""
        if self.failure is not None:
            failure, self.failure = self.failure, None
            raise failure

    def tell_to_end(self) -> None:
        """Cancel all tasks; they end when they run next."""
        for task in list(self._tasks):
            task.cancel()

    async def cancel(self) -> None:
        """Cancel all tasks, and wait until they have ended; those that go on all the same are left behind."""
        self.tell_to_end()
        if not self._tasks:
            return
        _, stubborn = await asyncio.wait(self._tasks, timeout=ENDING_S)
        for task in stubborn:
            log.error("a task goes on %.0f seconds after it was cancelled: its code swallows it: %s", ENDING_S, task)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.fail(error)


class SharedLock:
    """Ordinary work holds it together, a suspect row alone.

    While one waits to be alone, nobody else begins; but when the others take long to end, they may begin again for as
    long as they were held up, and so on in turns, so that a slow row makes nobody else stand still.
    """

    def __init__(self) -> None:
        self._together = 0
        self._alone = asyncio.Lock()  # held by the one that is alone, or is the next
        self._opened, self._emptied = asyncio.Event(), asyncio.Event()  # others may begin; no other is at work
        self._opened.set()
        self._emptied.set()

    @asynccontextmanager
    async def turn(self, is_alone: bool = False) -> AsyncIterator[None]:
        """Hold the lock, together with others or alone; whoever waits for it may be cancelled."""
        async with self._held_alone() if is_alone else self._held_together():
            yield

    @asynccontextmanager
    async def _held_together(self) -> AsyncIterator[None]:
        while not self._opened.is_set():
            await self._opened.wait()
        self._together += 1
        self._emptied.clear()
        try:
            yield
        finally:
            self._together -= 1
            if not self._together:
                self._emptied.set()

    @asynccontextmanager
    async def _held_alone(self) -> AsyncIterator[None]:
        async with self._alone:
            try:
                await self._keep_others_out()
                yield
            finally:
                self._opened.set()

    async def _keep_others_out(self) -> None:
        """Wait until nobody else holds the lock; nobody begins from then on."""
        patience_s = PATIENCE_S
        self._opened.clear()
        while self._together and not await happens_within(self._emptied, patience_s):
            if self._opened.is_set():
                self._opened.clear()
                patience_s = min(2 * patience_s, PATIENCE_MAX_S)
            else:
                self._opened.set()
        self._opened.clear()
