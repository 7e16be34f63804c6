"""Lists, a part at a time: by cursor and limit, or by page and pageSize."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Annotated, TypeVar

from fastapi import Depends, Query, Response

from penstock.api.answers import JsonResponse
from penstock.listing import Page
from penstock.resources import Document, listing

__all__ = ["Paging", "Part", "answer_part"]

T = TypeVar("T")

PAGE_MAX = 1_000_000
SIZE_MAX = 2**31
AT_ONCE = 1000
COUNTED_MAX = 10_000  # entries that are counted by reading them; beyond, the number is not told

ReadPart = Callable[[str | None, int], Awaitable[Page[T]]]
CountAll = Callable[[], Awaitable[int | None]]


@dataclass(frozen=True, slots=True)
class Part:
    """Which part of a list is wanted. With a cursor or a limit, that is what counts; otherwise the page."""

    page: int
    page_size: int | None
    cursor: str | None
    limit: int | None

    @property
    def by_cursor(self) -> bool:
        """Whether the caller goes from part to part."""
        return self.cursor is not None or self.limit is not None


async def _part(
    page: Annotated[int, Query(ge=1, le=PAGE_MAX, description="The page, from 1; see pageSize.")] = 1,
    page_size: Annotated[
        int | None, Query(alias="pageSize", ge=1, le=SIZE_MAX, description="Entries to a page; 1000 at most.")
    ] = None,
    cursor: Annotated[
        str | None, Query(max_length=1000, description="The nextCursor of the part before, instead of a page.")
    ] = None,
    limit: Annotated[int | None, Query(ge=1, le=SIZE_MAX, description="Entries to a part; 1000 at most.")] = None,
) -> Part:
    # Not a plain function: FastAPI would call it on another thread.
    return Part(page, page_size, cursor, limit)


Paging = Annotated[Part, Depends(_part)]


async def answer_part(
    part: Part,
    read: ReadPart[T],
    shape: Callable[[T], Document],
    *,
    size: int,
    count: CountAll | None = None,
    cursor_at: Callable[[int], str | None] | None = None,
) -> Response:
    """Part of a list. `read` may give less than it is asked for; `cursor_at` finds an offset without reading up to it.

    `count` says how many entries there are where `read` does not; without it they are counted by reading them, up to a
    limit.
    """
    if part.by_cursor:
        found = await _filled(read, part.cursor, min(part.limit or size, AT_ONCE))
        document = listing(found.items, shape, found.next_cursor)
        return JsonResponse(document if found.total is None else document | {"totalCount": found.total})
    size = min(part.page_size or size, AT_ONCE)
    offset = (part.page - 1) * size
    start = cursor_at(offset) if cursor_at is not None else await _skip(read, offset)
    is_behind = offset > 0 and start is None
    found = Page(()) if is_behind else await _filled(read, start, size)
    total = found.total if found.total is not None else await (_counted(read) if count is None else count())
    document = listing(found.items, shape, found.next_cursor)
    document |= {"totalCount": total, "page": part.page, "pageSize": size}
    return JsonResponse(document | {"hasNextPage": found.next_cursor is not None})


async def _filled(read: ReadPart[T], cursor: str | None, limit: int) -> Page[T]:
    items: list[T] = []
    while True:
        page = await read(cursor, limit - len(items))
        items += page.items
        cursor = page.next_cursor
        if cursor is None or len(items) >= limit:
            return Page(items, cursor, page.total)


async def _skip(read: ReadPart[T], offset: int) -> str | None:
    """The cursor behind so many entries; None when there are not more."""
    cursor = None
    while offset > 0:
        page = await read(cursor, min(offset, AT_ONCE))
        offset -= len(page.items)
        cursor = page.next_cursor
        if cursor is None:
            return None
    return cursor


async def _counted(read: ReadPart[T]) -> int | None:
    total, cursor = 0, None
    while total < COUNTED_MAX:
        page = await read(cursor, AT_ONCE)
        total += len(page.items)
        cursor = page.next_cursor
        if cursor is None:
            return total
    return None
