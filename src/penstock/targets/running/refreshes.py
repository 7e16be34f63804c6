"""A source's token or connections are renewed once, however many of its calls found them bad."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable

__all__ = ["Refreshes"]

log = logging.getLogger("penstock.targets")


class Refreshes:
    """One renewal at a time for each source; a call that started before the last one asks for none."""

    def __init__(self) -> None:
        self._locks: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._done: Counter[str] = Counter()

    def generation(self, source: str) -> int:
        """How often the source was renewed; a call remembers it when it starts."""
        return self._done[source]

    async def renew(self, source: str, generation: int, refresh: Callable[[str], Awaitable[None]]) -> None:
        """Renew unless that was done since; a renewal that fails is logged, and the next call will tell."""
        async with self._locks[source]:
            if self._done[source] != generation:
                return
            try:
                await refresh(source)
            except Exception as error:
                log.warning("source %r could not be renewed: %r", source, error)
            self._done[source] += 1
