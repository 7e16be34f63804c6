"""The files of operations, for rows that are not stored."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import BinaryIO

from penstock.blobs.storage import Storage
from penstock.formats import Batch, Limits, Position, Reader
from penstock.operations.chunk.owned import OwnedChunk
from penstock.operations.rows.runtime import Broken, OperationRuntime
from penstock.operations.validating.sizes import piece_size

__all__ = ["Sources", "pieces"]


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


def pieces(reader: Reader, owned: OwnedChunk) -> Iterator[Batch]:
    """The rows of a chunk, some hundreds at a time."""
    at, stop = Position(owned.source_offset, owned.first_row), owned.first_row + owned.row_count
    while at.row < stop:
        size = min(piece_size(owned.row_count), stop - at.row)
        for batch in reader.batches(size, at):
            yield batch
            at = batch.end
            if at.row + size > stop:
                break
        else:
            raise Broken(f"its file ends before row {at.row}, which was there when it was read")
