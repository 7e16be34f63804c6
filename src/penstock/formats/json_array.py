"""A JSON array of objects, read one element at a time however long the array is.

Elements are decoded where they lie in the buffer by the C scanner of `json`. Only where it stops (at the end of the
buffer, at a fault, at the closing bracket) is the next element's end searched first and its text looked at closely.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, BinaryIO

from penstock.errors import Fault, FileRejected
from penstock.formats.encoding import Undecodable, not_utf8
from penstock.formats.json_rows import Decoded, decode_row, is_plain, oversized
from penstock.formats.json_text import Cursor, Matcher
from penstock.formats.model import Batch, Limits, Position, RawRow
from penstock.schema import Schema

__all__ = ["JsonArrayReader", "open_json_array"]

SEPARATOR = re.compile(r"[ \t\n\r]*,[ \t\n\r]*")

FOUND = {"{": "an object", '"': "a string", "t": "a boolean", "f": "a boolean", "n": "null", "": "nothing"}


def open_json_array(source: BinaryIO, offset: int, schema: Schema, limits: Limits) -> JsonArrayReader:
    """A reader of the array that begins at `offset`."""
    cursor = Cursor(source, offset, limits)
    try:
        first = cursor.peek()
    except Undecodable as error:
        raise not_utf8(error, row=1) from error
    if first not in ("[", ""):
        found = FOUND.get(first, "a number" if first in "-0123456789" else repr(first))
        raise FileRejected(
            f"the file must hold an array of objects, '[{{…}}, {{…}}]', but begins with {found}; "
            "a file with one object per line is JSON Lines (.jsonl)",
            code="json",
        )
    return JsonArrayReader(source, Position(cursor.offset + len(first), row=1), limits, is_empty=not first)


class JsonArrayReader:
    """The elements of a JSON array; a position is the end of an element, before the comma or bracket that follows."""

    columns: tuple[str, ...] | None = None

    def __init__(self, source: BinaryIO, first: Position, limits: Limits, *, is_empty: bool) -> None:
        self._source, self._first, self._limits, self._is_empty = source, first, limits, is_empty

    def batches(self, size: int, start: Position | None = None) -> Iterator[Batch]:
        position = start or self._first
        passage = Passage(self._source, self._limits, position.offset, is_over=self._is_empty)
        while batch := passage.take(size, position):
            yield batch
            position = batch.end

    def skip(self, _count: int, _start: Position | None = None) -> Position | None:
        return None  # only a parser knows where an element ends


@dataclass(slots=True)
class Draft:
    """The rows of a batch while it is filled."""

    start: Position
    rows: list[RawRow] = field(default_factory=list)
    faults: dict[int, list[Fault]] = field(default_factory=dict)

    @property
    def row(self) -> int:
        """The number of the row that comes next."""
        return self.start.row + len(self.rows)

    def add(self, decoded: Decoded) -> None:
        if decoded.faults:
            self.faults[len(self.rows)] = decoded.faults
        self.rows.append(decoded.row)


class Passage:
    """One pass over the elements from an offset on."""

    def __init__(self, source: BinaryIO, limits: Limits, offset: int, *, is_over: bool) -> None:
        self._cursor, self._limits, self._is_over = Cursor(source, offset, limits), limits, is_over

    def take(self, size: int, start: Position) -> Batch | None:
        """The next batch, or None behind the last element."""
        draft, end = Draft(start), start.offset
        try:
            while not self._is_over and len(draft.rows) < size and end - start.offset < self._limits.batch_bytes_max:
                self._take_plain(draft, size)
                end = self._cursor.offset
                if len(draft.rows) < size and self._reach_element(draft.row):
                    draft.add(self._take_one(draft.row))
                    end = self._cursor.offset
        except Undecodable as error:
            raise not_utf8(error, draft.row) from error
        return Batch(start, Position(end, draft.row), draft.rows, draft.faults) if draft.rows else None

    def _take_plain(self, draft: Draft, size: int) -> None:
        """Take what the scanner reads without trouble from the buffer."""
        text, at = self._cursor.text, self._cursor.at
        values, spans = scan_elements(text, at, size - len(draft.rows))
        if not values:
            return
        if self._is_plain(text[at : spans[-1].stop], values):
            draft.rows += values
            self._cursor.at = spans[-1].stop
            return
        for value, span in zip(values, spans, strict=True):
            self._cursor.at = span.start
            element = text[span]
            draft.add(Decoded(value) if self._is_plain(element, [value]) else self._examine(element, draft.row))
            self._cursor.at = span.stop

    def _is_plain(self, text: str, values: list[Any]) -> bool:
        size_max = len(text) if text.isascii() else 4 * len(text)
        return size_max <= self._limits.row_bytes_max and is_plain(text, values, self._limits)

    def _reach_element(self, row: int) -> bool:
        """Move over the comma to the next element; False when the array is over."""
        cursor = self._cursor
        found = cursor.peek()
        if found == "]":
            cursor.at += 1
            self._is_over = True
            if cursor.peek():
                raise self._malformed("something follows the closing bracket of the array", row)
        elif row > 1 and found == ",":
            cursor.at += 1
            found = cursor.peek()
        elif row > 1 and found:
            raise self._malformed(f"expected ',' or ']' but found {found!r}", row)
        if not found:
            raise self._malformed("the file ends before the array does", row)
        return not self._is_over

    def _take_one(self, row: int) -> Decoded:
        """Take the element at the cursor, whatever is wrong with it."""
        cursor = self._cursor
        matcher, searched = Matcher(cursor.text[cursor.at]), cursor.at
        while (end := matcher.feed(cursor.text, searched)) is None:
            searched = len(cursor.text) - cursor.at
            if searched > self._limits.row_bytes_max:
                return self._skip(matcher, row)
            self._read_on(row)
        decoded = self._examine(cursor.text[cursor.at : end], row)
        cursor.at = end
        return decoded

    def _skip(self, matcher: Matcher, row: int) -> Decoded:
        """Pass over an element that is too large, holding only its beginning."""
        cursor = self._cursor
        kept, end = cursor.text[cursor.at :][: self._limits.row_bytes_max], None
        while end is None:
            cursor.at = len(cursor.text)
            self._read_on(row)
            end = matcher.feed(cursor.text, 0)
        cursor.at = end
        return Decoded(kept, [oversized(self._limits)])

    def _read_on(self, row: int) -> None:
        if not self._cursor.more():
            raise self._malformed("the file ends inside an element", row)

    def _examine(self, text: str, row: int) -> Decoded:
        """Decode the element at the cursor; the array is refused when its text is not JSON or ambiguous."""
        decoded = decode_row(text, self._limits)
        if decoded.broken_at is not None:
            self._cursor.at += decoded.broken_at
            raise self._malformed("this is not JSON", row, decoded.faults)
        if decoded.repeated:
            raise self._malformed("a key appears twice in one object", row, decoded.faults)
        return decoded

    def _malformed(self, what: str, row: int, faults: list[Fault] | None = None) -> FileRejected:
        detail = "".join(f"; {fault}" for fault in faults or [])
        return FileRejected(
            f"row {row}, offset {self._cursor.offset}: {what}{detail}", code="json", faults=faults or ()
        )


def scan_elements(text: str, at: int, count_max: int) -> tuple[list[Any], list[slice]]:
    """The values that follow, each behind a comma, as far as they are complete and the scanner has no objection."""
    values: list[Any] = []
    spans: list[slice] = []
    try:
        while len(values) < count_max and (separator := SEPARATOR.match(text, at)):
            begin = separator.end()
            value, at = scan(text, begin)
            if at >= len(text):
                break  # a number might go on in the next block
            values.append(value)
            spans.append(slice(begin, at))
    except (ValueError, StopIteration, RecursionError):
        pass
    return values, spans


def finite(text: str) -> float:
    value = float(text)
    if math.isinf(value):
        raise ValueError(text)
    return value


def refuse(name: str) -> float:
    raise ValueError(name)


# The decoder always has it, though the type stubs do not know.
scan: Callable[[str, int], tuple[Any, int]] = vars(json.JSONDecoder(parse_float=finite, parse_constant=refuse))[
    "scan_once"
]
