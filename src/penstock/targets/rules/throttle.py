"""Who must be left alone until when; one entry for each owner of a quota."""

from __future__ import annotations

from collections.abc import Iterable

__all__ = ["Throttles"]


class Throttles:
    """Instants of a monotonic clock until which sources are throttled; a later word never shortens an earlier one."""

    def __init__(self, sources: Iterable[str]) -> None:
        self._until = dict.fromkeys(sources, float("-inf"))
        self._all_from_s = self._all_until_s = 0.0
        self._held_s = 0.0

    def record(self, source: str, until_s: float, now_s: float) -> None:
        """The remote wants to be left alone by this source until then."""
        self._until[source] = max(until_s, self._until[source])
        free_s = min(self._until.values())
        if free_s <= now_s:
            return
        if self._all_until_s <= now_s:
            self._held_s, self._all_from_s = self.held_s(now_s), now_s
        self._all_until_s = free_s

    def until_s(self, source: str, now_s: float) -> float | None:
        """When the source may send again; None when it may now."""
        return self._until[source] if self._until[source] > now_s else None

    def all_until_s(self, now_s: float) -> float | None:
        """When the first source may send again; None when one may now."""
        return self._all_until_s if self._all_until_s > now_s else None

    def held_s(self, now_s: float) -> float:
        """For how long, up to now, every source was throttled at once."""
        return self._held_s + min(now_s, self._all_until_s) - self._all_from_s
