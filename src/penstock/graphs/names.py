"""Names of definitions, states, events and categories: matched ignoring case, kept as they were written."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable
from difflib import get_close_matches

__all__ = ["NAME_CHARS_MAX", "name_key", "similar"]

NAME_CHARS_MAX = 200
COMPARED_MAX = 2000


def name_key(name: str) -> str:
    """What two spellings of one name share."""
    return unicodedata.normalize("NFC", unicodedata.normalize("NFC", name.strip()).casefold())


def similar(name: str, known: Iterable[str]) -> str:
    """ "; did you mean 'Approved'?", or nothing when no known name comes near."""
    by_key = {name_key(each): each for _, each in zip(range(COMPARED_MAX), known, strict=False)}
    near = get_close_matches(name_key(name), by_key, 1, cutoff=0.6)
    return f"; did you mean {by_key[near[0]]!r}?" if near else ""
