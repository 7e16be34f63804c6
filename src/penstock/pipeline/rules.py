"""What each kind of option may be, and how text from a command line becomes it.

A rule takes a value and returns the one to keep, or raises ValueError saying what would be right ("must be …").
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from penstock.errors import Fault
from penstock.pipeline.backoff import seconds

__all__ = [
    "Rule",
    "checked",
    "claim",
    "duration",
    "exceptions",
    "one_of",
    "optional",
    "rate",
    "share",
    "text",
    "texts",
    "whole",
]

Rule = Callable[[Any], Any]

SHOWN_CHARS = 60
UNITS = {
    "s": 1,
    "sec": 1,
    "second": 1,
    "m": 60,
    "min": 60,
    "minute": 60,
    "h": 3600,
    "hour": 3600,
    "d": 86400,
    "day": 86400,
}


def whole(least: int) -> Rule:
    """A whole number of at least `least`."""
    wrong = ValueError(f"must be a whole number, {least} or more")

    def rule(value: Any) -> int:
        if isinstance(value, str) and value.strip().removeprefix("-").isdecimal():
            value = int(value)
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            raise wrong
        return value

    return rule


def duration(value: Any) -> float:
    """Seconds or a timedelta, more than nothing."""
    found = seconds(value)
    if found <= 0:
        raise ValueError("must be longer than zero")
    return found


def optional(inner: Rule) -> Rule:
    """None, also spelled "none", or what the inner rule takes."""

    def rule(value: Any) -> Any:
        is_none = value is None or (isinstance(value, str) and value.strip().lower() in ("none", "null"))
        return None if is_none else inner(value)

    return rule


def one_of(*choices: str) -> Rule:
    """One of these words."""

    def rule(value: Any) -> str:
        if value not in choices:
            raise ValueError(f"must be one of {', '.join(map(repr, choices))}")
        return str(value)

    return rule


def claim(value: Any) -> bool:
    """True or False, also spelled as text."""
    spelled = {"true": True, "yes": True, "on": True, "1": True, "false": False, "no": False, "off": False, "0": False}
    found = spelled.get(value.strip().lower()) if isinstance(value, str) else value
    if not isinstance(found, bool):
        raise ValueError("must be true or false")
    return found


def share(value: Any) -> float:
    """A share from 0 to 1."""
    try:
        found = float(value)
    except (TypeError, ValueError):
        found = math.nan
    if isinstance(value, bool) or not 0 <= found <= 1:
        raise ValueError("must be a number from 0 to 1")
    return found


def rate(value: Any) -> float:
    """Calls per second: a number, or text such as "100/s", "600/min", "5/h"."""
    amount, unit = value, "s"
    if isinstance(value, str):
        amount, _, unit = value.partition("/")
    try:
        found = float(amount) / UNITS[(unit or "s").strip().lower()]
    except (KeyError, TypeError, ValueError):
        found = math.nan
    if isinstance(value, bool) or not 0 < found < math.inf:
        raise ValueError('must be calls per second, or text such as "100/s", "600/min", "5/h"')
    return found


def exceptions(value: Any) -> tuple[type[Exception], ...]:
    """Exception classes; they can be named in code only."""
    found = value if isinstance(value, tuple | list) else (value,)
    if not found or not all(isinstance(kind, type) and issubclass(kind, Exception) for kind in found):
        raise ValueError("must be exception classes derived from Exception, and can be set in code only")
    return tuple(found)


def text(value: Any) -> str:
    """Text."""
    if not isinstance(value, str):
        raise ValueError("must be text")
    return value


def texts(value: Any) -> tuple[str, ...]:
    """Several words: a list, or text with commas between them."""
    found = [part.strip() for part in value.split(",")] if isinstance(value, str) else value
    words = tuple(found) if isinstance(found, Iterable) else (None,)
    if not all(isinstance(word, str) and word for word in words):
        raise ValueError("must be a list of words")
    return words


def checked(rules: Mapping[str, Rule], given: Mapping[str, Any], where: str = "") -> tuple[dict[str, Any], list[Fault]]:
    """The values to keep, and a fault for every name that is unknown and every value that a rule refuses."""
    kept: dict[str, Any] = {}
    faults: list[Fault] = []
    for name, value in given.items():
        field = f"{where}.{name}" if where else str(name)
        if name not in rules:
            faults.append(Fault(f"there is no such option; known: {', '.join(sorted(rules))}", field))
            continue
        try:
            kept[name] = rules[name](value)
        except ValueError as error:
            faults.append(Fault(f"{error}; found {shown(value)}", field))
    return kept, faults


def shown(value: object) -> str:
    """A value as it may stand in a message."""
    found = repr(value)
    return found if len(found) <= SHOWN_CHARS else found[:SHOWN_CHARS] + "…"
