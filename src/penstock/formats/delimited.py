"""CSV and its kin, at the speed of the `csv` module.

Plain lines are only cut. From the first that must be parsed, a batch is one `islice` of a `csv.reader` over `Lines`,
and what could be wrong with its rows is asked of the batch as a whole first.
"""

from __future__ import annotations

import csv
import io
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import BinaryIO

from penstock.errors import Fault, FileRejected
from penstock.formats.encoding import Undecodable, not_utf8
from penstock.formats.header import Header, read_header
from penstock.formats.lines import Lines
from penstock.formats.model import Batch, Limits, Position, RawRow
from penstock.formats.plain import plain_batches, plain_lines
from penstock.formats.skipping import skip_lines
from penstock.schema import Schema

__all__ = ["DelimitedReader", "open_delimited"]

UNCLOSED_QUOTE = "unexpected end of data"
FIELD_TOO_LARGE = "field larger than field limit"

# Lines end at LF until a record does not parse and holds one of these; nearly every file is spared the search for CR.
LONE_CR = re.compile(r"\r(?!\n)")


def open_delimited(source: BinaryIO, offset: int, schema: Schema, limits: Limits) -> DelimitedReader:
    """A reader of the delimited text that begins at `offset`."""
    # The limit belongs to the whole process: it is only ever raised, so that two readers cannot disturb each other.
    csv.field_size_limit(max(csv.field_size_limit(), limits.row_bytes_max))
    return DelimitedReader(source, read_header(source, offset, schema, limits), limits)


class DelimitedReader:
    """The records behind the header of a CSV file; blank lines are no records."""

    def __init__(self, source: BinaryIO, header: Header, limits: Limits) -> None:
        self.columns: tuple[str, ...] | None = header.columns
        self._source, self._header, self._limits = source, header, limits

    def batches(self, size: int, start: Position | None = None) -> Iterator[Batch]:
        position = start or Position(self._header.end, row=1)
        if not self.columns:
            return
        for batch in plain_batches(self._source, self._header.delimiter, size, position, self._limits):
            note_ragged(batch, len(self.columns))
            yield batch
            position = batch.end
        passage = Passage(self._source, self._header, self._limits, position.offset)
        while found := passage.take(size, position):
            yield found
            position = found.end

    def skip(self, count: int, start: Position | None = None) -> Position | None:
        position = start or Position(self._header.end, row=1)
        return skip_lines(self._source, count, position, self._limits, is_plain=_is_plain) if self.columns else None


def _is_plain(lines: bytes) -> bool:
    return plain_lines(lines) is not None


