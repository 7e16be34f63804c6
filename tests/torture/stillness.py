"""A watcher for what stands still: an operation that no worker moves, though one could and nothing is waited for.

Time is counted in renewals of one living worker's lease, not in seconds, so a slow machine is no finding.
"""

from __future__ import annotations

import asyncio
import contextlib
import zlib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sqlalchemy import Row, select

from penstock import Penstock
from penstock.errors import Unavailable
from penstock.operations.states import OPERATION
from penstock.operations.tables import chunks, operations, workers

from .dump import dump
from .oracle import Finding

__all__ = ["Stillness"]

EVERY_S = 0.5
STILL_BEATS = 30  # looks at which a worker had renewed its lease, while nothing else moved either
BUSY_BEATS = 120  # the same, while workers were busy with others
WAIT_S_MAX = 30.0  # nothing in these operations waits longer; what is due later than that is due never

Mark = tuple[Any, ...]


@dataclass
class Stillness:
    """Looks at every unsettled operation until cancelled; what it has found once it does not tell again."""

    penstock: Penstock
    can_run: Callable[[str, str], bool]  # whether the worker with this lease id can run operations of this name
    folder: Path
    findings: list[Finding] = field(default_factory=list)
    found: set[str] = field(default_factory=set)
    _leases: dict[str, int] = field(default_factory=dict)
    _beats: Counter[str] = field(default_factory=Counter)  # by worker
    _marks: dict[str, Mark] = field(default_factory=dict)  # by operation: what changes when it moves
    _since: dict[str, Counter[str]] = field(default_factory=dict)  # by operation: the beats when it last moved
    _any_since: Counter[str] = field(default_factory=Counter)  # the same of whichever moved last

    async def run(self) -> None:
        """Look until cancelled."""
        while True:
            with contextlib.suppress(Unavailable):
                await self.look()
            await asyncio.sleep(EVERY_S)

    async def look(self) -> None:
        """One look at all that is not settled."""
        db = self.penstock.db
        is_open = operations.c.state.not_in(tuple(OPERATION.settled))
        async with db.read() as tx:
            now = (await tx.execute(select(db.now()))).scalar_one()
            unsettled = (await tx.execute(select(operations).where(is_open))).all()
            numbers = [one.number for one in unsettled]
            parts = (await tx.execute(select(chunks).where(chunks.c.operation.in_(numbers)))).all()
            leases = {one.id: one.lease_until for one in await tx.execute(select(workers))}
        renewed = {worker for worker, until in leases.items() if self._leases.get(worker, until) < until}
        self._leases = leases
        self._beats.update(renewed)
        for one in unsettled:
            own = [part for part in parts if part.operation == one.number]
            if self._has_moved(one, own) or one.state == "Paused" or _waits(own, now):
                self._since[one.id] = Counter(self._beats)
            elif one.id not in self.found:
                await self._judge(one)

    def _has_moved(self, one: Row[Any], own: Sequence[Row[Any]]) -> bool:
        """Whether anything has become of it; a chunk that is only claimed and given back has not moved."""
        head = (one.state, one.reading, one.rows_read, one.open_chunks, one.raw_chunks, one.generation)
        mark = (head, *sorted((part.id, part.is_open, part.is_raw, zlib.crc32(part.ledger)) for part in own))
        if self._marks.get(one.id) == mark:
            return False
        self._marks[one.id] = mark
        self._any_since = Counter(self._beats)
        return True

    async def _judge(self, one: Row[Any]) -> None:
        able = [worker for worker in self._leases if self.can_run(worker, one.name)]
        beats = {worker: self._beats[worker] - self._since[one.id][worker] for worker in able}
        worker = max(beats, key=beats.__getitem__, default=None)
        if worker is None:
            return
        is_quiet = self._beats[worker] - self._any_since[worker] >= STILL_BEATS
        if beats[worker] >= (STILL_BEATS if is_quiet else BUSY_BEATS):
            self.found.add(one.id)
            file = await dump(self.penstock, one.id, self.folder)
            message = (
                f"it is {one.state} (reading {one.reading}, {one.open_chunks} open chunks, {one.raw_chunks} raw), "
                f"waits for nothing, and has not moved while worker {worker} beat {beats[worker]} times; see {file}"
            )
            self.findings.append(Finding("nothing_stands_still", message, one.id))


def _waits(own: Sequence[Row[Any]], now: int) -> bool:
    """Whether something of it is due later, as rows that wait for a signal, a poll or a further attempt are."""
    return any(part.is_open and 0 < part.due_at - now <= WAIT_S_MAX * 1e6 for part in own)
