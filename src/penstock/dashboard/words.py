"""Values as pages show them: numbers, times and states in words. Pure."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime
from typing import Any

from penstock.dashboard.row_form import field_text
from penstock.printable import cut, duration, per_second, printable

__all__ = ["FILTERS", "bytes_size", "iso", "number", "percent", "pretty", "span", "tone", "utc", "words"]

_CAPITAL = re.compile(r"(?<=[a-z])(?=[A-Z])")

_TONES = {
    "Completed": "ok",
    "Valid": "ok",
    "Processed": "ok",
    "live": "ok",
    "Active": "ok",
    "Published": "ok",
    "CompletedWithErrors": "warn",
    "lagging": "warn",
    "Failed": "bad",
    "Invalid": "bad",
    "TimedOut": "bad",
    "Rejected": "bad",
    "dead": "bad",
    "Running": "run",
    "Validating": "run",
    "Retrying": "run",
    "Delivered": "run",
    "Uploading": "run",
    "WaitingForCompletion": "wait",
    "Paused": "wait",
    "suspended": "wait",
    "active": "run",
    "completed": "ok",
    "failed": "bad",
}


def tone(state: str) -> str:
    """The colour of a state: ok, warn, bad, run, wait, or idle."""
    return _TONES.get(state, "idle")


def words(state: str) -> str:
    """A state's name in words: CompletedWithErrors is "Completed with errors"."""
    first, *rest = _CAPITAL.split(state.replace("_", " "))
    return " ".join([first, *(word.lower() for word in rest)])


def number(value: float | None) -> str:
    """A number with its thousands apart."""
    return "" if value is None else f"{value:,.0f}"


def percent(part: float, whole: float) -> str:
    """A share, never rounded up to all of it."""
    return "0 %" if not whole else f"{int(part * 1000 / whole) / 10:g} %"


def bytes_size(size: int) -> str:
    """So many bytes in the unit that suits them."""
    value = float(size)
    for unit in ("bytes", "kB", "MB", "GB"):
        if value < 1000 or unit == "GB":
            return f"{value:,.0f} {unit}" if unit == "bytes" or value >= 100 else f"{value:,.1f} {unit}"
        value /= 1000
    raise AssertionError(size)


def span(began: datetime | None, ended: datetime | None) -> str:
    """How long it took."""
    return "" if began is None or ended is None else duration(max(0.0, (ended - began).total_seconds()))


def utc(at: datetime | None) -> str:
    """A moment, for pages without a script: a script shows it in the reader's own time."""
    return "" if at is None else at.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def iso(at: datetime) -> str:
    """A moment for scripts."""
    return at.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def pretty(value: Any) -> str:
    """A JSON value on several lines; text stands for itself, control characters spelled out."""
    return printable(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, indent=2, default=str))


def cell(value: Any) -> str:
    """A value of a row in one line."""
    if value is None:
        return ""
    return printable(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str))


FILTERS = {
    "bytes_size": bytes_size,
    "cell": cell,
    "cut": cut,
    "duration": duration,
    "field_text": field_text,
    "iso": iso,
    "number": number,
    "per_second": per_second,
    "pretty": pretty,
    "printable": printable,
    "tone": tone,
    "utc": utc,
    "words": words,
}
