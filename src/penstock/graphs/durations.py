"""ISO 8601 durations of a fixed length: weeks, days, hours, minutes and seconds."""

from __future__ import annotations

import re

__all__ = ["DURATION_US_MAX", "format_duration", "parse_duration"]

_UNITS_US = {"W": 604_800_000_000, "D": 86_400_000_000, "H": 3_600_000_000, "M": 60_000_000, "S": 1_000_000}
_DURATION = re.compile(
    r"P(?:(?P<W>\d{1,5})W)?(?:(?P<D>\d{1,6})D)?"
    r"(?:T(?=\d)(?:(?P<H>\d{1,7})H)?(?:(?P<M>\d{1,8})M)?(?:(?P<S>\d{1,10}(?:\.\d{1,6})?)S)?)?",
    re.IGNORECASE,
)
DURATION_US_MAX = 100 * 365 * _UNITS_US["D"]


def parse_duration(text: str) -> int:
    """Microseconds; `ValueError` says what is wrong. Years and months have no fixed length and are refused."""
    written = text.strip()
    if re.match(r"P\d+Y|P[^T]*\d+M", written, re.IGNORECASE):
        raise ValueError(f"{text!r} has years or months, which have no fixed length; use days, such as P30D")
    found = _DURATION.fullmatch(written)
    if found is None or written.upper() in ("P", "PT"):
        raise ValueError(f"{text!r} is no ISO 8601 duration; write PT30S, PT15M, PT2H or P3D")
    total = sum(round(float(value) * _UNITS_US[unit]) for unit, value in found.groupdict().items() if value)
    if not 0 < total <= DURATION_US_MAX:
        raise ValueError(f"{text!r} is not between a microsecond and 100 years")
    return total


def format_duration(us: int) -> str:
    """The shortest form: P1DT2H, PT90M is PT1H30M."""
    days, rest = divmod(us, _UNITS_US["D"])
    text = f"P{days}D" if days else "P"
    parts = ""
    for unit in ("H", "M"):
        count, rest = divmod(rest, _UNITS_US[unit])
        parts += f"{count}{unit}" if count else ""
    if rest:
        parts += f"{rest / 1e6:.6f}".rstrip("0").rstrip(".") + "S"
    return f"{text}T{parts}" if parts else text