class Passage:
    """One pass over the records from an offset on."""

    def __init__(self, source: BinaryIO, header: Header, limits: Limits, offset: int) -> None:
        self._source, self._header, self._limits = source, header, limits
        self._lines = Lines(source, offset, limits, is_universal=False)
        self._records = self._parse(self._lines)

    def take(self, size: int, start: Position) -> Batch | None:
        """The next batch, or None at the end of the file."""
        rows: list[RawRow] = []
        faults: dict[int, list[Fault]] = {}
        begin, end = start.offset, self._fill(rows, faults, size, start)
        while self._lines.is_cut and not rows:
            if end == begin:
                raise self._too_long(start.row)
            begin = end  # behind more blank lines than a batch may hold
            self._restart(begin, is_universal=self._lines.is_universal)
            end = self._fill(rows, faults, size, Position(begin, start.row))
        if not rows:
            return None
        batch = Batch(start, Position(end, start.row + len(rows)), rows, faults)
        self._check(batch)
        if self._lines.is_cut:
            self._restart(end, is_universal=self._lines.is_universal)
        return batch

    def _restart(self, offset: int, *, is_universal: bool) -> None:
        self._lines.go_to(offset, is_universal=is_universal)
        self._records = self._parse(self._lines)

    def _parse(self, lines: Iterable[str], *, strict: bool = True) -> Iterator[list[str]]:
        return filter(None, csv.reader(lines, delimiter=self._header.delimiter, strict=strict))

    def _fill(self, rows: list[RawRow], faults: dict[int, list[Fault]], size: int, start: Position) -> int:
        """Append up to `size` records, malformed ones as their text, and say where the last one ends."""
        begin, before = start.offset, 0
        self._lines.begin_batch()
        while len(rows) < size:
            try:
                # When the parser raises, the list keeps what it got before that.
                rows.extend(islice(self._records, size - len(rows)))
                break
            except Undecodable as error:
                raise not_utf8(error, self._row_at(error.offset, start)) from error
            except csv.Error as error:
                end = self._lines.offset
                text = self._last_record(begin, end, after=len(rows) - before)
                record = end - len(text.encode())
                if LONE_CR.search(text) and not self._lines.is_universal:
                    self._restart(record, is_universal=True)
                    end = record
                elif not str(error).startswith((UNCLOSED_QUOTE, FIELD_TOO_LARGE)):
                    faults[len(rows)] = [Fault(misquoted(text))]
                    rows.append(text.strip("\r\n")[: self._limits.row_bytes_max])
                elif self._lines.is_cut and rows:
                    return record  # it gets a batch of its own
                else:
                    raise self._runaway(start.row + len(rows)) from error
                begin, before = end, len(rows)
        return self._lines.offset

    def _last_record(self, begin: int, end: int, *, after: int) -> str:
        """The text up to `end` of the record that follows `after` good ones."""
        text = self._read(begin, end).decode()
        stream = io.StringIO(text, newline="")
        deque(islice(self._parse(stream), after), maxlen=0)
        return text[stream.tell() :]

    def _row_at(self, offset: int, start: Position) -> int:
        text = self._read(start.offset, offset).decode() + "?"
        return start.row - 1 + sum(1 for _ in self._parse(io.StringIO(text, newline=""), strict=False))

    def _read(self, begin: int, end: int) -> bytes:
        self._source.seek(begin)
        return self._source.read(end - begin)

    def _check(self, batch: Batch) -> None:
        """Note what is wrong with records that could be parsed, looking at single ones only where there is a reason."""
        if batch.end.offset - batch.start.offset > self._limits.row_bytes_max:
            note(batch, self._oversized)
        note_ragged(batch, len(self._header.columns))
        if self._lines.nul_until > batch.start.offset:
            note(batch, self._with_nul)

    def _oversized(self, cells: list[str]) -> Iterator[Fault]:
        if len(self._header.delimiter.join(cells).encode()) > self._limits.row_bytes_max:
            yield Fault(f"is larger than {self._limits.row_bytes_max:,} bytes")

    def _with_nul(self, cells: list[str]) -> Iterator[Fault]:
        for index, cell in enumerate(cells):
            if "\0" in cell:
                yield Fault("contains a NUL character", next(iter(self._header.columns[index : index + 1]), None))

    def _runaway(self, row: int) -> FileRejected:
        return FileRejected(
            f"row {row} opens a quote that is not closed before the end of the file or within "
            f"{self._limits.row_bytes_max:,} bytes; close it, or double the quotes that belong to the text",
            code="unclosed_quote",
        )

    def _too_long(self, row: int) -> FileRejected:
        return FileRejected(
            f"row {row} is longer than {self._limits.batch_bytes_max:,} bytes; is this a delimited text file?",
            code="limit",
        )


def note(batch: Batch, check: Callable[[list[str]], Iterable[Fault]]) -> None:
    """Run a check over the records of a batch that were parsed."""
    for index, row in enumerate(batch.rows):
        if isinstance(row, list) and (found := list(check(row))):
            batch.faults.setdefault(index, []).extend(found)


def note_ragged(batch: Batch, width: int) -> None:
    """Note the records that have another number of cells than the header."""

    def check(cells: list[str]) -> Iterator[Fault]:
        if len(cells) != width:
            yield Fault(f"has {len(cells):,} cell{'s' if len(cells) > 1 else ''}, the header has {width:,}")

    if set(map(len, batch.rows)) != {width}:
        note(batch, check)


def misquoted(text: str) -> str:
    """What is wrong with a record in which text follows a closing quote."""
    spanned = len(io.StringIO(text.strip("\r\n"), newline="").readlines())
    message = "text follows a closing quote; double the quotes that belong to the text"
    return (
        f"{message} (the record spans {spanned:,} lines, so a closing quote may be missing)" if spanned > 1 else message
    )
