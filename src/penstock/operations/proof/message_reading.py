"""The signals, requests and history of an operation, read for `verify` a few chunks at a time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Row, func, or_, select

from penstock.db.connection import Connection
from penstock.operations.inbox.matching import is_awaited
from penstock.operations.proof.chunk_invariants import ChunkFacts, Finding
from penstock.operations.proof.message_invariants import MessageFacts, RequestFacts, SignalFacts
from penstock.operations.tables import chunks, history, requests, row_records, signals

__all__ = ["OVERLOOKED_US", "MessageReader", "Messages"]

OVERLOOKED_US = 10_000_000  # two sweeps
FREE_MAX = 10_000  # free signals that are read for the waits of a few chunks
LISTED_MAX = 1000


@dataclass(frozen=True, slots=True)
class Messages:
    """What is stored for a few neighbouring chunks; `now` as in `MessageReader`."""

    signals: Sequence[SignalFacts]
    requests: Mapping[int, Sequence[RequestFacts]]
    lines: Mapping[tuple[int, int, str], int]
    now: int | None

    def of(self, row: Row[Any], chunk: ChunkFacts, kinds: Sequence[str]) -> MessageFacts:
        """The part that concerns one chunk."""
        rows = range(chunk.first_row, chunk.first_row + chunk.row_count)
        is_idle = self.now is not None and chunk.is_open and chunk.owner is None and row.due_at > self.now
        return MessageFacts(
            chunk,
            kinds,
            [s for s in self.signals if s.consumed_row is None or s.consumed_row in rows],
            self.requests.get(chunk.id, ()),
            {key: count for key, count in self.lines.items() if key[0] in rows},
            _overlooked_at(self.now) if is_idle else None,
        )


def _overlooked_at(now: int | None) -> int | None:
    return None if now is None else now - OVERLOOKED_US


class MessageReader:
    """Reads the signals, requests and history of one operation in one snapshot; `now` if a worker is there to sweep."""

    def __init__(self, tx: Connection, operation: int, *, now: int | None) -> None:
        self._tx, self._operation, self._now = tx, operation, now

    async def read(self, batch: Sequence[Row[Any]]) -> Messages:
        """What is stored for these chunks, which follow each other."""
        first, last = batch[0].first_row, batch[-1].first_row + batch[-1].row_count - 1
        ids = [chunk.id for chunk in batch]
        return Messages(
            [*await self._signals(signals.c.consumed_row.between(first, last)), *await self._free(ids)],
            await self._requests(ids),
            await self._lines(first, last),
            self._now,
        )

    async def strays(self) -> list[Finding]:
        """Signals that were taken and requests that were made where the operation has no row or chunk."""
        mine = signals.c.operation == self._operation
        end = select(func.max(chunks.c.first_row + chunks.c.row_count)).where(chunks.c.operation == self._operation)
        beyond = or_(signals.c.consumed_row < 1, signals.c.consumed_row >= func.coalesce(end.scalar_subquery(), 1))
        taken = await self._tx.execute(
            select(signals.c.id, signals.c.consumed_row).where(mine, beyond).limit(LISTED_MAX)
        )
        of_chunk = select(chunks.c.id).where(chunks.c.operation == self._operation)
        asked = await self._tx.execute(
            select(requests.c.id, requests.c.chunk)
            .where(requests.c.operation == self._operation, requests.c.chunk.not_in(of_chunk))
            .limit(LISTED_MAX)
        )
        of_signals: list[Finding] = [
            (row, f"signal {signal} was taken by a row that does not exist") for signal, row in taken
        ]
        return of_signals + [
            (None, f"request {request} is for chunk {chunk}, which is not the operation's") for request, chunk in asked
        ]

    async def _free(self, ids: Sequence[int]) -> list[SignalFacts]:
        """Free signals that waiting rows of these chunks accept."""
        if self._now is None:
            return []
        is_old = signals.c.accepted_at < _overlooked_at(self._now)
        is_awaited_here = is_awaited(row_records.c.chunk.in_(ids))
        return await self._signals(signals.c.consumed_at.is_(None), is_old, is_awaited_here, limit=FREE_MAX)

    async def _signals(self, *filters: Any, limit: int | None = None) -> list[SignalFacts]:
        columns = [signals.c[name] for name in SignalFacts.__dataclass_fields__]
        query = select(*columns).where(signals.c.operation == self._operation, *filters).order_by(signals.c.id)
        return [SignalFacts(*row) for row in await self._tx.execute(query.limit(limit))]

    async def _requests(self, ids: Sequence[int]) -> dict[int, list[RequestFacts]]:
        columns = [requests.c[name] for name in ("chunk", *RequestFacts.__dataclass_fields__)]
        found: dict[int, list[RequestFacts]] = {}
        for chunk, *asked in await self._tx.execute(select(*columns).where(requests.c.chunk.in_(ids))):
            found.setdefault(chunk, []).append(RequestFacts(*asked))
        return found

    async def _lines(self, first: int, last: int) -> dict[tuple[int, int, str], int]:
        query = (
            select(history.c.row, history.c.generation, history.c.event, func.count())
            .where(history.c.operation == self._operation, history.c.row.between(first, last))
            .group_by(history.c.row, history.c.generation, history.c.event)
        )
        return {(row, generation, event): count for row, generation, event, count in await self._tx.execute(query)}
