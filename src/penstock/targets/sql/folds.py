"""Key values that differ here and are equal to the database, made equal: only then their records stay in order."""

from __future__ import annotations

import struct
import unicodedata
from collections.abc import Callable
from decimal import ROUND_HALF_UP, Decimal, InvalidOperation
from typing import Any
from uuid import UUID

__all__ = ["Fold", "as_uuid", "caseless", "lower", "rounded", "single", "then", "unpadded"]

Fold = Callable[[Any], Any]


def then(*folds: Fold) -> Fold:
    """One fold after the other."""

    def fold(value: Any) -> Any:
        for one in folds:
            value = one(value)
        return value

    return fold


def lower(value: Any) -> Any:
    """Texts whatever their case."""
    return value.lower() if isinstance(value, str) else value


def caseless(value: Any) -> Any:
    """Texts whatever their case and accents."""
    if not isinstance(value, str):
        return value
    apart = unicodedata.normalize("NFKD", value.casefold())
    return "".join(letter for letter in apart if not unicodedata.combining(letter))


def unpadded(value: Any) -> Any:
    """Texts without the blanks at their end."""
    return value.rstrip(" ") if isinstance(value, str) else value


def as_uuid(value: Any) -> Any:
    """UUIDs however they are spelled."""
    if not isinstance(value, str):
        return value
    try:
        return UUID(value)
    except ValueError:
        return value


def single(value: Any) -> Any:
    """Numbers as four bytes hold them."""
    try:
        return struct.unpack("f", struct.pack("f", value))[0]
    except (struct.error, OverflowError, TypeError):
        return value


def rounded(scale: int) -> Fold:
    """Numbers with so many decimals."""
    step = Decimal(1).scaleb(-scale)

    def fold(value: Any) -> Any:
        try:
            return Decimal(str(value)).quantize(step, ROUND_HALF_UP) if not isinstance(value, int) else value
        except (InvalidOperation, ValueError):
            return value

    return fold
