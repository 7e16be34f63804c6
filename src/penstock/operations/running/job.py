"""The base of all jobs: rows of one chunk on their way through one segment."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any

from penstock.operations.rows.segments import Segment
from penstock.operations.running.chunk_progress import ChunkProgress
from penstock.pipeline import Context

__all__ = ["RowsJob"]


class RowsJob(ABC):
    """What all jobs share: the rows that are still to be taken, and how many are left; at the end `ended` is set."""

    def __init__(self, progress: ChunkProgress, segment: Segment, rows: Sequence[int], ended: asyncio.Event) -> None:
        self.runtime, self.progress, self.segment = progress.runtime, progress, segment
        self.todo: Iterator[int] = iter(rows)
        self.left = len(rows)
        self.is_cut_off = self.is_withdrawn = False
        self._ended = ended
        self._tasks: set[asyncio.Task[Any]] = set()

    async def pull(self) -> bool:
        """Take and finish some of the rows; False when none was left to take. When our lease is over, none begins."""
        if not self.runtime.may_start():
            rest = self.withdraw()
            self.progress.refuse(rest)
            return bool(rest)
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            has_more = await self.take()
        finally:
            self._tasks.discard(task)
        if self.left and not (has_more or self._tasks):
            self.finished(self.left)  # nobody has these rows: somebody else cancelled the task that did
        return has_more

    @abstractmethod
    async def take(self) -> bool:
        """Take and finish some of the rows; False when none was left to take."""

    def finished(self, rows: int) -> None:
        """Count rows that are through."""
        self.left -= rows
        if not self.left:
            self._ended.set()

    def withdraw(self) -> list[int]:
        """Take back the rows that no task has taken; they will not begin."""
        self.is_withdrawn = True
        rest = list(self.todo)
        self.finished(len(rest))
        return rest

    def cut_off(self) -> None:
        """Cancel the calls that still run; their rows stay in flight."""
        self.is_cut_off = True
        for task in self._tasks:
            task.cancel()
        self.left = 0
        self._ended.set()

    def context(self, i: int, place: int) -> Context[Any]:
        """The context that the steps of row i get, at one of them."""
        progress = self.progress
        row_number, generation = progress.owned.first_row + i, progress.ledger.generation[i]
        ctx: Context[Any] = Context(self.runtime.run, row_number, generation, progress.outputs(i), progress.rows[i])
        ctx.step, ctx.attempt = self.runtime.steps[place - 1].plan, progress.ledger.tracks[place].attempt[i]
        return ctx
