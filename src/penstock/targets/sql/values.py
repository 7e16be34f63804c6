"""Values as a database sees them.

Texts for columns of other types, as a CSV file has them, are read the way the database itself would read them. Values
that a driver does not know become ones that it does. A *fold* makes key values equal that differ here and are equal to
the database: only then their records stay in order.
"""

from __future__ import annotations

import json
import struct
import unicodedata
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Decimal, InvalidOperation
from enum import Enum
from math import isfinite, isinf, isnan
from typing import Any, TypeAlias, TypeVar
from uuid import UUID

__all__ = [
    "UNKNOWN_TO_DRIVERS",
    "Converters",
    "Step",
    "approximate",
    "as_uuid",
    "boolean",
    "caseless",
    "decimal",
    "finite",
    "if_possible",
    "lower",
    "not_nan",
    "rounded",
    "single",
    "unpadded",
    "whole",
]

Step: TypeAlias = Callable[[Any], Any]
"""Makes one value of another; reading a text that means nothing raises ValueError."""

Number = TypeVar("Number", float, Decimal)

TRUE = frozenset(word[:n] for word in ("true", "yes") for n in range(1, len(word) + 1)) | {"on", "1"}
FALSE = frozenset(word[:n] for word in ("false", "no") for n in range(1, len(word) + 1)) | {"of", "off", "0"}


def _digits(text: str) -> str:
    """A number as databases write it; Python would read `1_000` and digits of other scripts too."""
    if "_" in text or not text.isascii():
        raise ValueError(text)
    return text


def whole(text: str) -> int:
    """A whole number."""
    return int(_digits(text))


def approximate(text: str) -> float:
    """A number with as many digits as a float has; one that is too large for it is none."""
    value = float(_digits(text))
    if isinf(value) and "inf" not in text.lower():
        raise ValueError(text)
    return value


def decimal(text: str) -> Decimal:
    """An exact number."""
    try:
        return Decimal(_digits(text).strip())
    except InvalidOperation as error:
        raise ValueError(text) from error


def boolean(text: str) -> bool:
    """True and false, as PostgreSQL lets them be abbreviated."""
    word = text.strip().lower()
    if word not in TRUE | FALSE:
        raise ValueError(text)
    return word in TRUE


def if_possible(read: Step) -> Step:
    """The same, but what cannot be read stays a text, for the database to judge."""

    def from_text(text: str) -> Any:
        try:
            return read(text)
        except ValueError:
            return text

    return from_text


def lower(value: Any) -> Any:
    """Texts whatever their case."""
    return value.lower() if isinstance(value, str) else value


def caseless(value: Any) -> Any:
    """Texts whatever their case and accents."""
    if not isinstance(value, str) or value.isascii():
        return lower(value)
    apart = unicodedata.normalize("NFKD", value.casefold())
    return "".join(letter for letter in apart if not unicodedata.combining(letter))


def unpadded(value: Any) -> Any:
    """Texts without the blanks at their end."""
    return value.rstrip(" ") if isinstance(value, str) else value


def as_uuid(value: Any) -> Any:
    """UUIDs however they are spelled."""
    return if_possible(UUID)(value) if isinstance(value, str) else value


def single(value: Any) -> Any:
    """Numbers as four bytes hold them."""
    try:
        return struct.unpack("f", struct.pack("f", value))[0]
    except (struct.error, OverflowError, TypeError):
        return value


def rounded(scale: int) -> Step:
    """Numbers with so many decimals."""
    step = Decimal(1).scaleb(-scale)

    def fold(value: Any) -> Any:
        try:
            return Decimal(str(value)).quantize(step, ROUND_HALF_UP) if not isinstance(value, int) else value
        except (InvalidOperation, ValueError):
            return value

    return fold


@dataclass(frozen=True)
class Converters:
    """What a driver takes as it is, and what must be made of other things; all else is refused."""

    known: tuple[type, ...]
    made: Mapping[type, Step]

    def of(self, kind: type) -> Step | None:
        """What to do with values of a class; None when nothing needs doing."""
        found = next((self.made[base] for base in kind.__mro__ if base in self.made), None)
        return found or (None if issubclass(kind, self.known) else _refuse)


def _refuse(value: Any) -> Any:
    raise TypeError(f"a value of type {type(value).__name__} cannot be stored")


def finite(value: Number) -> Number:
    """A number that is neither NaN nor infinite, which MariaDB would take for names."""
    if not isfinite(value):
        raise ValueError(f"{value} cannot be stored")
    return value


def not_nan(value: float) -> float:
    """A number; SQLite would store NULL for NaN."""
    return finite(value) if isnan(value) else value


def _to_json(value: Any) -> str:
    """Dicts and lists for a JSON column."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


UNKNOWN_TO_DRIVERS: Mapping[type, Step] = {
    UUID: str,
    dict: _to_json,
    list: _to_json,
    Enum: lambda value: value.value,
}
