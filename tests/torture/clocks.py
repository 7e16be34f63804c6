"""Wall clocks that are off and jump: what a process believes the time to be, by a plan made from the seed.

Journals and what does not jump (monotonic clocks) are not touched.
"""

from __future__ import annotations

import random
import time
from bisect import bisect_right
from collections.abc import Sequence
from types import ModuleType
from typing import Any

from penstock import clock as penstock_clock

__all__ = ["TRUE_NS", "Plan", "follow", "jumps", "steady"]

TRUE_NS = time.time_ns
_TRUE_S, _TRUE_GET_S, _TRUE_GET_NS = time.time, time.clock_gettime, time.clock_gettime_ns
OFF_S = (3600.0, -3600.0, 3600.0, -3600.0, 45.0, -45.0)
JUMP_S = (0.5, 4.0)

Plan = Sequence[tuple[float, float]]
"""Pairs of a moment on the monotonic clock and by how many seconds the wall clock is ahead from then on."""


def steady(rng: random.Random, since: float) -> Plan:
    """A clock that is simply off."""
    return [(since, rng.choice(OFF_S))]


def jumps(rng: random.Random, since: float, until: float) -> Plan:
    """A clock that is set to and fro until it is right again."""
    plan: list[tuple[float, float]] = []
    moment = since
    while (moment := moment + rng.uniform(*JUMP_S)) < until:
        plan.append((moment, rng.choice((0.0, *OFF_S))))
    return [*plan, (until, 0.0)]


def follow(plan: Plan) -> None:
    """From now on this process's wall clock goes by the plan."""
    moments = [moment for moment, _ in plan]

    def ahead_ns() -> int:
        place = bisect_right(moments, time.monotonic())
        return round(plan[place - 1][1] * 1e9) if place else 0

    def time_ns() -> int:
        return TRUE_NS() + ahead_ns()

    def time_s() -> float:
        return time_ns() / 1e9

    def clock_gettime(which: int) -> float:
        return time_s() if which == time.CLOCK_REALTIME else _TRUE_GET_S(which)

    def clock_gettime_ns(which: int) -> int:
        return time_ns() if which == time.CLOCK_REALTIME else _TRUE_GET_NS(which)

    changed = {TRUE_NS: time_ns, _TRUE_S: time_s, _TRUE_GET_S: clock_gettime, _TRUE_GET_NS: clock_gettime_ns}
    for place in (time, penstock_clock, penstock_clock.SystemClock):
        _replace(place, changed)


def _replace(place: ModuleType | type, changed: dict[Any, Any]) -> None:
    """Put other functions where these are known, by whichever name."""
    for name, known in list(vars(place).items()):
        function = known.__func__ if isinstance(known, staticmethod) else known
        if callable(function) and function in changed:
            other = changed[function]
            setattr(place, name, staticmethod(other) if isinstance(known, staticmethod) else other)
