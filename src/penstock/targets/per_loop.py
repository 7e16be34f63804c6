"""Things that belong to an event loop: a target may be used by several, one after another or in threads beside."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Generic, TypeVar

__all__ = ["PerLoop"]

T = TypeVar("T")


class PerLoop(Generic[T]):
    """A value for each event loop, made when first asked for; what a closed loop held is lost."""

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._held: dict[asyncio.AbstractEventLoop, T] = {}

    def get(self) -> T:
        """The value of the running loop."""
        loop = asyncio.get_running_loop()
        if loop not in self._held:
            for other in [*self._held]:
                if other.is_closed():
                    self._held.pop(other, None)
            self._held[loop] = self._make()
        return self._held[loop]

    def take(self) -> T | None:
        """The value of the running loop, if it has one, which is then forgotten."""
        return self._held.pop(asyncio.get_running_loop(), None)
