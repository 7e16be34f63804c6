"""Ids by position, packed: a million GUIDs take 16 MB, not 85."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from penstock.targets.model import RecordId

__all__ = ["EMPTY_GUID", "PackedIds"]

EMPTY_GUID = "00000000-0000-0000-0000-000000000000"
DASHES = (8, 13, 18, 23)


def _pack_text(ids: Sequence[Any]) -> bytes | None:
    """GUIDs as text, spelled in lower case with dashes, so that unpacking gives the same text again."""
    if set(map(len, ids)) != {36}:
        return None
    joined = "".join(ids)
    dashes = "-" * len(ids)
    if any(joined[at::36] != dashes for at in DASHES) or joined.count("-") != 4 * len(ids) or joined != joined.lower():
        return None
    try:
        return bytes.fromhex(joined.replace("-", ""))
    except ValueError:
        return None


def _pack_numbers(ids: Sequence[Any]) -> bytes | None:
    try:
        return array("q", ids).tobytes()
    except OverflowError:
        return None


def _pack_uuids(ids: Sequence[Any]) -> bytes | None:
    return b"".join([one.bytes for one in ids])


@dataclass(slots=True)
class _Column:
    """Values of one kind, each `width` bytes long; zeros stand for absent, so the value packed as zeros is not held."""

    width: int
    zero: Any
    pack: Callable[[Sequence[Any]], bytes | None]
    unpack: Callable[[bytes], RecordId]
    held: bytearray = field(default_factory=bytearray)

    def put(self, start: int, ids: Sequence[RecordId]) -> bool:
        """Hold ids of consecutive positions, or say that they cannot be packed."""
        packed = self.pack(ids)
        if packed is None or self.zero in ids:
            return False
        begin, end = start * self.width, start * self.width + len(packed)
        if len(self.held) < begin:
            self.held.extend(bytes(begin - len(self.held)))
        self.held[begin:end] = packed
        return True

    def get(self, position: int) -> RecordId:
        packed = bytes(self.held[position * self.width : (position + 1) * self.width])
        return self.unpack(packed) if any(packed) else None


class PackedIds:
    """The ids of records by their position in the input; GUIDs and integers are packed, others kept as they are."""

    def __init__(self) -> None:
        self._columns = {
            str: _Column(16, EMPTY_GUID, _pack_text, lambda packed: str(UUID(bytes=packed))),
            int: _Column(8, 0, _pack_numbers, lambda packed: array("q", packed)[0]),
            UUID: _Column(16, UUID(int=0), _pack_uuids, lambda packed: UUID(bytes=packed)),
        }
        self._others: dict[int, RecordId] = {}

    def put(self, positions: Sequence[int], ids: Sequence[RecordId]) -> None:
        """Remember an id for each position; None leaves a position without."""
        if isinstance(positions, range) and self._put_packed(positions.start, ids):
            return
        for position, identifier in zip(positions, ids, strict=True):
            if identifier is not None and not self._put_packed(position, (identifier,)):
                self._others[position] = identifier

    def get(self, position: int) -> RecordId:
        """The id at a position, or None."""
        if position in self._others:
            return self._others[position]
        found = (column.get(position) for column in self._columns.values())
        return next((identifier for identifier in found if identifier is not None), None)

    def _put_packed(self, start: int, ids: Sequence[RecordId]) -> bool:
        """Hold ids of consecutive positions if they are all of one kind that can be packed."""
        kinds = {UUID if issubclass(kind, UUID) else kind for kind in set(map(type, ids))}
        column = self._columns.get(kinds.pop()) if len(kinds) == 1 else None
        return column is not None and column.put(start, ids)
