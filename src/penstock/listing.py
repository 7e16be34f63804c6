"""Lists that are read a part at a time."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from penstock.errors import InvalidInput

__all__ = ["Page", "named", "parse_number_cursor", "parse_numbers_cursor"]

T = TypeVar("T")

NUMBER_DIGITS_MAX = 18  # what every database's largest integer has room for


@dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    """Part of a list; pass `next_cursor` to get the next part."""

    items: Sequence[T]
    next_cursor: str | None = None
    total: int | None = None  # entries of the whole list, where that is known without counting them


def parse_number_cursor(cursor: str) -> int:
    """The number that a cursor is; `InvalidInput` when it is none."""
    (number,) = parse_numbers_cursor(cursor, 1)
    return number


def parse_numbers_cursor(cursor: str, count: int) -> list[int]:
    """The numbers that a cursor has between its dots; `InvalidInput` when it has not so many."""
    parts = cursor.split(".")
    if len(parts) != count or not all(_is_number(part) for part in parts):
        raise InvalidInput(f"{cursor!r:.60} is not a cursor of this list; pass the next cursor of an earlier page")
    return [int(part) for part in parts]


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= NUMBER_DIGITS_MAX


def named(names: str | Iterable[str], known: Iterable[str], what: str) -> list[str]:
    """Names that a list is filtered by, ignoring case, as they are written; `InvalidInput` for one that is unknown."""
    wanted = [names] if isinstance(names, str) else list(names)
    written = {name.casefold(): name for name in known}
    if unknown := [name for name in wanted if name.casefold() not in written]:
        raise InvalidInput(f"no such {what}: {', '.join(unknown)}; known: {', '.join(written.values())}")
    return [written[name.casefold()] for name in wanted]
