"""Watching operations for many at once: one look for all who watch the same operation."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field

from penstock.api.streaming import STREAM_S
from penstock.clock import Clock
from penstock.errors import NotFound, Unavailable
from penstock.operations.model import Event, Operation
from penstock.operations.service import Operations

__all__ = ["Sighting", "Watchers"]

log = logging.getLogger("penstock.api")

EVERY_S = 0.5
STILL_HERE_S = 15.0  # proxies close connections on which nothing is sent
MOVES_KEPT = 100


@dataclass(frozen=True, slots=True)
class Sighting:
    """An operation as it was seen, and its last moves; `look` counts the looks at it."""

    operation: Operation
    moves: tuple[Event, ...] = ()
    look: int = 0


@dataclass(slots=True)
class _Watched:
    """An operation that somebody watches."""

    viewers: int = 0
    looks: int = 0
    wanted: int = 1  # the look that somebody waits for, who has seen none yet
    last: Sighting | None = None
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    is_over: bool = False
    task: asyncio.Task[None] | None = None


class Watchers:
    """Everybody who watches an operation through this process; `close` ends all streams, as before a shutdown."""

    def __init__(self, operations: Operations, *, clock: Clock, every_s: float = EVERY_S) -> None:
        self._operations, self._clock, self._every_s = operations, clock, every_s
        self._watched: dict[str, _Watched] = {}
        self._is_closed = False

    @property
    def viewers(self) -> int:
        """How many streams are open."""
        return sum(watched.viewers for watched in self._watched.values())

    async def watch(self, operation: str) -> AsyncGenerator[Sighting | None]:
        """The operation now and whenever it has changed, for five minutes; None now and then.

        It ends earlier when the operation is gone or this is closed. Who is slow gets the latest and misses what was
        between. The first look that counts begins after the call: an earlier one may have seen the end of an operation
        that the caller has just retried.
        """
        watched = self._watched.setdefault(operation, _Watched())
        watched.viewers += 1
        watched.wanted = first = watched.looks + 1
        if watched.task is None:
            watched.task = asyncio.create_task(self._look(operation, watched), name=f"watch {operation}")
        seen: Sighting | None = None
        until = self._clock.monotonic() + STREAM_S
        try:
            while not (watched.is_over or self._is_closed) and self._clock.monotonic() < until:
                changed = watched.changed
                last = watched.last
                if last is not None and last.look >= first and (seen is None or seen.operation != last.operation):
                    seen = last
                    yield seen
                    continue
                try:
                    await asyncio.wait_for(changed.wait(), STILL_HERE_S)
                except TimeoutError:
                    yield None
        finally:
            watched.viewers -= 1
            if watched.viewers == 0:
                self._watched.pop(operation, None)
                watched.task.cancel()

    async def _look(self, operation: str, watched: _Watched) -> None:
        """Look until nobody watches any more, or there is nothing to see."""
        try:
            while True:
                try:
                    await self._look_once(operation, watched)
                except Unavailable as error:
                    log.warning("the progress of %s is unknown: %s", operation, error)
                await asyncio.sleep(self._every_s)
        except NotFound:
            log.info("%s is gone, and was being watched", operation)
        finally:
            watched.is_over = True
            self._tell(watched, watched.last)

    async def _look_once(self, operation: str, watched: _Watched) -> None:
        watched.looks += 1
        look = watched.looks
        now = await self._operations.get(operation)
        if watched.last is None or watched.last.operation != now or watched.last.look < watched.wanted:
            self._tell(watched, Sighting(now, await self._moves(now, watched.last), look))

    async def _moves(self, now: Operation, last: Sighting | None) -> tuple[Event, ...]:
        """The moves up to now; looked up only when there may be new ones."""
        if last is not None and _place(last.operation) == _place(now):
            return last.moves
        return tuple(await self._operations.events(now.id, since=None, limit=MOVES_KEPT))

    def _tell(self, watched: _Watched, sighting: Sighting | None) -> None:
        watched.last = sighting
        changed, watched.changed = watched.changed, asyncio.Event()
        changed.set()

    def close(self) -> None:
        """End all streams."""
        self._is_closed = True
        for watched in self._watched.values():
            self._tell(watched, watched.last)


def _place(operation: Operation) -> tuple[str, int, int]:
    return operation.status, operation.generation, operation.retry_count
