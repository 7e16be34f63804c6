"""Cuts the input into batches as they are wanted; records of one key stay apart and in order."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from penstock.targets.model import TargetError, Trouble
from penstock.targets.rules.repeats import Repeats
from penstock.targets.running.reader import Reader

__all__ = ["Feed", "Piece"]

HELD_MAX = 1000
"""Records that wait for others of their key before reading pauses."""


@dataclass(slots=True)
class Piece:
    """Records for one batch, and those that no batch is made of."""

    indexes: Sequence[int] = ()
    records: Sequence[Any] = ()
    identities: Sequence[Hashable | None] | None = None
    refused: list[tuple[int, Any, TargetError]] = field(default_factory=list)
    skipped: list[int] = field(default_factory=list)


class Feed:
    """The input as pieces.

    `check` finds records that cannot be sent; `repeats` is None when nothing identifies records; `size` is None when
    their bytes do not matter.
    """

    def __init__(
        self,
        reader: Reader,
        *,
        check: Callable[[Sequence[Any]], Mapping[int, TargetError]],
        repeats: Repeats | None = None,
        size: Callable[[Any], int] | None = None,
        bytes_max: int | None = None,
    ) -> None:
        self._reader = reader
        self._check, self._repeats = check, repeats
        self._size, self._bytes_max = size, bytes_max
        self._ready: deque[tuple[int, Any, Hashable | None]] = deque()
        self._released = asyncio.Event()

    async def take(self, size: int) -> Piece | None:
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
        if self._repeats is not None and identities is not None:
            self._ready.extend(self._repeats.release(identities))
            self._released.set()

    @property
    def _held_count(self) -> int:
        return self._repeats.held_count if self._repeats is not None else 0

    @property
    def _is_blocked(self) -> bool:
        return self._held_count >= HELD_MAX

    def _next(self, size: int) -> Piece:
        indexes, records = self._reader.take(size)
        faults = self._check(records)
        if not faults and self._repeats is None:
            return self._fitting(Piece(indexes, records))
        if not faults and (identities := self._claimed(records)) is not None:
            return self._fitting(Piece(indexes, records, identities))
        return self._sorted_out(indexes, records, dict(faults))

    def _claimed(self, records: Sequence[Any]) -> Sequence[Hashable | None] | None:
        """The keys of all these records, taken; None when they must be looked at one by one."""
        assert self._repeats is not None
        try:
            identities = list(map(self._repeats.identity, records))
            return identities if self._repeats.claim_all(identities) else None
        except Exception:
            return None

    def _sorted_out(self, indexes: range, records: Sequence[Any], faults: dict[int, TargetError]) -> Piece:
        piece = Piece()
        for position, (index, record) in enumerate(zip(indexes, records, strict=True)):
            fault = faults.get(position)
            if fault is None:
                fault = self._place(index, record, piece)
            if fault is not None:
                piece.refused.append((index, record, fault))
        return piece

    def _place(self, index: int, record: Any, piece: Piece) -> TargetError | None:
        """Make a record ready, hold it or skip it; or say why it cannot be sent."""
        if self._repeats is None:
            self._ready.append((index, record, None))
            return None
        try:
            identity = self._repeats.identity(record)
            claim = self._repeats.claim(index, record, identity)
        except Exception as error:
            return TargetError(f"the record has no usable key: {error!r}", kind=Trouble.DATA, code="BadRecord")
        match claim:
            case "go":
                self._ready.append((index, record, identity))
            case "skip":
                piece.skipped.append(index)
            case "refuse":
                return TargetError("an earlier record has the same key", kind=Trouble.DATA, code="DuplicateKey")
        return None

    def _from_ready(self, size: int) -> Piece:
        taken = [self._ready.popleft() for _ in range(min(size, len(self._ready)))]
        indexes, records, identities = (list(column) for column in zip(*taken, strict=True))
        return self._fitting(Piece(indexes, records, identities if self._repeats is not None else None))

    def _fitting(self, piece: Piece) -> Piece:
        """As much of a piece as one call can carry; the rest is ready for the next."""
        fits = self._fits(piece.records)
        if fits == len(piece.records):
            return piece
        keys = piece.identities or [None] * len(piece.records)
        rest = zip(piece.indexes[fits:], piece.records[fits:], keys[fits:], strict=True)
        self._ready.extendleft(reversed(list(rest)))
        return Piece(piece.indexes[:fits], piece.records[:fits], keys[:fits])

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
