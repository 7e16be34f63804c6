"""Jobs that judge rows before they run: rows that were edited, and rows that nobody has looked at yet."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import islice

from penstock.formats import Position
from penstock.operations.drafts import Draft
from penstock.operations.rules.spans import Segment
from penstock.operations.running.execution import Execution
from penstock.operations.running.executions import Broken
from penstock.operations.running.job import SLICE_NS, RowsJob
from penstock.operations.running.outcomes import Desk
from penstock.operations.validation import Objection, find_objections, validate
from penstock.pipeline.rows import TOGETHER

__all__ = ["ReadJob", "ValidateJob"]


class ValidateJob(RowsJob):
    """Rows that nobody has looked at yet, or that were edited, are validated before they run."""

    async def take(self) -> bool:
        if self.desk.held.is_raw and not (self.execution.validators or self.desk.has_faults):
            return self._take_together()
        now = self.execution.clock.now_ns
        until = now() + SLICE_NS
        for i in self.todo:
            try:
                if self.execution.may_start():
                    await self._row(i)
                else:
                    self.desk.refuse((i,))
            finally:
                self.finished(1)
            if now() > until:
                return True
        return False

    def _take_together(self) -> bool:
        """New rows, of which nobody asks more than that they fit their model."""
        block = list(islice(self.todo, TOGETHER))
        try:
            if self.execution.may_start():
                faults = self.execution.check(self.desk.raws_of(block))
                self.desk.cleared(i for place, i in enumerate(block) if place not in faults)
                for place, found in faults.items():
                    self.desk.rejected(block[place], Objection(found), self.desk.raw(block[place]))
            else:
                self.desk.refuse(block)
        finally:
            self.finished(len(block))
        return bool(block)

    async def _row(self, i: int) -> None:
        faults = self.desk.faults(i)
        row, objection = (None, Objection(faults)) if faults else await validate(self.execution, self.desk.raw(i))
        if objection is None:
            self.desk.validated(i, row)
        else:
            self.desk.rejected(i, objection, self.desk.raw(i))


class ReadJob(RowsJob):
    """Rows that nobody has looked at yet are read from their file and validated, piece by piece."""

    def __init__(
        self, execution: Execution, desk: Desk, segment: Segment, rows: Sequence[int], bell: asyncio.Event
    ) -> None:
        super().__init__(execution, desk, segment, rows, bell)
        assert desk.unread is not None
        self._pieces = desk.unread
        self._draft = Draft(execution, Position(desk.held.source_offset, desk.held.first_row))

    async def take(self) -> bool:
        if not self.execution.may_start():
            rest = self.withdraw()
            self.desk.refuse(rest)
            return bool(rest)
        try:
            piece = next(self._pieces, None)
        except (Broken, OSError) as error:
            if isinstance(error, OSError):
                self.desk.unreadable = error
            else:
                self.desk.trouble = str(error)
            self.desk.refuse(self.withdraw())
            return True
        if piece is None:
            return False
        rows = [*islice(self.todo, len(piece.rows))]
        try:
            self._draft.add(piece)
            objections = await find_objections(self.execution, piece)
            self.desk.judged(rows, {rows[i]: (found, piece.rows[i]) for i, found in objections.items()})
        finally:
            if len(rows) == self.left and self._draft.rows == self.desk.held.row_count:
                self.desk.held.unstored = self._draft.finished().stored
            self.finished(len(rows))
        return True

    def withdraw(self) -> list[int]:
        self._pieces = iter(())
        return super().withdraw()
