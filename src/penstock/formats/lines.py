"""The physical lines of a text file at C speed, with the byte offset of the next line known at any time.

Nothing in here runs once per line: a block is decoded whole and split by `io.StringIO`, which ends lines at LF, CRLF
and CR exactly as `csv` wants them.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from itertools import chain
from typing import BinaryIO

from penstock.formats.encoding import Undecodable
from penstock.formats.model import Limits

__all__ = ["Lines"]


class Lines:
    """The lines from `offset` on. Iteration also ends, with `is_cut` set, where a batch holds as much as it may.

    Without `is_universal` a lone CR ends no line, which is a good deal faster.
    """

    def __init__(self, source: BinaryIO, offset: int, limits: Limits, *, is_universal: bool = True) -> None:
        self._source, self._limits = source, limits
        self.nul_until = 0  # a NUL stands somewhere before this offset
        self.go_to(offset, is_universal=is_universal)

    def go_to(self, offset: int, *, is_universal: bool) -> None:
        """Let the next iteration begin at another place."""
        self.is_cut, self.is_universal = False, is_universal
        self._block_start, self._text, self._stream = offset, "", io.StringIO()
        self._batch_start = offset

    def __iter__(self) -> Iterator[str]:
        return chain.from_iterable(self._blocks())

    @property
    def offset(self) -> int:
        """Where in the file the next line begins."""
        consumed = self._stream.tell()
        return self._block_start + (consumed if self._text.isascii() else len(self._text[:consumed].encode()))

    def begin_batch(self) -> None:
        """Allow another `batch_bytes_max` from here."""
        self._batch_start = self.offset

    def _blocks(self) -> Iterator[io.StringIO]:
        start, pending, is_last = self._block_start, b"", False
        while not is_last:
            if start + len(pending) - self._batch_start >= self._limits.batch_bytes_max:
                self.is_cut = True
                return
            # Others read the same file between two blocks, so the place is never taken for granted.
            self._source.seek(start + len(pending))
            data = self._source.read(self._limits.block_bytes)
            is_last = not data
            data = pending + data
            end = len(data) if is_last else last_line_end(data)
            pending = data[end:]
            if end:
                try:
                    yield self._enter(start, data[:end])
                except Undecodable as error:  # the lines before it are good
                    if good := data.rfind(b"\n", 0, error.offset - start) + 1:
                        yield self._enter(start, data[:good])
                    raise
                start += end

    def _enter(self, start: int, block: bytes) -> io.StringIO:
        try:
            text = block.decode()
        except UnicodeDecodeError as error:
            raise Undecodable(start + error.start, block[error.start]) from error
        if b"\0" in block:
            self.nul_until = start + len(block)
        self._block_start, self._text = start, text
        self._stream = io.StringIO(text, newline="" if self.is_universal else "\n")
        return self._stream


def last_line_end(data: bytes) -> int:
    """Where the last line that is certainly complete ends; a CR at the very end may be half of a CRLF."""
    return max(data.rfind(b"\n"), data.rfind(b"\r", 0, -1)) + 1
