"""How values are spelled in Dataverse addresses and filters."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any
from urllib.parse import quote
from uuid import UUID

__all__ = ["address", "comparable", "filters", "guid", "literal"]

FILTER_CHARS_MAX = 20_000  # an address may have 32 KB after percent-encoding
IDS_MAX = 300
CONDITIONS_MAX = 200
GUID_CHARS = 36
SAFE = "'-._~:"


def guid(value: Any) -> str:
    """A GUID as Dataverse spells it; ValueError when it is none."""
    text = str(value)
    parsed = UUID(text)
    return text.lower() if len(text) == GUID_CHARS else str(parsed)


def literal(value: Any) -> str:
    """A value as an OData literal: text quoted, with quotes doubled; numbers, GUIDs and instants bare."""
    match value:
        case bool():
            return str(value).lower()
        case int() | float() | Decimal() | UUID():
            return str(value)
        case datetime():
            return value.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        case date():
            return value.isoformat()
        case str():
            return "'" + value.replace("'", "''") + "'"
    raise ValueError(f"a {type(value).__name__} cannot be part of a key; text, numbers, GUIDs and dates can")


def address(entity_set: str, key: Mapping[str, Any] | str) -> str:
    """The address of one record, by its GUID or by the columns of an alternate key, percent-encoded."""
    if isinstance(key, str):
        return f"{entity_set}({key})"
    pairs = (f"{column}={quote(literal(value), safe=SAFE)}" for column, value in key.items())
    return f"{entity_set}({','.join(pairs)})"


def comparable(value: Any) -> str:
    """What two key values have in common when the platform takes them for the same: it ignores case and end blanks."""
    return (value if isinstance(value, str) else literal(value)).casefold().rstrip(" ")


def filters(columns: Sequence[str], keys: Iterable[Sequence[Any]], *, are_ids: bool) -> Iterator[str]:
    """Filters that together find the records of these keys, each short enough for an address.

    Ids go into one membership test; other keys into alternatives, whose quoting is beyond lost.
    """
    count_max = IDS_MAX if are_ids else max(1, CONDITIONS_MAX // len(columns))
    held: list[str] = []
    chars = 0
    for key in keys:
        equal = (f"{column} eq {literal(value)}" for column, value in zip(columns, key, strict=True))
        term = f"'{key[0]}'" if are_ids else f"({' and '.join(equal)})"
        length = len(quote(term, safe="")) + len("%20or%20")
        if held and (len(held) == count_max or chars + length > FILTER_CHARS_MAX):
            yield _joined(columns, held, are_ids)
            held, chars = [], 0
        held.append(term)
        chars += length
    if held:
        yield _joined(columns, held, are_ids)


def _joined(columns: Sequence[str], terms: Sequence[str], are_ids: bool) -> str:
    if are_ids:
        return f"Microsoft.Dynamics.CRM.In(PropertyName='{columns[0]}',PropertyValues=[{','.join(terms)}])"
    return " or ".join(terms)
