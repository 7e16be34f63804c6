"""Reads an input a few records at a time: a list, an iterable or an async one."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator, Sequence, Sized
from itertools import islice
from typing import Any

from penstock.targets.running.inputs import Records

__all__ = ["Reader"]

log = logging.getLogger("penstock.targets")


class Reader:
    """What was read and not yet taken. An input that raises ends there; `error` keeps what it raised."""

    def __init__(self, records: Records) -> None:
        self._records = records
        self.list = records if isinstance(records, Sequence) else None
        self.total = len(records) if isinstance(records, Sized) else None
        self._plain: Iterator[Any] | None = None
        self._async: AsyncIterator[Any] | None = None
        self._unread: list[Any] = []
        self.taken_count = 0
        self.is_over = False
        self.error: Exception | None = None

    @property
    def read_count(self) -> int:
        """Records read so far."""
        return self.taken_count + len(self._unread)

    async def is_empty(self) -> bool:
        """Whether there is nothing at all to read."""
        if not self.read_count:
            await self.read(1)
        return not self.read_count

    async def read(self, size: int) -> None:
        """Read until `size` records wait to be taken, or the input ends."""
        wanted = size - len(self._unread)
        if self.is_over or wanted <= 0:
            return
        try:
            if self.list is not None:
                self._unread.extend(self.list[self.read_count : self.read_count + wanted])
            elif hasattr(self._records, "__aiter__"):
                await self._read_async(size)
            else:
                self._plain = self._plain or iter(self._records)
                self._unread.extend(islice(self._plain, wanted))  # what came before an error stays
        except Exception as error:
            self.error = error
        self.is_over = len(self._unread) < size

    async def aclose(self, patience_s: float) -> None:
        """Let an async input that is not at its end clean up; what goes wrong then is logged."""
        aclose = getattr(self._async, "aclose", None)
        if aclose is None or self.is_over:
            return
        try:
            async with asyncio.timeout(patience_s):
                await aclose()
        except Exception:
            log.exception("the input could not be closed")

    def take(self, size: int) -> tuple[range, list[Any]]:
        """Up to `size` records that were read, with their positions in the input."""
        records, self._unread = self._unread[:size], self._unread[size:]
        indexes = range(self.taken_count, self.taken_count + len(records))
        self.taken_count += len(records)
        return indexes, records

    async def _read_async(self, size: int) -> None:
        self._async = self._async or self._records.__aiter__()  # type: ignore[union-attr]
        try:
            while len(self._unread) < size:
                self._unread.append(await self._async.__anext__())
        except StopAsyncIteration:
            pass
