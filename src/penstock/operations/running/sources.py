"""The files of operations, from which rows are read that are not stored."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import BinaryIO

from penstock.blobs.store import FileStore
from penstock.formats import Batch, Limits, Position, Reader, open_reader
from penstock.operations.held import Held
from penstock.operations.rules.planning import piece_size
from penstock.operations.running.execution import Execution
from penstock.operations.running.executions import Broken

__all__ = ["Sources", "pieces"]


class Sources:
    """Opens the files. Those of running operations stay open, for their chunks come one after the other."""

    def __init__(self, files: FileStore, limits: Limits) -> None:
        self._files, self._limits = files, limits
        self._kept: dict[int, tuple[BinaryIO, Reader]] = {}

    def kept(self, execution: Execution) -> Reader:
        """A reader that stays open until the operation is forgotten; for the loop's thread alone."""
        if execution.number not in self._kept:
            source = self._files.open(execution.file_key)
            self._kept[execution.number] = source, self._reader(execution, source)
        return self._kept[execution.number][1]

    @contextmanager
    def opened(self, execution: Execution) -> Iterator[Reader]:
        """A reader for oneself."""
        with self._files.open(execution.file_key) as source:
            yield self._reader(execution, source)

    def close(self, *, but: Collection[int] = ()) -> None:
        """Close the files of operations but these."""
        for number in self._kept.keys() - but:
            self._kept.pop(number)[0].close()

    def _reader(self, execution: Execution, source: BinaryIO) -> Reader:
        schema = execution.definition.row.schema
        return open_reader(source, format=execution.file_format, schema=schema, limits=self._limits)


def pieces(reader: Reader, held: Held) -> Iterator[Batch]:
    """The rows of a chunk, some hundreds at a time."""
    at, stop = Position(held.source_offset, held.first_row), held.first_row + held.row_count
    while at.row < stop:
        size = min(piece_size(held.row_count), stop - at.row)
        for batch in reader.batches(size, at):
            yield batch
            at = batch.end
            if at.row + size > stop:
                break
        else:
            raise Broken(f"its file ends before row {at.row}, which was there when it was read")
