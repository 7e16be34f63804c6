"""Reads the input a few records at a time and cuts it into batches; records of one key stay apart and in order."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Callable, Hashable, Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from penstock.targets.model import ErrorKind, TargetError
from penstock.targets.rules.duplicates import DuplicateKeys
from penstock.targets.running.arguments import Records

__all__ = ["Batcher", "InputReader", "NextBatch"]

log = logging.getLogger("penstock.targets")


class InputReader:
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


HELD_MAX = 1000
"""Records that wait for others of their key before reading pauses."""


@dataclass(slots=True)
class NextBatch:
    """Records for one batch, and those that no batch is made of."""

    indexes: Sequence[int] = ()
    records: Sequence[Any] = ()
    identities: Sequence[Hashable | None] | None = None
    refused: list[tuple[int, Any, TargetError]] = field(default_factory=list)
    skipped: list[int] = field(default_factory=list)


class Batcher:
    """The input as pieces.

    `check` finds records that cannot be sent; `duplicate_keys` is None when nothing identifies records; `size` is
    None when their bytes do not matter.
    """

    def __init__(
        self,
        reader: InputReader,
        *,
        check: Callable[[Sequence[Any]], Mapping[int, TargetError]],
        duplicate_keys: DuplicateKeys | None = None,
        size: Callable[[Any], int] | None = None,
        bytes_max: int | None = None,
    ) -> None:
        self._reader = reader
        self._check, self._duplicate_keys = check, duplicate_keys
        self._size, self._bytes_max = size, bytes_max
        self._ready: deque[tuple[int, Any, Hashable | None]] = deque()
        self._released = asyncio.Event()

    async def take(self, size: int) -> NextBatch | None:
        """The next piece with at most `size` records; None at the end. Waits while all records at hand must wait."""
        while True:
            if self._ready:
                return self._from_ready(size)
            if not self._is_blocked:
                await self._reader.read(size)
                piece = self._next(size)
                if piece.records or piece.refused or piece.skipped:
                    return piece
            if self._ready or not (self._reader.is_over or self._is_blocked):
                continue
            if not self._held_count:
                return None
            self._released.clear()
            await self._released.wait()

    def release(self, identities: Sequence[Hashable | None] | None) -> None:
        """Records of these keys are settled; others of the same keys may go."""
        if self._duplicate_keys is not None and identities is not None:
            self._ready.extend(self._duplicate_keys.release(identities))
            self._released.set()

    @property
    def _held_count(self) -> int:
        return self._duplicate_keys.held_count if self._duplicate_keys is not None else 0

    @property
    def _is_blocked(self) -> bool:
        return self._held_count >= HELD_MAX

    def _next(self, size: int) -> NextBatch:
        indexes, records = self._reader.take(size)
        faults = self._check(records)
        if not faults and self._duplicate_keys is None:
            return self._fitting(NextBatch(indexes, records))
        if not faults and (identities := self._claimed(records)) is not None:
            return self._fitting(NextBatch(indexes, records, identities))
        return self._sorted_out(indexes, records, dict(faults))

    def _claimed(self, records: Sequence[Any]) -> Sequence[Hashable | None] | None:
        """The keys of all these records, taken; None when they must be looked at one by one."""
        assert self._duplicate_keys is not None
        try:
            identities = list(map(self._duplicate_keys.identity, records))
            return identities if self._duplicate_keys.claim_all(identities) else None
        except Exception:
            return None

    def _sorted_out(self, indexes: range, records: Sequence[Any], faults: dict[int, TargetError]) -> NextBatch:
        piece = NextBatch()
        for position, (index, record) in enumerate(zip(indexes, records, strict=True)):
            fault = faults.get(position)
            if fault is None:
                fault = self._place(index, record, piece)
            if fault is not None:
                piece.refused.append((index, record, fault))
        return piece

    def _place(self, index: int, record: Any, piece: NextBatch) -> TargetError | None:
        """Make a record ready, hold it or skip it; or say why it cannot be sent."""
        if self._duplicate_keys is None:
            self._ready.append((index, record, None))
            return None
        try:
            identity = self._duplicate_keys.identity(record)
            claim = self._duplicate_keys.claim(index, record, identity)
        except Exception as error:
            return TargetError(f"the record has no usable key: {error!r}", kind=ErrorKind.DATA, code="BadRecord")
        match claim:
            case "go":
                self._ready.append((index, record, identity))
            case "skip":
                piece.skipped.append(index)
            case "refuse":
                return TargetError("an earlier record has the same key", kind=ErrorKind.DATA, code="DuplicateKey")
        return None

    def _from_ready(self, size: int) -> NextBatch:
        taken = [self._ready.popleft() for _ in range(min(size, len(self._ready)))]
        indexes, records, identities = (list(column) for column in zip(*taken, strict=True))
        return self._fitting(NextBatch(indexes, records, identities if self._duplicate_keys is not None else None))

    def _fitting(self, piece: NextBatch) -> NextBatch:
        """As much of a piece as one call can carry; the rest is ready for the next."""
        fits = self._fits(piece.records)
        if fits == len(piece.records):
            return piece
        keys = piece.identities or [None] * len(piece.records)
        rest = zip(piece.indexes[fits:], piece.records[fits:], keys[fits:], strict=True)
        self._ready.extendleft(reversed(list(rest)))
        return NextBatch(piece.indexes[:fits], piece.records[:fits], keys[:fits])

    def _fits(self, records: Sequence[Any]) -> int:
        """How many of the records one call can carry; a record that is too big by itself goes alone."""
        if self._size is None or self._bytes_max is None:
            return len(records)
        total = 0
        for position, record in enumerate(records):
            total += self._size(record)
            if total > self._bytes_max and position:
                return position
        return len(records)
