"""How large chunks are, and the pieces in which they are read. Pure."""

from __future__ import annotations

__all__ = ["SUSPECT_ROWS_MAX", "chunk_size", "largest_chunk", "piece_size"]

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
