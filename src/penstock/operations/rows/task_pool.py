"""The tasks that work on the jobs of one operation; their number is limited.

No task per row: a task pulls row after row from the first job that has any left, so jobs of neighbouring chunks
overlap and no task is idle at a chunk's end.
"""

from __future__ import annotations

import asyncio
import sys
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, Protocol

__all__ = ["SLICE_NS", "LoopSlice", "TaskPool", "WorkerTask", "is_ours"]

SLICE_NS = 20_000_000  # how long a task keeps the loop, or a thread its rows, before others may run

STRUCTURED = ("asyncio.timeouts", "asyncio.taskgroups")  # whoever is cancelled by them is uncancelled by them

Spawn = Callable[[Coroutine[Any, Any, None]], object]


class WorkerTask(asyncio.Task[None]):
    """A task in which users' code runs, and which that code cannot end: it does the work of many rows.

    A step that cancels the task it runs in gets an error in its place, so that its row fails and nothing else. asyncio
    and we ourselves may cancel the task we run in: that renews a cancellation which came from outside. Cancels by
    callbacks and other tasks come through, because libraries make their timeouts so; but those that are neither ours
    nor taken back are `strange`, and end nothing but the call that they meet.
    """

    strange = 0  # how many of the cancels that it was told are not ours

    def cancel(self, msg: Any = None) -> bool:
        caller: str = sys._getframe(1).f_globals.get("__name__", "")
        package = caller.partition(".")[0]
        if asyncio.current_task(self.get_loop()) is self:
            if package not in ("asyncio", "penstock"):
                raise RuntimeError("this task belongs to the worker: raise an exception instead of cancelling it")
            return super().cancel(msg)
        # Who closes a loop cancels all its tasks while it stands still.
        is_strange = package != "penstock" and caller not in STRUCTURED and self.get_loop().is_running()
        self.strange += is_strange and not self.done()
        return super().cancel(msg)

    def uncancel(self) -> int:
        left = super().uncancel()
        self.strange = min(self.strange, left)
        return left

    def forget_strange_cancels(self) -> None:
        """Go on as if nobody but us had cancelled this task."""
        while self.strange:
            self.uncancel()


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
                try:
                    if await _pull(job):
                        await asyncio.sleep(0)
                    elif self._jobs and self._jobs[0] is job:
                        self._jobs.popleft()
                except asyncio.CancelledError as error:
                    if is_ours(error):
                        raise
        finally:
            self._running -= 1


async def _pull(job: Job) -> bool:
    """Work on a job; when it is cut off, the task goes on, for other jobs may be queued behind it."""
    task = asyncio.current_task()
    assert task is not None
    try:
        return await job.pull()
    except asyncio.CancelledError as error:
        if not is_ours(error) or not job.is_cut_off or task.uncancel():  # the task itself is to end
            raise
        return False


def is_ours(error: BaseException) -> bool:
    """Whether our own task is being cancelled; a step may leak a CancelledError of its own.

    In a worker's task, a cancel by somebody else is taken back: it was meant for the call that ran.
    """
    task = asyncio.current_task()
    if not isinstance(error, asyncio.CancelledError) or task is None:
        return False
    if isinstance(task, WorkerTask):
        task.forget_strange_cancels()
    return task.cancelling() > 0
