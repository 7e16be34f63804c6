"""One thread, one seed, one order of events: an event loop that shuffles what is ready and skips the time nobody needs.

Everything that would run on a thread (SQLite, files, sync steps) runs inline and answers later, so a seed replays
exactly. What is lost is real parallelism: transactions come in any order, their insides never interleave.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

from penstock.clock import ManualClock
from penstock.db.dialects import Sqlite
from penstock.operations.rows.step_threads import StepThreads

__all__ = ["SeededLoop", "Stuck", "without_threads"]


SPINS_MAX = 30_000
LATENCY_S, HICCUP = 0.003, 60


class Stuck(Exception):
    """Time stands still, and not because anything is being done."""


class SeededLoop(asyncio.SelectorEventLoop):
    """Runs ready callbacks in an order drawn from the seed; when none is ready, the clock jumps to the next timer."""

    def __init__(self, rng: random.Random, clock: ManualClock) -> None:
        self._rng, self._manual = rng, clock
        self._spins = 0
        super().__init__()

    def time(self) -> float:
        return self._manual.monotonic()

    def _run_once(self) -> None:
        self._spins += 1
        if self._spins > SPINS_MAX:
            self._spins = 0
            raise Stuck(f"{SPINS_MAX} rounds of the loop without a moment's rest")
        if not self._ready:  # type: ignore[attr-defined]
            if not self._scheduled:  # type: ignore[attr-defined]
                raise Stuck("nothing is ready and nothing will ever be: a wait that nobody ends")
            self._spins = 0
            wait_s = self._scheduled[0].when() - self.time()  # type: ignore[attr-defined]
            self._manual.advance(max(0.0, wait_s) + 2e-6)  # the clock counts whole microseconds
        super()._run_once()  # type: ignore[misc]

    def _process_events(self, event_list: Any) -> None:
        super()._process_events(event_list)  # type: ignore[misc]
        self._rng.shuffle(self._ready)  # type: ignore[attr-defined]

    def latency_s(self) -> float:
        """How long an answer from outside takes: a moment, now and then a long one."""
        return self._rng.expovariate(1 / LATENCY_S) * (HICCUP if self._rng.random() < 0.03 else 1)

    def call_step(self, threads: StepThreads, work: Callable[[], None]) -> asyncio.Future[None]:
        """Stands where plain functions of users go to a thread."""
        answer = self.create_future()
        threads._running.add(answer)
        work()
        self.call_later(self.latency_s(), threads._returned, answer)
        return answer

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> Any:  # type: ignore[override]
        future = self.create_future()
        _answer(self, future, lambda: func(*args))
        return future


def _answer(loop: SeededLoop, future: asyncio.Future[Any] | None, work: Callable[[], Any]) -> None:
    """Do the work now; the answer comes when the loop gets to it."""
    settle: Callable[[Any], None]
    try:
        result = work()
    except Exception as error:
        result = error
        settle = future.set_exception if future is not None else _drop
    else:
        settle = future.set_result if future is not None else _drop
    if future is not None:
        loop.call_later(loop.latency_s(), lambda: None if future.done() else settle(result))


def _drop(_result: Any) -> None:
    """Nobody waits for it."""


class _NoThread:
    """The thread of every connection: it is there while something is handed to it."""

    daemon = True
    is_visited = False

    def start(self) -> None:
        """There is nothing to run."""

    def current_thread(self) -> object:
        """Who runs now, as the engine asks to know whether it is on a connection's thread already."""
        return self if self.is_visited else None

    def visit(self, function: Callable[[], Any]) -> Any:
        """Run something there."""
        self.is_visited = True
        try:
            return function()
        finally:
            self.is_visited = False


_THREAD = _NoThread()


class _InlineQueue:
    """Stands where aiosqlite hands statements to its thread."""

    def put_nowait(self, item: tuple[asyncio.Future[Any] | None, Callable[[], Any]]) -> None:
        future, function = item
        loop = asyncio.get_event_loop()
        assert isinstance(loop, SeededLoop)
        _answer(loop, future, lambda: _THREAD.visit(function))


def _call_step(threads: StepThreads, work: Callable[[], None]) -> asyncio.Future[None]:
    loop = asyncio.get_event_loop()
    assert isinstance(loop, SeededLoop)
    return loop.call_step(threads, work)


@contextmanager
def without_threads() -> Iterator[None]:
    """Steps and SQLite without threads; a lock that is taken is an error at once, which the engine meets by trying
    again.

    Nothing here loses power, so nothing waits for the disk.
    """
    with (
        patch.object(StepThreads, "_begin", _call_step),
        patch("aiosqlite.core.SimpleQueue", _InlineQueue),
        patch("aiosqlite.core.Thread", lambda **_given: _THREAD),
        patch("penstock.db.onehop.threading", _THREAD),
        patch("penstock.db.dialects.LOCK_WAIT_S", 0),
        patch.object(Sqlite, "on_connect", ("PRAGMA journal_mode=WAL", "PRAGMA synchronous=OFF")),
    ):
        yield
