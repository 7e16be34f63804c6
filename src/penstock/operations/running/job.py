"""What all jobs are: rows of one chunk on their way through one segment."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any

from penstock.operations.rules.spans import Segment
from penstock.operations.running.crew import SLICE_NS, is_ours
from penstock.operations.running.execution import Execution
from penstock.operations.running.outcomes import Desk
from penstock.pipeline import Context

__all__ = ["SLICE_NS", "RowsJob", "is_ours"]


class RowsJob(ABC):
    """What all jobs share: which rows are still to be taken, and when all are through: then the bell is rung."""

    def __init__(
        self, execution: Execution, desk: Desk, segment: Segment, rows: Sequence[int], bell: asyncio.Event
    ) -> None:
        self.execution, self.desk, self.segment = execution, desk, segment
        self.todo: Iterator[int] = iter(rows)
        self.left = len(rows)
        self.is_cut_off = False
        self._bell = bell
        self._hands: set[asyncio.Task[Any]] = set()

    async def pull(self) -> bool:
        """Take and finish some of the rows; False when none was left to take. None begins when our lease is over."""
        if not self.execution.may_start():
            rest = self.withdraw()
            self.desk.refuse(rest)
            return bool(rest)
        hand = asyncio.current_task()
        assert hand is not None
        self._hands.add(hand)
        try:
            return await self.take()
        finally:
            self._hands.discard(hand)

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
        for hand in self._hands:
            hand.cancel()
        self.left = 0
        self._bell.set()

    def context(self, i: int) -> Context[Any]:
        """What the steps of row i are told."""
        desk = self.desk
        return Context(
            self.execution.run,
            desk.held.first_row + i,
            desk.ledger.generation[i],
            desk.outputs(i),
            desk.rows[i],
        )
