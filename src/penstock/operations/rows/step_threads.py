"""Threads for users' plain functions, which may block for as long as they like, and which nobody can stop."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from queue import SimpleQueue
from typing import Any, TypeVar

__all__ = ["LEFT_MAX", "StepThread", "StepThreads"]

T = TypeVar("T")

LEFT_MAX = 64  # calls that go on though nobody waits for them; from then on each keeps its place

log = logging.getLogger("penstock.worker")


class StepThread(threading.Thread):
    """A thread on which plain functions of users are called."""


Outcome = tuple[Any, BaseException | None]
Answer = asyncio.Future[None]


class StepThreads:
    """Lets so many calls run at once. One that nobody waits for any more, because its time is over, leaves its place
    to another, so that functions that hang hold up nobody else. The threads keep no process alive.
    """

    def __init__(self, size: int) -> None:
        self._places = asyncio.Semaphore(size)
        self._calls: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._threads = 0
        self._running: set[Answer] = set()
        self._left: dict[Answer, bool] = {}  # those that nobody waits for: whether another has its place

    async def run(self, function: Callable[..., T], *given: Any) -> T:
        """Call a function as soon as there is room."""
        async with self.place() as call:
            answer: T = await call(function, *given)
            return answer

    @asynccontextmanager
    async def place(self) -> AsyncIterator[Callable[..., Awaitable[Any]]]:
        """Room for one call, which is made by what this gives."""
        await self._places.acquire()
        answer: Answer | None = None

        async def call(function: Callable[..., Any], *given: Any) -> Any:
            nonlocal answer
            outcome: list[Outcome] = []
            answer = self._begin(lambda: outcome.append(_outcome(function, *given)))
            await answer
            found, error = outcome.pop()
            if error is not None:
                try:
                    raise error
                finally:
                    del error  # its traceback holds this frame, and that of the thread, which would hold it
            return found

        try:
            yield call
        finally:
            if answer is None or answer not in self._running or self._leave(answer):
                self._places.release()

    def _begin(self, work: Callable[[], None]) -> Answer:
        loop = asyncio.get_running_loop()
        answer: Answer = loop.create_future()

        def there() -> None:
            work()
            with suppress(RuntimeError):  # the loop is closed, and nobody waits
                loop.call_soon_threadsafe(self._returned, answer)

        self._running.add(answer)
        if len(self._running) > self._threads:
            self._threads += 1
            StepThread(target=_work, args=(self._calls,), name="penstock-step", daemon=True).start()
        self._calls.put(there)
        return answer

    def _leave(self, answer: Answer) -> bool:
        """Wait for this call no longer; whether another may have its place."""
        self._left[answer] = len(self._left) < LEFT_MAX
        if len(self._left) == LEFT_MAX:
            log.error("%d calls of plain functions go on though their time is over: do they hang?", LEFT_MAX)
        return self._left[answer]

    def _returned(self, answer: Answer) -> None:
        self._running.remove(answer)
        if not self._left.pop(answer, True):
            self._places.release()
        if not answer.done():
            answer.set_result(None)

    def close(self) -> None:
        """Let the threads end, those that are at work when they come back."""
        for _ in range(self._threads):
            self._calls.put(None)


def _outcome(function: Callable[..., Any], *given: Any) -> Outcome:
    try:
        return function(*given), None
    except BaseException as error:
        return None, error


def _work(calls: SimpleQueue[Callable[[], None] | None]) -> None:
    while (call := calls.get()) is not None:
        call()
        del call  # it holds the row
