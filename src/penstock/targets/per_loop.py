"""Things that belong to an event loop: a target may be used by one loop after another."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Generic, TypeVar

__all__ = ["PerLoop"]

T = TypeVar("T")


class PerLoop(Generic[T]):
    """A value made when first asked for, and made anew when another loop asks; what the old one held is lost."""

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._held: tuple[asyncio.AbstractEventLoop, T] | None = None

    def get(self) -> T:
        """The value of the running loop."""
        loop = asyncio.get_running_loop()
        if self._held is None or self._held[0] is not loop:
            self._held = (loop, self._make())
        return self._held[1]

    def take(self) -> T | None:
        """The value of the running loop, if it has one, which is then forgotten."""
        held, self._held = self._held, None
        return held[1] if held is not None and held[0] is asyncio.get_running_loop() else None
