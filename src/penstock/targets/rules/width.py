"""How many calls at once a source takes: what the remote recommends, less after trouble, more as calls go well."""

from __future__ import annotations

from penstock.targets.model import Limit

__all__ = ["Width"]

PATIENCE = 8
"""A width at which the remote complained of too many calls is tried again only after so many good windows."""


class Width:
    """The width of one source. A window is as many good calls as the width; each adds one, up to the recommendation."""

    def __init__(self, width: int, width_max: int) -> None:
        self._max = max(1, width_max)
        self._ceiling = self._now = self._clamped(width)
        self._refused_at: int | None = None
        self._good_calls = 0

    @property
    def now(self) -> int:
        """Calls at once, at the moment."""
        return self._now

    def hinted(self, hint: int) -> None:
        """The remote recommends this many; more raises the width, less lowers it at once."""
        hint = self._clamped(hint)
        if hint == self._ceiling:
            return
        was_full = self._now == self._ceiling
        self._ceiling = hint
        self._refused_at = None
        self._now = hint if was_full else min(self._now, hint)

    def answered(self) -> None:
        """A call went well."""
        if self._now >= self._ceiling:
            return
        self._good_calls += 1
        is_refused = self._refused_at is not None and self._now + 1 >= self._refused_at
        if self._good_calls >= self._now * (PATIENCE if is_refused else 1):
            self._good_calls = 0
            self._now += 1
            if is_refused:
                self._refused_at = self._now + 1

    def throttled(self, limit: Limit | None) -> None:
        """After a throttle half as many start again; the width that was too much for the remote is remembered.

        Where requests are counted, fewer at once do not help: the pace does.
        """
        if limit is Limit.REQUESTS:
            return
        if limit is Limit.CONCURRENCY:
            self._refused_at = self._now
        self._lower(self._now // 2)

    def collided(self) -> None:
        """Calls were in each other's way."""
        self._lower(self._now * 3 // 4)

    def _lower(self, width: int) -> None:
        self._now = max(1, width)
        self._good_calls = 0

    def _clamped(self, width: int) -> int:
        return min(max(width, 1), self._max)
