"""What all jobs are: rows of one chunk on their way through one segment."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any

from penstock.operations.rows.runtime import OperationRuntime
from penstock.operations.rows.segments import Segment
from penstock.operations.rows.task_pool import SLICE_NS, is_ours
from penstock.operations.running.chunk_progress import ChunkProgress
from penstock.pipeline import Context

__all__ = ["SLICE_NS", "RowsJob", "is_ours"]


class RowsJob(ABC):
    """What all jobs share: which rows are still to be taken, and when all are through: then the bell is rung."""

    def __init__(
        self,
        runtime: OperationRuntime,
        progress: ChunkProgress,
        segment: Segment,
        rows: Sequence[int],
        bell: asyncio.Event,
    ) -> None:
        self.runtime, self.progress, self.segment = runtime, progress, segment
        self.todo: Iterator[int] = iter(rows)
        self.left = len(rows)
        self.is_cut_off = False
        self._bell = bell
        self._tasks: set[asyncio.Task[Any]] = set()

    async def pull(self) -> bool:
        """Take and finish some of the rows; False when none was left to take. None begins when our lease is over."""
        if not self.runtime.may_start():
            rest = self.withdraw()
            self.progress.refuse(rest)
            return bool(rest)
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            return await self.take()
        finally:
            self._tasks.discard(task)

    @abstractmethod
    async def take(self) -> bool:
        """Take and finish some of the rows; False when none was left to take."""

    def finished(self, rows: int) -> None:
        """So many rows more are through."""
        self.left -= rows
        if not self.left:
            self._bell.set()

    def withdraw(self) -> list[int]:
        """Rows that no hand has taken; they will not begin."""
        rest = list(self.todo)
        self.finished(len(rest))
        return rest

    def cut_off(self) -> None:
        """Cancel the calls that still run; their rows stay in flight."""
        self.is_cut_off = True
        for task in self._tasks:
            task.cancel()
        self.left = 0
        self._bell.set()

    def context(self, i: int) -> Context[Any]:
        """What the steps of row i are told."""
        progress = self.progress
        return Context(
            self.runtime.run,
            progress.owned.first_row + i,
            progress.ledger.generation[i],
            progress.outputs(i),
            progress.rows[i],
        )
