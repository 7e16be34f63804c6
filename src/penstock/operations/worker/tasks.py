"""The tasks of a worker: it owns them all, and gets the error when one fails."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator
from typing import Any

__all__ = ["Tasks"]


class Tasks:
    """Tasks that run until they end or are cancelled; the first failure is kept, and `wake` is set."""

    def __init__(self, wake: asyncio.Event) -> None:
        self.failure: BaseException | None = None
        self._wake = wake
        self._tasks: set[asyncio.Task[None]] = set()

    def __iter__(self) -> Iterator[asyncio.Task[None]]:
        return iter(self._tasks)

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Start a task."""
        task = asyncio.create_task(work)
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
