"""Which records a remote has, asked by a list of ids and read page by page."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Sequence
from typing import Any
from urllib.parse import quote, urljoin

from penstock.targets.http.answers import at_path
from penstock.targets.http.endpoint import PagedLookup
from penstock.targets.http.error_mapping import Reply
from penstock.targets.model import ErrorKind, TargetError

__all__ = ["ids_there"]

PAGES_MAX = 1000
ADDRESS = re.compile(r"https?:|/|\?")
NEXT_LINK = re.compile(r'<([^>]+)>\s*;[^,]*\brel="?next\b')


async def ids_there(
    lookup: PagedLookup, path: str, ids: Sequence[Any], get: Callable[[str], Awaitable[Reply]]
) -> set[str]:
    """Those of the ids that the remote has; `path` is the look-up's with the table filled in."""
    if None in ids:
        raise TargetError("a record without an id cannot be looked up", kind=ErrorKind.DATA, code="MissingId")
    found: set[str] = set()
    for start in range(0, len(ids), lookup.ids_max):
        part = ",".join(quote(str(one), safe="") for one in ids[start : start + lookup.ids_max])
        found |= await _all_pages(lookup, path.replace("{ids}", part), get)
    return found


async def _all_pages(lookup: PagedLookup, first: str, get: Callable[[str], Awaitable[Reply]]) -> set[str]:
    found: set[str] = set()
    path: str | None = first
    for _ in range(PAGES_MAX):
        assert path is not None
        reply = await get(path)
        items = at_path(reply.body, lookup.items)
        if not isinstance(items, list):
            raise TargetError("the question which records exist was answered without a list", kind=ErrorKind.CONNECTION)
        told = [at_path(item, lookup.id) for item in items]
        if None in told:
            raise TargetError(f"the question which records exist was answered with records without {lookup.id!r}")
        found |= set(map(str, told))
        path = _next_page(lookup, first, path, reply)
        if path is None:
            return found
    raise TargetError(f"the question which records exist has more than {PAGES_MAX} pages", kind=ErrorKind.OTHER)


def _next_page(lookup: PagedLookup, first: str, path: str, reply: Reply) -> str | None:
    if lookup.next is None:
        link = NEXT_LINK.search(reply.headers.get("link", ""))
        return urljoin(path, link[1]) if link else None
    told = at_path(reply.body, lookup.next)
    if not told:
        return None
    if ADDRESS.match(str(told)):
        return urljoin(path, str(told))
    mark = "&" if "?" in first else "?"
    return f"{first}{mark}{lookup.cursor_parameter}={quote(str(told), safe='')}"
