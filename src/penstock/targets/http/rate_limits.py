"""How long a remote asks to be left alone, in the dialects of HTTP's limit headers."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

from penstock.targets.model import Limit

__all__ = ["is_exhausted", "limit_hit", "retry_after_s"]

EPOCH_FROM = 1e9
"""Reset values from here on are instants since 1970, in seconds; from a thousand times this, in milliseconds."""
RESET_HEADERS = ("ratelimit-reset", "x-ratelimit-reset", "x-rate-limit-reset")
REMAINING_HEADERS = ("ratelimit-remaining", "x-ratelimit-remaining", "x-rate-limit-remaining")
STRUCTURED_RESET = re.compile(r"(?:^|[;,\s])(?:t|reset)=(\d+(?:\.\d+)?)")
STRUCTURED_REMAINING = re.compile(r"(?:^|[;,\s])(?:r|remaining)=(\d+)")
UNIT = re.compile(r';\s*qu="?([\w-]+)"?')
UNITS = {"requests": Limit.REQUESTS, "concurrent-requests": Limit.CONCURRENCY}


def retry_after_s(headers: Mapping[str, str], now: datetime) -> float | None:
    """Seconds to wait, or None when no header tells; header names are in lower case.

    Dates are measured by the remote's own `Date`, so that a clock that is off does not matter.
    """
    at = _date(headers.get("date")) or now
    structured = [float(number) for number in STRUCTURED_RESET.findall(headers.get("ratelimit", ""))]
    waits = [_retry_after(headers.get("retry-after"), at), max(structured, default=None)]
    waits += [_reset(headers.get(name), at) for name in RESET_HEADERS]
    return next((max(0.0, wait) for wait in waits if wait is not None), None)


def is_exhausted(headers: Mapping[str, str]) -> bool:
    """Whether the remote says that nothing is left of a quota."""
    found = STRUCTURED_REMAINING.search(headers.get("ratelimit", ""))
    remaining = [found[1]] if found else [headers[name] for name in REMAINING_HEADERS if name in headers]
    return any(number.strip() == "0" for number in remaining)


def limit_hit(headers: Mapping[str, str]) -> Limit | None:
    """Which limit it was, when the policy names only one unit."""
    units = {UNITS.get(unit) for unit in UNIT.findall(headers.get("ratelimit-policy", ""))}
    return units.pop() if len(units) == 1 else None


def _retry_after(value: str | None, now: datetime) -> float | None:
    seconds = _number(value)
    if seconds is not None:
        return seconds
    until = _date(value)
    return (until - now).total_seconds() if until else None


def _reset(value: str | None, now: datetime) -> float | None:
    number = _number(value)
    if number is None or number < EPOCH_FROM:
        return number
    epoch_s = number / 1000 if number >= EPOCH_FROM * 1000 else number
    return epoch_s - now.timestamp()


def _number(value: str | None) -> float | None:
    try:
        number = float(value or "")
    except ValueError:
        return None
    return number if 0 <= number < float("inf") else None


def _date(value: str | None) -> datetime | None:
    try:
        found = parsedate_to_datetime(value or "")
    except ValueError:
        return None
    return found if found.tzinfo else found.replace(tzinfo=UTC)
