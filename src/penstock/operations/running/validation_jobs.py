"""Jobs that validate rows before they run: rows that were edited, and rows that are new."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any

from penstock.formats import Batch, Position
from penstock.operations.rows.judging import Objection, ask_validators, find_objections, parse
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
        if self.progress.owned.is_raw and not (self.runtime.validators or self.progress.has_faults):
            return self._take_together()
        # Async validators may wait long: each task takes one row, so that many wait at once.
        waits = any(validator.is_async for validator in self.runtime.validators)
        block = list(islice(self.todo, 1 if waits else TOGETHER))
        try:
            await self._judge(block)
        finally:
            self.finished(len(block))
        return bool(block)

    def _take_together(self) -> bool:
        """Validate new rows that only have to fit their model."""
        block = list(islice(self.todo, TOGETHER))
        try:
            if self.runtime.may_start():
                faults = self.runtime.check(self.progress.raws_of(block))
                self.progress.cleared(i for place, i in enumerate(block) if place not in faults)
                for place, found in faults.items():
                    self.progress.rejected(block[place], Objection(found), self.progress.raw(block[place]))
            else:
                self.progress.refuse(block)
        finally:
            self.finished(len(block))
        return bool(block)

    async def _judge(self, block: Sequence[int]) -> None:
        if not self.may_start():
            self.put_back(block)
            return
        rows = dict(self._fitting(block))
        judged = await ask_validators(self.runtime, rows, self.may_start)
        for i, objection in judged.items():
            if objection is None:
                self.progress.validated(i, rows[i])
            else:
                self.progress.rejected(i, objection, self.progress.raw(i))
        self.put_back([i for i in rows if i not in judged])

    def _fitting(self, block: Sequence[int]) -> Iterator[tuple[int, Any]]:
        """The rows that fit their model; the others are rejected."""
        for i in block:
            raw, faults = self.progress.raw(i), self.progress.faults(i)
            row, objection = (None, Objection(faults)) if faults else parse(self.runtime, raw)
            if objection is None:
                yield i, row
            else:
                self.progress.rejected(i, objection, raw)


class ReadJob(JudgeJob):
    """New rows are read from their file and validated, piece by piece."""

    def __init__(self, progress: ChunkProgress, segment: Segment, rows: Sequence[int], ended: asyncio.Event) -> None:
        super().__init__(progress, segment, rows, ended)
        assert progress.unread is not None
        self._pieces, owned = progress.unread, progress.owned
        self._draft: Draft | None = Draft(self.runtime, Position(owned.source_offset, owned.first_row))

    async def take(self) -> bool:
        if not self.runtime.may_start():
            rest = self.withdraw()
            self.progress.refuse(rest)
            return bool(rest)
        try:
            piece = next(self._pieces, None)
        except (Broken, OSError) as error:
            if isinstance(error, OSError):
                self.progress.unreadable = error
            else:
                self.progress.trouble = str(error)
            self.progress.refuse(self.withdraw())
            return True
        if piece is None:
            return False
        rows = [*islice(self.todo, len(piece.rows))]
        try:
            await self._judge(piece, rows)
        finally:
            if self._draft is not None and len(rows) == self.left and self._draft.rows == self.progress.owned.row_count:
                self.progress.owned.unstored = self._draft.finished().stored
            self.finished(len(rows))
        return True

    async def _judge(self, piece: Batch, rows: Sequence[int]) -> None:
        if self._draft is not None:
            self._draft.add(piece)
        found = await find_objections(self.runtime, piece, self.may_start)
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
