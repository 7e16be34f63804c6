"""A lock that many groups hold together, or one alone that must have the process for itself."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

__all__ = ["SharedLock"]


class SharedLock:
    """Ordinary work holds it together, a suspect row alone; whoever waits to be alone goes first."""

    def __init__(self) -> None:
        self._together = 0
        self._is_alone = False
        self._waiting_alone = 0
        self._change = asyncio.Event()

    @asynccontextmanager
    async def turn(self, is_alone: bool = False) -> AsyncIterator[None]:
        """Hold the lock, together with others or alone."""
        await (self._enter_alone() if is_alone else self._enter())
        try:
            yield
        finally:
            if is_alone:
                self._is_alone = False
            else:
                self._together -= 1
            self._change.set()

    async def _enter(self) -> None:
        while self._is_alone or self._waiting_alone:
            await self._changed()
        self._together += 1

    async def _enter_alone(self) -> None:
        self._waiting_alone += 1
        try:
            while self._is_alone or self._together:
                await self._changed()
            self._is_alone = True
        finally:
            self._waiting_alone -= 1
            self._change.set()

    async def _changed(self) -> None:
        self._change.clear()
        await self._change.wait()
