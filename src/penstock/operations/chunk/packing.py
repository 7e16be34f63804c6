"""A chunk's rows: how many it has, and how they are stored, in blocks that are decoded when they are needed. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec

from penstock.operations.chunk.ledger import compress, decompress

__all__ = [
    "SUSPECT_ROWS_MAX",
    "Packer",
    "StoredRows",
    "chunk_size",
    "largest_chunk",
    "pack_rows",
    "piece_size",
    "unpack_rows",
]

# A row that was lost with its worker runs in a small group; lost again, alone.
SUSPECT_ROWS_MAX = 32
# Few rows are cut into chunks that several workers can share; of many, larger ones take fewer transactions.
SHARED_CHUNKS = 16
CHUNK_GROWTH = 4
PIECE_ROWS_MAX = 500


def chunk_size(rows_before: int, least: int, *, may_grow: bool) -> int:
    """How many rows the next chunk of a file has: twice, then four times the least, once enough chunks came before."""
    size = least
    while may_grow and size < largest_chunk(least) and rows_before >= 2 * size * SHARED_CHUNKS:
        size *= 2
    return size


def largest_chunk(least: int) -> int:
    """No chunk has more rows than that."""
    return CHUNK_GROWTH * least


def piece_size(chunk: int) -> int:
    """How many rows of a chunk are read and checked at a time: some hundreds, so that they stay in a core's cache."""
    return chunk // -(-chunk // PIECE_ROWS_MAX)


BLOCK = 100  # rows that are stored and decoded together


class Packer:
    """A chunk's rows, as the reader gives them, on their way into storage."""

    __slots__ = ("_blocks", "_rest")

    def __init__(self) -> None:
        self._blocks: list[bytes] = []
        self._rest: list[Any] = []

    def add(self, rows: list[Any]) -> None:
        rows = self._rest + rows if self._rest else rows
        full = len(rows) - len(rows) % BLOCK
        self._blocks += [_encode(rows[k : k + BLOCK]) for k in range(0, full, BLOCK)]
        self._rest = rows[full:]

    def packed(self) -> bytes:
        """All of them, for storage."""
        blocks = [*self._blocks, _encode(self._rest)] if self._rest else self._blocks
        return compress(b"[" + b",".join(blocks) + b"]")


def pack_rows(rows: list[Any]) -> bytes:
    """A chunk's rows for storage."""
    packer = Packer()
    packer.add(rows)
    return packer.packed()


def unpack_rows(data: bytes) -> StoredRows:
    """Undo `pack_rows`."""
    return StoredRows(_BLOCKS.decode(decompress(data)), BLOCK)


class StoredRows:
    """The rows of a chunk in blocks, of which the one in use is decoded: few rows stay in a core's cache."""

    __slots__ = ("_at", "_block", "_blocks", "_size")

    def __init__(self, blocks: Sequence[msgspec.Raw], size: int) -> None:
        self._blocks, self._size = blocks, size
        self._at, self._block = -1, list[Any]()

    @classmethod
    def of(cls, rows: list[Any]) -> StoredRows:
        """Rows that were never packed."""
        made = cls((), len(rows) or 1)
        made._at, made._block = 0, rows
        return made

    def pick(self, rows: Iterable[int]) -> list[Any]:
        """Some of the rows; fastest in their order."""
        found, size, at, block = [], self._size, self._at, self._block
        for i in rows:
            if i // size != at:
                at, block = i // size, self._open(i // size)
            found.append(block[i % size])
        return found

    def near(self, text: bytes) -> Iterator[tuple[int, Any]]:
        """The rows, with their places, of the blocks that contain this text."""
        for at, block in enumerate(self._blocks):
            if text in bytes(block):
                yield from enumerate(self._open(at), at * self._size)

    def _open(self, at: int) -> list[Any]:
        if at != self._at:
            self._at, self._block = at, msgspec.json.decode(self._blocks[at])
        return self._block

    def __getitem__(self, i: int) -> Any:
        return self._open(i // self._size)[i % self._size]

    def __iter__(self) -> Iterator[Any]:
        return iter(self.pick(range(len(self))))

    def __len__(self) -> int:
        if not self._blocks:
            return len(self._block)
        return (len(self._blocks) - 1) * self._size + len(self._open(len(self._blocks) - 1))


_BLOCKS = msgspec.json.Decoder(list[msgspec.Raw])
_encode = msgspec.json.Encoder().encode
