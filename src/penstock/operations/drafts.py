"""A chunk in the making: rows come in pieces, and leave packed and judged."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from penstock.formats import Batch, Position
from penstock.operations.held import Packer, Story
from penstock.operations.keys import key_names, key_sums, marks
from penstock.operations.ledger import FAILED, INVALID, Counts, Ledger
from penstock.operations.running.execution import Execution

__all__ = ["Draft", "Finished"]


@dataclass(frozen=True, slots=True)
class Finished:
    """A chunk as it is stored: its ledger, empty where all rows are good, its counts, and its rows unless none are."""

    ledger: bytes
    counts: Counts
    is_over: bool
    stored: Mapping[str, bytes | None] | None


class Draft:
    """Consecutive rows of a file. What is kept of a piece is small, so that the next one finds room in the cache."""

    def __init__(self, execution: Execution, start: Position, *, is_raw: bool = False) -> None:
        definition = execution.definition
        self.start = self.end = start
        self.is_raw = is_raw  # somebody else shall judge them
        self.stories: list[Story] = []
        self._execution = execution
        self._packer = Packer() if definition.options.track_row_data and not is_raw else None
        self._names = key_names(definition.row_key, definition.row.fields)
        self._sums: list[int] = []

    @property
    def rows(self) -> int:
        """How many there are by now."""
        return self.end.row - self.start.row

    @property
    def source_bytes(self) -> int:
        """How much of the file they take."""
        return self.end.offset - self.start.offset

    @property
    def counts(self) -> Counts:
        """The verdicts so far."""
        broken = sum(_broke(story) for story in self.stories)
        return Counts(invalid=len(self.stories) - broken, failed=broken)

    def add(self, batch: Batch, stories: Iterable[Story] = ()) -> None:
        """Take in the next rows, with the records of those that are not right."""
        self.end = batch.end
        self.stories += stories
        if self._packer is not None:
            self._packer.add(batch.rows)
            self._sums += key_sums(batch.rows, self._names, self._execution.columns)

    def finished(self) -> Finished:
        """The chunk, now that nothing is to come."""
        stored = None
        if self._packer is not None:
            stored = {"key_marks": marks(self._sums), "data": self._packer.packed()}
        return Finished(self._ledger(), self.counts, not self.is_raw and len(self.stories) == self.rows, stored)

    def _ledger(self) -> bytes:
        if not self.stories:
            return b""
        ledger = Ledger(self.rows, len(self._execution.definition.steps), self._execution.clock.now_us())
        for story in self.stories:
            ledger.reject(story.row - self.start.row, FAILED if _broke(story) else INVALID)
        return ledger.encode()


def _broke(story: Story) -> bool:
    # A validator that broke is no verdict on the row, so the row may be retried as it is.
    return story.error_type == "Processing"
