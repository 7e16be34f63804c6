"""The keys of rows as they were read, and their *marks*, by which the database finds the chunks that may hold a key."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from struct import pack
from typing import Any
from zlib import crc32

from penstock.pipeline.fields import ModelField

__all__ = ["GROUPS", "key_names", "key_of", "key_sums", "mark", "marks"]

# A mark is two bytes of the checksum of a row's key, in the group given by four other bits of it, so that only a
# sixteenth of the marks is searched. In a million rows a lookup then finds two or three other chunks by chance.
GROUPS = 16


def key_names(key: str | None, fields: Iterable[ModelField] = ()) -> tuple[str, ...]:
    """The names a key may have in a record: its own, then those the model reads it from."""
    if key is None:
        return ()
    return (key, *next((field.inputs for field in fields if field.name == key), ()))


def key_of(raw: Any, names: Sequence[str], columns: Sequence[str] | None) -> str | None:
    """The text of the key of a row as it was read, where it can be read."""
    record = dict(zip(columns or (), raw, strict=False)) if isinstance(raw, list) else raw
    if isinstance(record, dict):
        for name in names:
            if name in record:
                found = record[name]
                return str(found) if isinstance(found, str | int | float) and found != "" else None
    return None


def mark(key: str) -> tuple[int, bytes]:
    """The group in which rows with this key have their marks, and the mark; rows with other keys may have it too."""
    total = crc32(key.encode(errors="replace"))
    return total >> 28, pack("<H", total & 0xFFFF)


def key_sums(rows: Sequence[Any], names: Sequence[str], columns: Sequence[str] | None) -> list[int]:
    """The checksums of the keys of rows, 0 for a row without; none at all where rows have no key."""
    if columns is None:
        return [crc32((key_of(raw, names, None) or "").encode()) for raw in rows] if names else []
    place = next((columns.index(name) for name in names if name in columns), None)
    if place is None:
        return []
    return [*map(crc32, _encoded([raw[place] if place < len(raw) else "" for raw in rows]))]


def _encoded(texts: list[str]) -> list[bytes]:
    together = "\n".join(texts).encode().split(b"\n")  # one call is ten times as fast as one for each
    return together if len(together) == len(texts) else [text.encode() for text in texts]


def marks(sums: Sequence[int]) -> bytes | None:
    """The marks of rows: `GROUPS` groups of the same length; None where rows have no key."""
    if not sums:
        return None
    groups: list[list[int]] = [[] for _ in range(GROUPS)]
    for total in sums:
        groups[total >> 28].append(total & 0xFFFF)
    room = max(map(len, groups))
    return b"".join(pack(f"<{room}H", *group, *(0,) * (room - len(group))) for group in groups)
