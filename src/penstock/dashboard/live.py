"""Live pages: parts of a page are rendered once for all who look at it, and sent to each when they have changed."""

from __future__ import annotations

import asyncio
import json
from collections import OrderedDict
from collections.abc import AsyncGenerator, Awaitable, Callable, Hashable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from penstock.api.streaming import STREAM_S
from penstock.clock import Clock
from penstock.operations.model import Event
from penstock.operations.pace import Pace

__all__ = ["Live", "Scene", "Update"]

EVERY_S = 1.0
QUIET_S = 15.0  # a comment after so long without news, so that nobody in between closes the connection
SCENES_MAX = 256


@dataclass(frozen=True, slots=True)
class Update:
    """The parts of a page as they are now; `actions` are those that are possible, `is_last` ends the stream."""

    parts: Mapping[str, str]
    actions: Sequence[str] = ()
    is_last: bool = False


Render = Callable[["Scene"], Awaitable[Update]]


@dataclass
class Scene:
    """What several people look at: rendered for the first who asks, and shown to the others for a second."""

    clock: Clock
    pace: Pace = field(default_factory=Pace)
    kept: dict[str, tuple[float, str]] = field(default_factory=dict)  # parts that are made less often, and when
    _moves: tuple[str, list[Event]] | None = None
    _shown: tuple[float, float, Update] | None = None  # when its rendering began and ended
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def now(self, render: Render, since_s: float) -> Update:
        """The scene as it was at most a second ago, and never before `since_s`, when the caller began to look.

        What was kept from before may be the end of an operation that the caller has just retried.
        """
        async with self._lock:
            now = self.clock.monotonic()
            if self._shown is None or self._shown[0] < since_s or now - self._shown[1] >= EVERY_S * 0.9:
                update = await render(self)
                self._shown = (now, self.clock.monotonic(), update)
            return self._shown[2]

    async def moves(self, status: str, look: Callable[[], Awaitable[list[Event]]]) -> list[Event]:
        """The moves of an operation, looked up when its status is another."""
        if self._moves is None or self._moves[0] != status:
            self._moves = (status, await look())
        return self._moves[1]

    async def keep(self, name: str, for_s: float, make: Callable[[], Awaitable[str]]) -> str:
        """A part that may be so old."""
        now = self.clock.monotonic()
        if name not in self.kept or now - self.kept[name][0] >= for_s:
            self.kept[name] = (now, await make())
        return self.kept[name][1]


class Live:
    """The scenes that somebody looks at, by key; the one that was left longest ago goes first."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._scenes: OrderedDict[Hashable, Scene] = OrderedDict()
        self._closed = asyncio.Event()

    def close(self) -> None:
        """End every stream, as before a shutdown."""
        self._closed.set()

    def scene(self, key: Hashable) -> Scene:
        """The scene of this key."""
        found = self._scenes.setdefault(key, Scene(self._clock))
        self._scenes.move_to_end(key)
        while len(self._scenes) > SCENES_MAX:
            self._scenes.popitem(last=False)
        return found

    async def stream(self, key: Hashable, render: Render) -> AsyncGenerator[str]:
        """Server-sent events: at first all parts, then those that have changed."""
        shown: dict[str, str] = {}
        quiet_s, number = 0.0, 0
        since = self._clock.monotonic()
        while not self._closed.is_set() and self._clock.monotonic() < since + STREAM_S:
            update = await self.scene(key).now(render, since)
            fresh = {name: markup for name, markup in update.parts.items() if shown.get(name) != markup}
            if fresh or not number:
                number, quiet_s, shown = number + 1, 0.0, {**shown, **fresh}
                yield _event("parts", {"parts": fresh, "actions": list(update.actions)}, number)
            if update.is_last:
                yield _event("end", {}, number)
                return
            if quiet_s >= QUIET_S:
                quiet_s = 0.0
                yield ": still here\n\n"
            with suppress(TimeoutError):
                await asyncio.wait_for(self._closed.wait(), EVERY_S)
            quiet_s += EVERY_S


def _event(name: str, data: object, number: int) -> str:
    return f"event: {name}\nid: {number}\ndata: {json.dumps(data)}\n\n"
