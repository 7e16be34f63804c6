"""JSON Lines: every line is an object of its own, so whatever is wrong with a line is wrong with that row only."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import BinaryIO

import msgspec

from penstock.errors import Fault
from penstock.formats.json_rows import decode_row, is_plain, oversized
from penstock.formats.model import Batch, Limits, Position, RawRow
from penstock.formats.skipping import skip_lines
from penstock.schema import Schema

__all__ = ["JsonLinesReader", "open_json_lines"]

decode = msgspec.json.Decoder().decode

NOT_PLAIN = (ValueError, RecursionError)  # what the decoders raise: bad JSON, bad UTF-8, numbers out of range


def open_json_lines(source: BinaryIO, offset: int, schema: Schema, limits: Limits) -> JsonLinesReader:
    """A reader of the JSON Lines that begin at `offset`."""
    return JsonLinesReader(source, offset, limits)


@dataclass(slots=True)
class Block:
    """Complete lines without their ends, and the bytes of the file that they take.

    A line that is too long for a row is the only one of its block, and holds just enough to see that.
    """

    lines: list[bytes]
    size: int

    def take(self, count: int) -> Block:
        """Cut off the first lines."""
        if count >= len(self.lines):
            taken = Block(self.lines, self.size)
        else:
            taken = Block(self.lines[:count], sum(map(len, self.lines[:count])) + count)
        self.lines, self.size = self.lines[count:], self.size - taken.size
        return taken


@dataclass(slots=True)
class Draft:
    """The lines of a batch while it is filled."""

    start: Position
    size: int = 0
    lines: list[bytes] = field(default_factory=list)

    def add(self, block: Block) -> None:
        self.size += block.size
        self.lines += [line for line in block.lines if line and not line.isspace()]


class JsonLinesReader:
    """The rows of a JSON Lines file; blank lines are no rows."""

    columns: tuple[str, ...] | None = None

    def __init__(self, source: BinaryIO, offset: int, limits: Limits) -> None:
        self._source, self._offset, self._limits = source, offset, limits

    def batches(self, size: int, start: Position | None = None) -> Iterator[Batch]:
        draft = Draft(start or Position(self._offset, row=1))
        for block in self._blocks(draft.start.offset):
            while block.lines:
                draft.add(block.take(size - len(draft.lines)))
                if len(draft.lines) >= size or draft.size >= self._limits.batch_bytes_max:
                    batch = self._batch(draft)
                    draft = Draft(batch.end)
                    if batch.rows:
                        yield batch
        if draft.lines:
            yield self._batch(draft)

    def skip(self, count: int, start: Position | None = None) -> Position | None:
        position = start or Position(self._offset, row=1)
        return skip_lines(self._source, count, position, self._limits, is_plain=_is_plain)

    def _batch(self, draft: Draft) -> Batch:
        end = Position(draft.start.offset + draft.size, draft.start.row + len(draft.lines))
        rows, faults = decode_lines(draft.lines, self._limits)
        return Batch(draft.start, end, rows, faults)

    def _blocks(self, offset: int) -> Iterator[Block]:
        pending = b""
        while data := self._read(offset):
            offset += len(data)
            end = data.rfind(b"\n") + 1
            if end:
                yield Block((pending + data[: end - 1]).split(b"\n"), len(pending) + end)
                pending = data[end:]
            else:
                pending += data
            if len(pending) > self._limits.row_bytes_max:
                end = self._line_end(offset)
                yield Block([pending], len(pending) + end - offset)
                pending, offset = b"", end
        if pending:
            yield Block([pending], len(pending))

    def _line_end(self, offset: int) -> int:
        """Where the line that reaches over `offset` ends, holding nothing of it."""
        while data := self._read(offset):
            if end := data.find(b"\n") + 1:
                return offset + end
            offset += len(data)
        return offset

    def _read(self, offset: int) -> bytes:
        self._source.seek(offset)
        return self._source.read(self._limits.block_bytes)


def _is_plain(lines: bytes) -> bool:
    """Whether every line is a row: it begins with what no blank line has."""
    return lines.startswith(b"{") and lines.count(b"\n{") == lines.count(b"\n") - 1


def decode_lines(lines: Sequence[bytes], limits: Limits) -> tuple[list[RawRow], dict[int, list[Fault]]]:
    """A row for each line, and what is wrong with them by index."""
    try:
        rows: list[RawRow] = list(map(decode, lines))
        if max(map(len, lines)) <= limits.row_bytes_max and is_plain(b"".join(lines).decode(), rows, limits):
            return rows, {}
    except NOT_PLAIN:
        pass
    faults: dict[int, list[Fault]] = {}
    rows = []
    for line in lines:
        row, found = decode_line(line, limits)
        if found:
            faults[len(rows)] = found
        rows.append(row)
    return rows, faults


def decode_line(line: bytes, limits: Limits) -> tuple[RawRow, list[Fault]]:
    if len(line) > limits.row_bytes_max:
        return line[: limits.row_bytes_max].decode(errors="replace"), [oversized(limits)]
    try:
        text = line.decode()
        row: RawRow = decode(line)
        if is_plain(text, [row], limits):
            return row, []
    except UnicodeDecodeError as error:
        fault = Fault(f"byte 0x{line[error.start]:02X} at byte {error.start + 1} of the line is not UTF-8")
        return line.decode(errors="replace")[: limits.row_bytes_max], [fault]
    except NOT_PLAIN:
        pass
    decoded = decode_row(text, limits)
    return decoded.row, decoded.faults
