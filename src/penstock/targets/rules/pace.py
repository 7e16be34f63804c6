"""How fast a source may begin calls: free at first, evenly spread once throttles come so often that they cost."""

from __future__ import annotations

from penstock.targets.model import Limit

__all__ = ["Pace"]

CALLS_MIN = 5
"""Fewer calls than this between throttles say nothing about a rate."""
COSTLY = 0.05
CYCLE_MAX_S = 60.0
"""Throttles that take less than this share of the time, or are further apart, are waited out: a pace gains nothing."""
LOWEST = CALLS_MIN / CYCLE_MAX_S
GROWTH = 1.1
"""By how much the pace grows in its first span without a throttle; each further span twice as often."""
STEP_BACK = 0.02
"""By how much a pace that was refused is lowered; twice as much each time it is refused again soon."""
STEP_BACK_MAX = 0.5
PATIENCE = 50
PATIENCE_MAX = 200
"""A pace that was refused is tried again after so many times the wait that it cost; twice as long each time."""
SPAN_MAX_S = 600.0
FREE = 10.0
"""A pace that has grown so many times over holds nobody back and is dropped."""
SLACK_S = 0.01
"""What a late timer may make up for at once."""
NOW_S = 0.001
"""What is due so soon is due now: no timer is finer."""


class Pace:
    """The pace of one source, on a monotonic clock.

    It begins with what the remote let through from one throttle to the next, so it never makes a source slower than
    the throttles did. It grows until the remote refuses it, and from then on stays a little below that. After a long
    while it tries to grow again, slowly at first and, if nobody minds, faster and faster.
    """

    def __init__(self) -> None:
        self._base: float | None = None
        self._top: float | None = None
        self._resumed_s = 0.0
        self._span_s = 1.0
        self._strikes = 0
        self._patience = PATIENCE
        self._next_s = float("-inf")
        self._cycle_from_s: float | None = None
        self._calls = 0
        self._waits_s = 0.0

    def per_second(self, now_s: float) -> float | None:
        """Calls a second at the moment; None while anything goes."""
        if self._base is None:
            return None
        spans = max(0.0, now_s - self._resumed_s) / self._span_s
        if self._top is not None and spans < 1:
            return self._base + (self._top - self._base) * spans
        grown: float = GROWTH ** (2.0 ** min(spans if self._top is None else spans - 1, 8.0) - 1)
        return (self._top or self._base) * grown if grown <= FREE else None

    def until_s(self, now_s: float) -> float | None:
        """When the next call may begin; None when it may now."""
        return self._next_s if self._next_s - now_s > NOW_S else None

    def began(self, now_s: float) -> None:
        """A call begins."""
        if self._cycle_from_s is None:
            self._cycle_from_s = now_s
        self._calls += 1
        rate = self.per_second(now_s)
        if rate is not None:
            self._next_s = max(self._next_s, now_s - SLACK_S) + 1 / rate

    def refused(self) -> None:
        """A call that began was throttled: it does not count as let through."""
        self._calls = max(0, self._calls - 1)

    def throttled(self, now_s: float, wait_s: float, limit: Limit | None) -> None:
        """The remote wants to be left alone for a while; `refused` has been told already."""
        if limit is Limit.CONCURRENCY or self._cycle_from_s is None:
            return  # fewer at once help, which is not a matter of pace
        cycle_s = now_s - self._cycle_from_s
        rate = self.per_second(now_s)
        through = self._calls / cycle_s if self._calls >= CALLS_MIN and cycle_s > 0 else None
        if rate is not None:
            self._step_back(rate, through, now_s, wait_s)
        else:
            self._base = self._top = None
        if rate is None and cycle_s <= CYCLE_MAX_S:
            if through is None:
                self._waits_s += wait_s
                return
            if self._waits_s >= COSTLY * cycle_s:
                self._base, self._top, self._span_s = through, None, max(1.0, cycle_s)
        self._cycle_from_s, self._calls, self._waits_s = now_s, 0, wait_s
        self._resumed_s = now_s + wait_s
        if self._base is not None:
            self._next_s = self._resumed_s

    def _step_back(self, rate: float, through: float | None, now_s: float, wait_s: float) -> None:
        spans = (now_s - self._resumed_s) / self._span_s
        if self._top is None or spans > 2:  # the remote is new to us, or has changed
            self._strikes, self._patience = 0, PATIENCE
        elif spans < 0.25:
            self._strikes += 1
        else:
            self._strikes, self._patience = 0, min(2 * self._patience, PATIENCE_MAX)
        lowered = rate * (1 - min(STEP_BACK * 2.0**self._strikes, STEP_BACK_MAX))
        self._base = max(lowered, min(through or LOWEST, rate))
        self._top = max(self._base, rate * (1 - STEP_BACK))
        self._span_s = max(1.0, min(self._patience * wait_s, SPAN_MAX_S))
