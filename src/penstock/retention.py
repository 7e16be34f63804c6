"""How long what is kept of an operation that has ended: a policy, and what is due by it. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

__all__ = ["PARTS", "Keep", "due_parts", "keep_text", "parse_keep"]

# What a policy can name: the operation with all that belongs to it, or a part of what is stored about it.
PARTS = ("operations", "rows", "outputs", "history", "files")
Keep = Mapping[str, float | None]  # seconds by part; None is for ever

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
_EXAMPLE = "such as 90d, 12h or forever (units: s, m, h, d, w)"


def parse_keep(given: Any) -> dict[str, float | None]:
    """A policy from what users write: `90d` for whole operations, `files=7d, operations=90d`, or a mapping of these.

    `ValueError` names everything that is wrong.
    """
    if given is None:
        return {}
    if isinstance(given, str) and "=" in given:
        pairs = [pair.partition("=") for pair in given.split(",") if pair.strip()]
        given = {name.strip(): value.strip() for name, _, value in pairs}
    if not isinstance(given, Mapping):
        given = {"operations": given}
    kept: dict[str, float | None] = {}
    faults = []
    for part, value in given.items():
        if part not in PARTS:
            faults.append(f"{part!r} is not kept by itself; it can be {', '.join(PARTS)}")
            continue
        try:
            kept[part] = _seconds(value)
        except ValueError as error:
            faults.append(f"{part}: {error}" if len(given) > 1 or part != "operations" else str(error))
    if faults:
        raise ValueError("; ".join(faults))
    return kept


def _seconds(value: Any) -> float | None:
    if isinstance(value, timedelta):
        value = value.total_seconds()
    if value is None or (isinstance(value, str) and value.strip().lower() in ("forever", "none")):
        return None
    if isinstance(value, str):
        found = re.fullmatch(r"(\d{1,6})([smhdw])", value.strip())
        if found is None:
            raise ValueError(f"must be a number with a unit, {_EXAMPLE}; found {value!r}")
        return float(int(found[1]) * _UNITS[found[2]])
    if isinstance(value, bool) or not isinstance(value, int | float) or not value >= 0:
        raise ValueError(f"must be a number with a unit, {_EXAMPLE}, or seconds; found {value!r}")
    return float(value)


def keep_text(keep: Keep) -> str:
    """A policy as `parse_keep` reads it."""
    return ", ".join(f"{part}={_span(keep[part])}" for part in PARTS if part in keep)


def _span(seconds: float | None) -> str:
    if seconds is None:
        return "forever"
    unit = next(unit for unit in ("d", "h", "m", "s") if seconds % _UNITS[unit] == 0 or unit == "s")
    return f"{seconds / _UNITS[unit]:g}{unit}"


def due_parts(keep: Keep, *, ended_us: int, now_us: int, pruned: Mapping[str, bool]) -> tuple[str, ...]:
    """What of an operation is to be removed now: all of it (`operations`), or parts that are not gone yet.

    `pruned` are the parts whose removal has begun, and whether it is done.
    """
    due = [part for part in PARTS if (kept := keep.get(part)) is not None and ended_us + kept * 1e6 < now_us]
    if "operations" in due:
        return ("operations",)
    begun = {part for part, is_done in pruned.items() if not is_done}
    return tuple(part for part in PARTS if part in begun or (part in due and part not in pruned))
