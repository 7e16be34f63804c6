"""A file far away as a seekable stream: read by ranges, each of which is asked for again when it fails."""

from __future__ import annotations

import io
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, BinaryIO, cast

from penstock.errors import FileUnreadable

if TYPE_CHECKING:
    from _typeshed import WriteableBuffer

__all__ = ["open_ranges"]

FIRST_BYTES = 256 * 1024
MOST_BYTES = 4 * 1024 * 1024
BUFFER_BYTES = 64 * 1024
TRIES_MAX = 4
PAUSE_S = 0.2

Fetch = Callable[[int, int], bytes]


def open_ranges(fetch: Fetch, size_bytes: int, *, pause: Callable[[float], None] = time.sleep) -> BinaryIO:
    """A stream over bytes that `fetch(start, end)` gives. What it raises as `FileUnreadable` is tried again."""
    return cast("BinaryIO", _Stream(_Ranges(fetch, size_bytes, pause)))


class _Stream(io.BufferedReader):
    """Closed at once, also while another thread waits for a range: a usual one would wait for that thread."""

    def __init__(self, ranges: _Ranges) -> None:
        super().__init__(ranges, BUFFER_BYTES)
        self._ranges = ranges

    def close(self) -> None:
        self._ranges.is_over = True


class _Ranges(io.RawIOBase):
    """Keeps the block it read last; blocks grow while they are read one after the other."""

    def __init__(self, fetch: Fetch, size_bytes: int, pause: Callable[[float], None]) -> None:
        self._fetch, self._size, self._pause = fetch, size_bytes, pause
        self._at = self._start = 0
        self._block = b""
        self._ahead = FIRST_BYTES
        self.is_over = False

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        self._at = max(0, base + offset)
        return self._at

    def readinto(self, buffer: WriteableBuffer, /) -> int:
        target = memoryview(buffer).cast("B")
        if self._at >= self._size:
            return 0
        if not self._start <= self._at < self._start + len(self._block):
            self._load()
        some = self._block[self._at - self._start :][: len(target)]
        target[: len(some)] = some
        self._at += len(some)
        return len(some)

    def _load(self) -> None:
        follows = bool(self._block) and self._at == self._start + len(self._block)
        self._ahead = min(2 * self._ahead, MOST_BYTES) if follows else FIRST_BYTES
        start, end = self._at, min(self._at + self._ahead, self._size)
        tries = 0
        while True:
            tries += 1
            if self.is_over:
                raise FileUnreadable("the stream is closed")
            try:
                self._block, self._start = self._fetch(start, end), start
                break
            except FileUnreadable:
                if tries == TRIES_MAX or self.is_over:
                    raise
            self._pause(PAUSE_S * 2**tries)
        if not self._block:
            raise FileUnreadable(f"the storage gave no bytes from {start} to {end}")
