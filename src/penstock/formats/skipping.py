"""Passing over records without parsing them, where every line certainly is one."""

from __future__ import annotations

import io
from collections import deque
from collections.abc import Callable
from itertools import islice
from typing import BinaryIO

from penstock.formats.model import Limits, Position

__all__ = ["skip_lines"]


def skip_lines(
    source: BinaryIO, count: int, start: Position, limits: Limits, *, is_plain: Callable[[bytes], bool]
) -> Position | None:
    """The position behind so many lines; None when they are not plain, not there or too large together."""
    source.seek(start.offset)
    passed, left = bytearray(), count
    while left:
        block = source.read(limits.block_bytes)
        if not block or len(passed) > limits.batch_bytes_max:
            return None
        if (lines := block.count(b"\n")) > left:
            block, lines = _first_lines(block, left), left
        passed += block
        left -= lines
    lines_passed = bytes(passed[: passed.rindex(b"\n") + 1])
    if _has_long_line(lines_passed, limits.row_bytes_max) or not is_plain(lines_passed):
        return None
    return Position(start.offset + len(lines_passed), start.row + count)


def _has_long_line(lines: bytes, bytes_max: int) -> bool:
    return len(lines) > bytes_max and max(map(len, lines.split(b"\n"))) > bytes_max


def _first_lines(block: bytes, count: int) -> bytes:
    stream = io.BytesIO(block)
    deque(islice(stream, count), maxlen=0)
    return block[: stream.tell()]
