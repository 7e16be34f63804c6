"""A source that gets no answers is left alone for a while, then tried with one call."""

from __future__ import annotations

__all__ = ["Breaker"]


class Breaker:
    """Opens after failures in a row; when its time is up one call may try, and its answer closes it again."""

    def __init__(self, *, failures: int, first_s: float, max_s: float) -> None:
        self._failures_max, self._first_s, self._max_s = failures, first_s, max_s
        self._failures = 0
        self._open_until_s: float | None = None

    @property
    def is_open(self) -> bool:
        """Whether the source has not answered since it was given up."""
        return self._open_until_s is not None

    def admits(self, now_s: float, in_flight: int) -> bool:
        """Whether another call may be made."""
        if self._open_until_s is None:
            return True
        return now_s >= self._open_until_s and in_flight == 0

    def until_s(self, now_s: float) -> float | None:
        """When the next try is due; None when it is due now or nothing is wrong."""
        return self._open_until_s if self._open_until_s is not None and self._open_until_s > now_s else None

    def failed(self, now_s: float) -> None:
        """A call got no answer; those that were under way when it opened say nothing new."""
        if self.until_s(now_s) is not None:
            return
        self._failures += 1
        tries = self._failures - self._failures_max
        if tries >= 0:
            self._open_until_s = now_s + min(self._first_s * 2.0 ** min(tries, 20), self._max_s)

    def answered(self) -> None:
        """The remote answered, whatever it said."""
        self._failures = 0
        self._open_until_s = None
