"""Lines that are records as they stand: without quotes, a delimited text is cut at its delimiters and that is all.

Most files are of this kind, and cutting takes half the time of parsing.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import BinaryIO, NamedTuple

from penstock.formats.model import Batch, Limits, Position

__all__ = ["PlainLines", "plain_batches", "plain_lines"]


class PlainLines(NamedTuple):
    """Lines without their ends, and what each ended with."""

    texts: list[str]
    end: str


def plain_lines(block: bytes) -> PlainLines | None:
    """The lines of a block that ends with one; None unless each is a record, with nothing in it to look out for."""
    if b'"' in block or b"\0" in block:
        return None
    try:
        text = block.decode()
    except UnicodeDecodeError:
        return None
    returns = block.count(b"\r")
    end = "\r\n" if returns else "\n"
    texts = text.split(end)
    ends = len(texts) - 1
    if texts.pop() or "" in texts or (returns and not ends == returns == block.count(b"\n")):
        return None
    return PlainLines(texts, end)


def plain_batches(source: BinaryIO, delimiter: str, size: int, start: Position, limits: Limits) -> Iterator[Batch]:
    """The records from `start` on, cut at their delimiters; ends, with a full batch, before any that must be parsed."""
    at, texts, end = start, list[str](), None
    for block in _blocks(source, start.offset, limits):
        lines = plain_lines(block) if block else PlainLines([], end or "")
        if lines is None or end not in (None, lines.end):
            return
        texts, end = texts + lines.texts if texts else lines.texts, lines.end
        while len(texts) >= size or (texts and not block):
            taken, texts = texts[:size], texts[size:]
            length = len("".join(taken).encode()) + len(taken) * len(end)
            if length > limits.batch_bytes_max or max(map(len, taken)) * 4 > limits.row_bytes_max:
                return
            batch = Batch(
                at, Position(at.offset + length, at.row + len(taken)), [text.split(delimiter) for text in taken]
            )
            yield batch
            at = batch.end


def _blocks(source: BinaryIO, offset: int, limits: Limits) -> Iterator[bytes]:
    """The file in blocks of whole lines, the last of them empty; ends early where a line is too long or has no end."""
    pending = b""
    while True:
        # Others read the same file between two blocks, so the place is never taken for granted.
        source.seek(offset)
        data = source.read(limits.block_bytes)
        offset += len(data)
        end = data.rfind(b"\n") + 1
        if end:
            yield pending + data[:end]
            pending = data[end:]
        elif data and len(pending) <= limits.row_bytes_max:
            pending += data
        elif data or pending:
            return
        else:
            yield b""
            return
