"""Values as SQLite holds them, and which key values are one to a column: that of its affinity and of its index.

A column keeps what it is given in the form that its declared type asks for: to an INTEGER column the text `007` is 7.
"""

from __future__ import annotations

import re
from datetime import UTC, date, datetime, time
from decimal import Decimal
from string import ascii_lowercase, ascii_uppercase
from types import NoneType
from typing import Any

from penstock.targets.sql.table import Classes
from penstock.targets.sql.values import UNKNOWN_TO_DRIVERS, Converters, Step, not_nan, unpadded

__all__ = ["CONVERTERS", "key_fold"]

CONVERTERS = Converters(
    known=(NoneType, int, float, str, bytes, bytearray, memoryview),
    made={
        **UNKNOWN_TO_DRIVERS,
        datetime: lambda value: (value.astimezone(UTC) if value.tzinfo else value).isoformat(sep=" "),
        date: date.isoformat,
        time: time.isoformat,
        Decimal: str,
        float: not_nan,
    },
)
"""What is sent for a value."""
BLANK = r"[ \t\n\v\f\r]*"
NUMBER = re.compile(rf"{BLANK}([+-]?(?:\d+\.?\d*|\.\d+)(?:e[+-]?\d+)?){BLANK}", re.ASCII | re.IGNORECASE)
WHOLE_MIN, WHOLE_MAX = -(2**63), 2**63 - 1
DIGITS_MAX = 19
ASCII_LOWER = str.maketrans(ascii_uppercase, ascii_lowercase)


def key_fold(declared: str, collation: str, *, is_strict: bool) -> tuple[Step, Classes]:
    """What makes those values of a key column equal that SQLite calls equal, and the classes that it leaves alone."""
    held, left_alone = AFFINITIES[_affinity(declared, is_strict=is_strict)]
    of_texts = COLLATIONS.get(collation)
    if of_texts is not None:
        left_alone = tuple(kind for kind in left_alone if kind is not str)

    def fold(value: Any) -> Any:
        value = held(_sent(value))
        return of_texts(value) if of_texts is not None and isinstance(value, str) else value

    return fold, left_alone


def _affinity(declared: str, *, is_strict: bool) -> str:
    """The form in which a column of this declared type keeps values; all numbers compare alike."""
    name = declared.upper()
    if not name or (is_strict and name == "ANY"):
        return "BLOB"
    return next((affinity for words, affinity in WORDS if any(word in name for word in words)), "NUMERIC")


def _sent(value: Any) -> Any:
    try:
        step = CONVERTERS.of(type(value))
        return step(value) if step else value
    except (TypeError, ValueError, OverflowError):
        return value  # the record will be refused


def _as_given(value: Any) -> Any:
    return value


def _number(value: Any) -> Any:
    """Texts that are numbers to SQLite as numbers."""
    found = NUMBER.fullmatch(value) if isinstance(value, str) else None
    if found is None:
        return value
    digits = found[1]
    if len(digits.strip("+-")) <= DIGITS_MAX and digits.strip("+-").isdigit() and WHOLE_MIN <= int(digits) <= WHOLE_MAX:
        return int(digits)
    return float(digits)


def _text(value: Any) -> Any:
    """Numbers as texts."""
    if isinstance(value, int):
        return str(int(value))
    if not isinstance(value, float):
        return value
    digits, exponent, power = f"{value:.15g}".partition("e")
    return digits + ("" if "." in digits else ".0") + exponent + power


# Tried in this order, as SQLite does; all else is NUMERIC, which REAL columns are looked up like.
WORDS = (
    (("INT",), "NUMERIC"),
    (("CHAR", "CLOB", "TEXT"), "TEXT"),
    (("BLOB",), "BLOB"),
)
AFFINITIES: dict[str, tuple[Step, Classes]] = {
    "NUMERIC": (_number, (int, float)),
    "TEXT": (_text, (str,)),
    "BLOB": (_as_given, (int, float, str, bytes)),
}
COLLATIONS: dict[str, Step] = {"NOCASE": lambda text: text.translate(ASCII_LOWER), "RTRIM": unpadded}
