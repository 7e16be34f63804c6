"""A chunk that is being made: rows are added in pieces, then it is packed for storage."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from penstock.formats import Batch, Position
from penstock.operations.chunk.ledger import FAILED, INVALID, Ledger
from penstock.operations.chunk.packing import Packer
from penstock.operations.chunk.records import StepRecord
from penstock.operations.counts import Counts
from penstock.operations.row_keys import key_names, key_sums, marks
from penstock.operations.rows.runtime import OperationRuntime

__all__ = ["Draft"]


class Draft:
    """Consecutive rows of a file. What is kept of a piece is small, so that the next one finds room in the cache."""

    def __init__(self, runtime: OperationRuntime, start: Position, *, is_raw: bool = False) -> None:
        definition = runtime.definition
        self.start = self.end = start
        self.is_raw = is_raw  # another worker is to validate the rows
        self.records: list[StepRecord] = []
        self._runtime = runtime
        self._packer = Packer() if definition.options.track_row_data and not is_raw else None
        self._names = key_names(definition.row_key, definition.row.fields)
        self._sums: list[int] = []

    @property
    def rows(self) -> int:
        """How many rows it has so far."""
        return self.end.row - self.start.row

    @property
    def source_bytes(self) -> int:
        """How much of the file they take."""
        return self.end.offset - self.start.offset

    @property
    def counts(self) -> Counts:
        """The verdicts so far."""
        broken = sum(_broke(record) for record in self.records)
        return Counts(invalid=len(self.records) - broken, failed=broken)

    def add(self, batch: Batch, records: Iterable[StepRecord] = ()) -> None:
        """Add the next rows, with the records of those that are not valid."""
        self.end = batch.end
        self.records += records
        if self._packer is not None:
            self._packer.add(batch.rows)
            self._sums += key_sums(batch.rows, self._names, self._runtime.columns)

    def columns(self) -> dict[str, Any]:
        """The chunk's record, once all rows are added; its ledger is empty where all rows are good."""
        is_over = not self.is_raw and len(self.records) == self.rows
        return {
            "first_row": self.start.row,
            "row_count": self.rows,
            "source_offset": self.start.offset,
            "is_open": int(not is_over),
            "is_raw": int(self.is_raw),
            "ledger": self._ledger(),
            **self.counts.columns(),
        }

    def stored_rows(self) -> Mapping[str, bytes | None] | None:
        """The rows as they are stored, once all are added; None where they are not."""
        return None if self._packer is None else {"key_marks": marks(self._sums), "data": self._packer.packed()}

    def _ledger(self) -> bytes:
        if not self.records:
            return b""
        ledger = Ledger(self.rows, len(self._runtime.definition.steps), self._runtime.clock.now_us())
        for record in self.records:
            ledger.reject(record.row - self.start.row, FAILED if _broke(record) else INVALID)
        return ledger.encode()


def _broke(record: StepRecord) -> bool:
    # A validator that broke is no verdict on the row, so the row may be retried as it is.
    return record.error_type == "Processing"
