"""Texts for columns of other types, as a CSV file has them: read the way the database itself would read them."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal, InvalidOperation
from typing import Any

__all__ = ["FromText", "boolean", "decimal", "if_possible", "number", "whole"]

FromText = Callable[[str], Any]
"""Reads a text, or raises ValueError when it means nothing."""

TRUE = frozenset(word[:n] for word in ("true", "yes") for n in range(1, len(word) + 1)) | {"on", "1"}
FALSE = frozenset(word[:n] for word in ("false", "no") for n in range(1, len(word) + 1)) | {"of", "off", "0"}


def whole(text: str) -> int:
    """A whole number."""
    return int(text)


def number(text: str) -> float:
    """A number of limited precision."""
    return float(text)


def decimal(text: str) -> Decimal:
    """An exact number."""
    try:
        return Decimal(text.strip())
    except InvalidOperation as error:
        raise ValueError(text) from error


def boolean(text: str) -> bool:
    """True and false, as PostgreSQL lets them be abbreviated."""
    word = text.strip().lower()
    if word not in TRUE | FALSE:
        raise ValueError(text)
    return word in TRUE


def if_possible(read: FromText) -> FromText:
    """The same, but what cannot be read stays a text, for the database to judge."""

    def from_text(text: str) -> Any:
        try:
            return read(text)
        except ValueError:
            return text

    return from_text
