"""Jobs that validate rows before they run: rows that were edited, and rows that are new."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import islice

from penstock.errors import FileRejected
from penstock.formats import Batch, Position
from penstock.operations.rows.judging import find_objections
from penstock.operations.rows.runtime import Broken
from penstock.operations.rows.segments import Segment
from penstock.operations.running.chunk_progress import ChunkProgress
from penstock.operations.running.job import RowsJob
from penstock.operations.validating.drafts import Draft
from penstock.pipeline.rows import TOGETHER

__all__ = ["ReadJob", "ValidateJob"]


class JudgeJob(RowsJob):
    """What both share: no validator is called once the job was withdrawn or the lease is over."""

    def may_start(self) -> bool:
        """Whether a validator may be called now."""
        return not self.is_withdrawn and self.runtime.may_start()

    def put_back(self, rows: Sequence[int]) -> None:
        """Put back rows that were not judged: the next owner of the chunk judges them."""
        if self.is_withdrawn:
            self.progress.ledger.undo_start(rows)
        elif rows:
            self.progress.refuse(rows)


class ValidateJob(JudgeJob):
    """New or edited rows are validated before they run."""

    async def take(self) -> bool:
        # Async validators may wait long: each task takes one row, so that many wait at once.
        waits = any(validator.is_async for validator in self.runtime.validators)
        block = list(islice(self.todo, 1 if waits else TOGETHER))
        try:
            await self._judge(block)
        finally:
            self.finished(len(block))
        return bool(block)

    async def _judge(self, block: Sequence[int]) -> None:
        if not self.may_start():
            self.put_back(block)
            return
        progress, raws = self.progress, self.progress.raws_of(block)
        found = await find_objections(self.runtime, raws, progress.faults_of(block, raws), self.may_start)
        for place, objection in found.objections.items():
            progress.rejected(block[place], objection, raws[place])
        progress.validated([i for place, i in enumerate(block[: found.judged]) if place not in found.objections])
        self.put_back(block[found.judged :])


class ReadJob(JudgeJob):
    """New rows are read from their file and validated, piece by piece."""

    def __init__(self, progress: ChunkProgress, segment: Segment, rows: Sequence[int], ended: asyncio.Event) -> None:
        super().__init__(progress, segment, rows, ended)
        assert progress.unread is not None
        self._pieces, owned = progress.unread, progress.owned
        self._draft: Draft | None = Draft(self.runtime, Position(owned.source_offset, owned.first_row))

    async def take(self) -> bool:
        try:
            piece = next(self._pieces, None)
        except (Broken, FileRejected, OSError) as error:
            if isinstance(error, Broken):
                self.progress.trouble = str(error)
            else:
                self.progress.unreadable = error
            self.progress.refuse(self.withdraw())
            return True
        if piece is None:
            return False
        rows = [*islice(self.todo, len(piece.rows))]
        try:
            await self._judge(piece, rows)
        finally:
            if self._draft is not None and len(rows) == self.left and self._draft.rows == self.progress.owned.row_count:
                self.progress.owned.unstored = self._draft.stored_rows()
            self.finished(len(rows))
        return True

    async def _judge(self, piece: Batch, rows: Sequence[int]) -> None:
        if self._draft is not None:
            self._draft.add(piece)
        found = await find_objections(self.runtime, piece.rows, piece.faults, self.may_start)
        judged, rest = rows[: found.judged], rows[found.judged :]
        if judged:
            self.progress.judged(
                judged, {rows[i]: (objection, piece.rows[i]) for i, objection in found.objections.items()}
            )
        if rest:
            self._draft = None  # the next owner reads the chunk again, with the faults that the reader finds
            self.put_back(rest)

    def withdraw(self) -> list[int]:
        self._pieces = iter(())
        return super().withdraw()
