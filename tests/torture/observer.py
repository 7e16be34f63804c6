"""A third witness: it reads the ledgers while the storm goes on, and remembers when it first saw a step settled.

A step that was seen settled must not start again; a dead owner's chunk must be seen in other hands before long.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from sqlalchemy import select

from penstock import Penstock
from penstock.errors import Unavailable
from penstock.operations.chunk.ledger import COMPLETED, FAILED, SKIPPED, Ledger
from penstock.operations.states import OPERATION
from penstock.operations.tables import chunks, operations

__all__ = ["Observer", "Sightings"]

_ENDED_WELL = (COMPLETED, SKIPPED)


@dataclass
class Sightings:
    """When each step of one operation was first seen settled, on the monotonic clock, after the look."""

    completed: dict[tuple[int, int], float] = field(default_factory=dict)  # by row and step: never to start again
    settled: dict[tuple[int, int, int], float] = field(default_factory=dict)  # by row, step and generation

    def see(self, ledger: Ledger, first_row: int, t: float) -> None:
        """Note what is settled in a chunk."""
        for place in range(1, ledger.steps + 1):
            for i, state in enumerate(ledger.tracks[place].state):
                row, step = first_row + i, place - 1
                if state in _ENDED_WELL:
                    self.completed.setdefault((row, step), t)
                elif state >= FAILED and ledger.at[i] == place:
                    self.settled.setdefault((row, step, ledger.generation[i]), t)


@dataclass
class Observer:
    """Looks at every unsettled operation, again and again, until cancelled."""

    penstock: Penstock
    died_at: Callable[[str], float | None]  # when the worker with this lease id died, if it did
    moment: Callable[[], float] = time.monotonic
    validates: Callable[[str], None] = lambda lease: None  # told who validates a chunk that another left to it
    every_s: float = 0.1
    sightings: dict[str, Sightings] = field(default_factory=dict)
    takeovers: list[float] = field(default_factory=list)
    looks: int = 0
    _open: set[int] = field(default_factory=set)  # operations that were unsettled at the last look
    _paused_at: dict[int, float] = field(default_factory=dict)  # by operation, when it was last seen paused
    _versions: dict[int, int] = field(default_factory=dict)
    _owners: dict[int, tuple[str, int]] = field(default_factory=dict)  # by chunk: owner and fence

    async def run(self) -> None:
        """Look until cancelled; a database that is away is looked at later."""
        while True:
            with contextlib.suppress(Unavailable):
                await self.look()
            await asyncio.sleep(self.every_s)

    async def look(self) -> None:
        """One look at all that goes on, and at what has ended since the last one."""
        goes_on = operations.c.state.not_in(tuple(OPERATION.settled))
        query = (
            select(chunks, operations.c.id.label("name"), operations.c.state, operations.c.plan)
            .join(operations, operations.c.number == chunks.c.operation)
            .where(goes_on | operations.c.number.in_(self._open))
        )
        async with self.penstock.db.read() as tx:
            found = (await tx.execute(query)).all()
        t = self.moment()
        self.looks += 1
        self._open = {chunk.operation for chunk in found if not OPERATION.is_settled(chunk.state)}
        for chunk in found:
            if chunk.state == "Paused":
                self._paused_at[chunk.operation] = t
            paused_at = self._paused_at.get(chunk.operation, 0.0)
            self._watch_owner(chunk.id, chunk.owner, chunk.fence, paused_at=paused_at, t=t)
            if chunk.is_raw and chunk.owner is not None:
                self.validates(chunk.owner)
            if self._versions.get(chunk.id) != chunk.version and chunk.ledger:
                self._versions[chunk.id] = chunk.version
                steps = len(chunk.plan["steps"])
                ledger = Ledger.decode(chunk.ledger, rows=chunk.row_count, steps=steps, base=0)
                self.sightings.setdefault(chunk.name, Sightings()).see(ledger, chunk.first_row, t)

    def _watch_owner(self, chunk: int, owner: str | None, fence: int, *, paused_at: float, t: float) -> None:
        before = self._owners.pop(chunk, None)
        if before is not None and before != (owner, fence):
            died = self.died_at(before[0])
            if died is not None and owner is not None:
                self.takeovers.append(max(0.0, t - max(died, paused_at)))  # nobody takes over what is paused
        if owner is not None:
            self._owners[chunk] = owner, fence
