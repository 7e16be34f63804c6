"""Threads for users' plain functions, which may block for as long as they like, and which nobody can stop."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
from typing import Any, TypeVar

__all__ = ["LEFT_MAX", "StepThreads"]

T = TypeVar("T")

LEFT_MAX = 64  # calls that go on though nobody waits for them; from then on each keeps its place

log = logging.getLogger("penstock.worker")


class StepThreads:
    """Lets so many calls run at once. One that nobody waits for any more, because its time is over, leaves its place
    to another, so that functions that hang hold up nobody else. The threads keep no process alive.
    """

    def __init__(self, size: int) -> None:
        self._places = asyncio.Semaphore(size)
        self._calls: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._threads = self._busy = 0
        self._left: set[asyncio.Future[Any]] = set()  # the answers that nobody waits for

    async def run(self, function: Callable[..., T], *given: Any) -> T:
        """Call a function as soon as there is room."""
        await self.take_place()
        return await self.call(function, *given)

    async def take_place(self) -> None:
        """Wait until there is room for a call, which must follow at once."""
        await self._places.acquire()

    async def call(self, function: Callable[..., T], *given: Any) -> T:
        """Call a function in the place that was taken; it is given back at the end."""
        answer, error = await self._answer(function, *given)
        if error is not None:
            try:
                raise error
            finally:
                del error  # its traceback holds this frame, which would hold it
        return answer  # type: ignore[return-value]

    async def _answer(self, function: Callable[..., T], *given: Any) -> tuple[T | None, BaseException | None]:
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[tuple[T | None, BaseException | None]] = loop.create_future()

        def there() -> None:
            outcome: tuple[T | None, BaseException | None]
            try:
                outcome = function(*given), None
            except BaseException as error:  # a future takes not every exception
                outcome = None, error
            with suppress(RuntimeError):  # the loop is closed, and nobody waits
                loop.call_soon_threadsafe(self._returned, answer, outcome)

        self._busy += 1
        if self._busy > self._threads:
            self._threads += 1
            threading.Thread(target=_work, args=(self._calls,), name="penstock-step", daemon=True).start()
        self._calls.put(there)
        try:
            return await answer
        finally:
            if answer.cancelled() and len(self._left) < LEFT_MAX:
                self._left.add(answer)
                self._places.release()
                if len(self._left) == LEFT_MAX:
                    log.error("%d calls of plain functions go on though their time is over: do they hang?", LEFT_MAX)

    def _returned(self, answer: asyncio.Future[Any], outcome: tuple[Any, BaseException | None]) -> None:
        self._busy -= 1
        if answer in self._left:
            self._left.remove(answer)
        else:
            self._places.release()
        if not answer.done():
            answer.set_result(outcome)

    def close(self) -> None:
        """Let the threads end, those that are at work when they come back."""
        for _ in range(self._threads):
            self._calls.put(None)


def _work(calls: SimpleQueue[Callable[[], None] | None]) -> None:
    while (call := calls.get()) is not None:
        call()
        del call  # it holds the row
