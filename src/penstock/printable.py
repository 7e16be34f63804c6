"""Text from files and users made safe for a terminal, and values made short for people. Nothing here is heavy."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime, timedelta
from typing import Any

__all__ = [
    "ID_CHARS",
    "compact",
    "counted",
    "cut",
    "duration",
    "moment",
    "per_second",
    "printable",
    "short_id",
    "short_moment",
]

# The time of creation in full: ids are told apart by it unless two were made in the same millisecond.
ID_CHARS = 13

_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")


def printable(text: str) -> str:
    """The text with control characters spelled out, so that a file cannot command the terminal that shows it."""
    return _CONTROLS.sub(lambda found: found[0].encode("unicode_escape").decode(), text)


def cut(text: str, chars: int) -> str:
    """The text on one line, with its end left out if it is long."""
    line = printable(" ".join(text.split()))
    return line if len(line) <= chars else line[: chars - 1] + "…"


def compact(value: Any) -> str:
    """A JSON value on one line; text stands for itself."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)


def short_id(operation_id: str) -> str:
    """The beginning of an id that is enough to name it."""
    return operation_id[:ID_CHARS]


def counted(number: int, noun: str) -> str:
    """A number with its noun: 1 row, 2,000 rows."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def per_second(rows: float) -> str:
    """A rate: 12,000 rows/s, 0.4 rows/s."""
    return f"{rows:,.0f} rows/s" if rows >= 10 else f"{rows:.2g} rows/s"


def duration(seconds: float) -> str:
    """A span of time in the unit that suits it."""
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02} min" if hours else f"{minutes} min {rest:02} s"


def moment(at: datetime | None) -> str:
    """A moment in the reader's own time."""
    return "" if at is None else at.astimezone().strftime("%Y-%m-%d %H:%M:%S")


def short_moment(at: datetime) -> str:
    """A moment in a list: with its time of day while it is recent, with its year when it is not."""
    is_recent = datetime.now(UTC) - at < timedelta(days=180)
    return at.astimezone().strftime("%d %b %H:%M" if is_recent else "%d %b %Y")
