"""The files of operations: read for rows that are not stored, and refused where they have no row."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import BinaryIO

from penstock.blobs.storage import Storage
from penstock.errors import FileRejected
from penstock.formats import Batch, Limits, Position, Reader, open_reader
from penstock.operations.chunk.owned import OwnedChunk
from penstock.operations.chunk.packing import piece_size
from penstock.operations.rows.runtime import Broken, OperationRuntime
from penstock.pipeline import Definition

__all__ = ["Pieces", "Sources", "no_rows", "pieces", "refuse_without_rows"]


class Sources:
    """Opens the files. Those of operations that are validated stay open, for their chunks come one after the other."""

    def __init__(self, files: Storage, limits: Limits) -> None:
        self._files, self._limits = files, limits
        self.is_local = files.is_local  # reading one waits for no network, so it may be done on the loop's thread
        self._kept: dict[int, tuple[BinaryIO, Reader]] = {}

    def kept(self, runtime: OperationRuntime) -> Reader:
        """A reader that stays open while chunks of the operation are read; for the loop's thread alone."""
        if runtime.number not in self._kept:
            source = self._files.opened(runtime.file)
            self._kept[runtime.number] = source, runtime.open_reader(source, self._limits)
        return self._kept[runtime.number][1]

    @contextmanager
    def opened(self, runtime: OperationRuntime) -> Iterator[Reader]:
        """A reader for the caller alone."""
        with self._files.open(runtime.file) as source:
            yield runtime.open_reader(source, self._limits)

    def close(self, *, but: Collection[int] = ()) -> None:
        """Close the files of operations but these."""
        for number in self._kept.keys() - but:
            self._kept.pop(number)[0].close()


class Pieces:
    """A file from `start` on, some rows at a time."""

    def __init__(self, reader: Reader, start: Position | None) -> None:
        self._reader, self.start = reader, start
        self.can_skip = True  # as far as we know
        self._batches: Iterator[Batch] | None = None
        self._size = 0

    def take(self, size: int) -> Batch | None:
        """At most so many rows; None at the end."""
        if self._batches is None or size != self._size:
            self._batches, self._size = self._reader.batches(size, self.start), size
        batch = next(self._batches, None)
        if batch is not None:
            self.start = batch.end
        return batch

    def skip(self, count: int) -> Position | None:
        """Pass over so many rows, if that can be done without reading them; where they end."""
        end = self._reader.skip(count, self.start)
        self.can_skip = end is not None
        if end is not None:
            self.start, self._batches = end, None
        return end


def pieces(reader: Reader, owned: OwnedChunk) -> Iterator[Batch]:
    """The rows of a chunk, some hundreds at a time."""
    read, stop = Pieces(reader, Position(owned.source_offset, owned.first_row)), owned.first_row + owned.row_count
    row = owned.first_row
    while row < stop:
        batch = read.take(min(piece_size(owned.row_count), stop - row))
        if batch is None:
            raise Broken(f"its file ends before row {row}, which was there when it was read")
        yield batch
        row = batch.end.row


def no_rows(definition: Definition, file_name: str, columns: tuple[str, ...] | None) -> FileRejected:
    """The refusal of a file that was read to its end without finding a row."""
    found = "a header and no rows" if columns else "no rows" if columns is None else "no rows and no header"
    return FileRejected(
        f"{file_name!r} has {found}; operation {definition.name!r} takes such files only with allow_empty "
        "(@operation(…, allow_empty=True), or for one run --set allow_empty=true)",
        code="no_rows",
    )


def refuse_without_rows(definition: Definition, stream: BinaryIO, *, file_name: str, file_format: str) -> None:
    """Raise if the file has no row and must have one. Whatever else is wrong with it is left to its reading.

    Needs a stream that can be rewound and stands at its beginning, where it is left; others are not looked at.
    """
    if definition.options.allow_empty or not stream.seekable() or stream.tell():
        return
    columns: tuple[str, ...] | None = None
    found = True
    with contextlib.suppress(FileRejected):
        reader = open_reader(stream, format=file_format, schema=definition.row.schema)
        columns, found = reader.columns, next(reader.batches(1), None) is not None
    stream.seek(0)
    if not found:
        raise no_rows(definition, file_name, columns)
