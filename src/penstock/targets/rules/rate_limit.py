"""A rate that the user knows the remote to permit, kept by a token bucket."""

from __future__ import annotations

from dataclasses import dataclass

from penstock.errors import SettingsInvalid

__all__ = ["RateLimit", "TokenBucket"]


@dataclass(frozen=True)
class RateLimit:
    """So many calls in so many seconds, for each source: `RateLimit(100, per_s=60)`.

    Calls are spread evenly, so that no window of `per_s` seconds holds more of them. After a pause up to `burst` may
    begin at once, for remotes that allow it.
    """

    calls: float
    per_s: float = 1.0
    burst: int = 1

    def __post_init__(self) -> None:
        if self.calls <= 0 or self.per_s <= 0 or self.burst < 1:
            raise SettingsInvalid(f"a rate limit has calls and seconds above 0 and a burst of at least 1: {self}")


class TokenBucket:
    """Holds up to `burst` tokens; a call takes one, and one comes back every `per_s / calls` seconds."""

    def __init__(self, limit: RateLimit) -> None:
        self._burst, self._per_second = float(limit.burst), limit.calls / limit.per_s
        self._whole = self._per_second
        self._tokens, self._at_s = self._burst, float("-inf")

    def share(self, members: int) -> None:
        """Keep to an equal share of the rate among so many."""
        self._per_second = self._whole / members

    def until_s(self, now_s: float) -> float | None:
        """When the next call may begin; None when it may now."""
        missing = 1 - self._held(now_s)
        return now_s + missing / self._per_second if missing > 1e-9 else None

    def began(self, now_s: float) -> None:
        """A call begins; one that had to begin all the same is paid for later."""
        self._tokens, self._at_s = self._held(now_s) - 1, now_s

    def _held(self, now_s: float) -> float:
        return min(self._burst, self._tokens + max(0.0, now_s - self._at_s) * self._per_second)
