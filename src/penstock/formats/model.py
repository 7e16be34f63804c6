"""What every file format gives: batches of raw rows between two positions of the file."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Protocol, Self

from penstock.errors import Fault

__all__ = ["Batch", "Limits", "Position", "RawRow", "Reader"]

RawRow = list[str] | dict[str, Any] | str
"""The cells of a CSV record, a JSON object, or the text of something that could not be read as either."""

KIB = 1024
MIB = 1024 * KIB


@dataclass(frozen=True, slots=True)
class Position:
    """A place between two records: the byte where reading goes on, and the number of the record that follows."""

    offset: int
    row: int

    def __str__(self) -> str:
        return f"{self.offset}:{self.row}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """The position whose text form this is."""
        offset, _, row = text.partition(":")
        return cls(int(offset), int(row))


@dataclass(slots=True)
class Batch:
    """Consecutive records, faulty ones included: row number `start.row + i` is `rows[i]`.

    `faults` holds, by index in `rows`, what the reader already knows to be wrong.
    """

    start: Position
    end: Position
    rows: list[RawRow]
    faults: dict[int, list[Fault]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Limits:
    """How much a reader takes before it refuses, so that no file can exhaust a worker.

    A batch ends early once it holds about `batch_bytes_max` of the file, and no CSV record may be longer than that.
    """

    row_bytes_max: int = MIB
    batch_bytes_max: int = 8 * MIB
    columns_max: int = 2_000
    json_depth_max: int = 100
    block_bytes: int = 64 * KIB


class Reader(Protocol):
    """A file opened for reading; `columns` names the cells of a row, or is None where rows carry their own names."""

    columns: tuple[str, ...] | None

    def batches(self, size: int, start: Position | None = None) -> Iterator[Batch]:
        """At most `size` rows at a time, from `start` (an earlier `Batch.end`) or from the first row."""

    def skip(self, count: int, start: Position | None = None) -> Position | None:
        """Where so many rows end, without parsing them; None where that cannot be told so, or there are fewer."""
