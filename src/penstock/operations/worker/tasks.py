"""The tasks of a worker, which owns them all; and a lock by which one group of rows can have the process for itself."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Coroutine, Iterator
from contextlib import asynccontextmanager
from typing import Any

__all__ = ["SharedLock", "Tasks"]

RENEWING = ("asyncio", "penstock")


class WorkerTask(asyncio.Task[None]):
    """A task in which users' code runs, and which that code cannot cancel: it does the work of many rows.

    A step that cancels the task it runs in gets an error in its place, so that its row fails and nothing else. asyncio
    and we ourselves may cancel the task we run in: that renews a cancellation which came from outside.
    """

    def cancel(self, msg: Any = None) -> bool:
        if asyncio.current_task(self.get_loop()) is self:
            caller: str = sys._getframe(1).f_globals.get("__name__", "")
            if caller.partition(".")[0] not in RENEWING:
                raise RuntimeError("this task belongs to the worker: raise an exception instead of cancelling it")
        return super().cancel(msg)


class Tasks:
    """Tasks that run until they end or are cancelled; the first failure is kept, and `wake` is set."""

    def __init__(self, wake: asyncio.Event) -> None:
        self.failure: BaseException | None = None
        self._wake = wake
        self._tasks: set[asyncio.Task[None]] = set()

    def __iter__(self) -> Iterator[asyncio.Task[None]]:
        return iter(self._tasks)

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

    async def cancel(self) -> None:
        """Cancel all tasks, and wait until they have ended."""
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self.fail(error)


class SharedLock:
    """Ordinary work holds it together, a suspect row alone; whoever waits to be alone goes first."""

    def __init__(self) -> None:
        self._together = 0
        self._is_alone = False
        self._waiting_alone = 0
        self._change = asyncio.Event()

    @asynccontextmanager
    async def turn(self, is_alone: bool = False) -> AsyncIterator[None]:
        """Hold the lock, together with others or alone."""
        await (self._enter_alone() if is_alone else self._enter())
        try:
            yield
        finally:
            if is_alone:
                self._is_alone = False
            else:
                self._together -= 1
            self._change.set()

    async def _enter(self) -> None:
        while self._is_alone or self._waiting_alone:
            await self._changed()
        self._together += 1

    async def _enter_alone(self) -> None:
        self._waiting_alone += 1
        try:
            while self._is_alone or self._together:
                await self._changed()
            self._is_alone = True
        finally:
            self._waiting_alone -= 1
            self._change.set()

    async def _changed(self) -> None:
        self._change.clear()
        await self._change.wait()
