"""The tasks that work on the jobs of one operation; their number is limited.

No task per row: a task pulls row after row from the first job that has any left, so jobs of neighbouring chunks
overlap and no task is idle at a chunk's end.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, Protocol

__all__ = ["SLICE_NS", "LoopSlice", "TaskPool", "is_ours"]

SLICE_NS = 20_000_000  # how long a task keeps the loop, or a thread its rows, before others may run

Spawn = Callable[[Coroutine[Any, Any, None]], object]


class LoopSlice:
    """Lets other tasks run each time that work on the loop has taken a slice; `now_ns` says what time it is."""

    def __init__(self, now_ns: Callable[[], int]) -> None:
        self._now_ns = now_ns
        self._until_ns = now_ns() + SLICE_NS

    async def share(self) -> None:
        """To be called between two pieces of the work."""
        if self._now_ns() > self._until_ns:
            await asyncio.sleep(0)
            self._until_ns = self._now_ns() + SLICE_NS


class Job(Protocol):
    """Work that several tasks can share."""

    is_cut_off: bool  # it was given up, and the tasks at work on it were cancelled

    async def pull(self) -> bool:
        """Take and finish some of the work; False when none was left to take."""


class TaskPool:
    """Up to `size` tasks for a queue of jobs; `spawn` starts a task that its owner will end."""

    def __init__(self, size: int, spawn: Spawn) -> None:
        self._size, self._spawn = size, spawn
        self._jobs: deque[Job] = deque()
        self._running = 0

    def put(self, job: Job) -> None:
        """Queue a job."""
        self._jobs.append(job)
        self._start_one_more()

    def _start_one_more(self) -> None:
        if self._jobs and self._running < self._size:
            self._running += 1
            self._spawn(self._work())

    async def _work(self) -> None:
        # Another task starts when this one first waits: rows that never wait need one task only.
        asyncio.get_running_loop().call_soon(self._start_one_more)
        try:
            while self._jobs:
                job = self._jobs[0]
                if await _pull(job):
                    await asyncio.sleep(0)
                elif self._jobs and self._jobs[0] is job:
                    self._jobs.popleft()
        finally:
            self._running -= 1


async def _pull(job: Job) -> bool:
    """Work on a job; when it is cut off, the task goes on, for other jobs may be queued behind it."""
    task = asyncio.current_task()
    assert task is not None
    try:
        return await job.pull()
    except asyncio.CancelledError:
        if not job.is_cut_off or task.uncancel():  # the task itself is to end
            raise
        return False


def is_ours(error: BaseException) -> bool:
    """Whether our own task is being cancelled; a step may leak a CancelledError of its own."""
    task = asyncio.current_task()
    return isinstance(error, asyncio.CancelledError) and task is not None and task.cancelling() > 0
