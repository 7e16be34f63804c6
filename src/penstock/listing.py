"""Lists that are read a part at a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

__all__ = ["Page"]

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    """Part of a list; pass `next_cursor` to get the next part."""

    items: Sequence[T]
    next_cursor: str | None = None
    total: int | None = None  # entries of the whole list, where that is known without counting them
