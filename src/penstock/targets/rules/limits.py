"""What holds a source back: a rate that the user declared, its width, throttles, a breaker, our share of its quota."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from penstock.errors import SettingsInvalid
from penstock.targets.model import Limit
from penstock.targets.rules.pace import Pace
from penstock.targets.rules.retry import RetryPolicy

__all__ = ["Breaker", "RateLimit", "Share", "Source", "Throttles", "TokenBucket", "Width"]


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


PATIENCE = 8
"""A width at which the remote complained of too many calls is tried again only after so many good windows."""


class Width:
    """The width of one source. A window is as many good calls as the width; each adds one, up to the recommendation."""

    def __init__(self, width: int, width_max: int) -> None:
        self._max = max(1, width_max)
        self._ceiling = self.now = self._clamped(width)
        """`now` is the number of calls at once, at the moment."""
        self._refused_at: int | None = None
        self._good_calls = 0

    def hinted(self, hint: int) -> None:
        """The remote recommends this many; more raises the width, less lowers it at once."""
        hint = self._clamped(hint)
        if hint == self._ceiling:
            return
        was_full = self.now == self._ceiling
        self._ceiling = hint
        self._refused_at = None
        self.now = hint if was_full else min(self.now, hint)

    def answered(self) -> None:
        """A call went well."""
        if self.now >= self._ceiling:
            return
        self._good_calls += 1
        is_refused = self._refused_at is not None and self.now + 1 >= self._refused_at
        if self._good_calls >= self.now * (PATIENCE if is_refused else 1):
            self._good_calls = 0
            self.now += 1
            if is_refused:
                self._refused_at = self.now + 1

    def throttled(self, limit: Limit | None) -> None:
        """After a throttle half as many start again; the width that was too much for the remote is remembered.

        Where requests are counted, fewer at once do not help: the pace does.
        """
        if limit is Limit.REQUESTS:
            return
        if limit is Limit.CONCURRENCY:
            self._refused_at = self.now
        self._lower(self.now // 2)

    def collided(self) -> None:
        """Calls were in each other's way."""
        self._lower(self.now * 3 // 4)

    def _lower(self, width: int) -> None:
        self.now = max(1, width)
        self._good_calls = 0

    def _clamped(self, width: int) -> int:
        return min(max(width, 1), self._max)


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


@dataclass(frozen=True, slots=True)
class Share:
    """One of `members` who use a quota at the moment; `rank` counts from 0."""

    rank: int = 0
    members: int = 1
    throttled_s: float = 0.0
    """For how long the remote still wants to be left alone, as another member heard."""

    def of(self, width: int) -> int:
        """Our part of so many calls at once. All parts together are the whole, but nobody gets less than one."""
        return max(1, (width - self.rank + self.members - 1) // self.members)


WHOLE = Share()


class Source:
    """One owner of a quota."""

    __slots__ = ("breaker", "bucket", "in_flight", "name", "pace", "share", "throttles_in_a_row", "width")

    def __init__(self, name: str, width: Width, policy: RetryPolicy, rate_limit: RateLimit | None) -> None:
        self.name, self.width = name, width
        self.breaker = Breaker(
            failures=policy.breaker_failures, first_s=policy.breaker_first_s, max_s=policy.breaker_max_s
        )
        self.bucket = TokenBucket(rate_limit) if rate_limit else None
        self.share = WHOLE
        self.pace = Pace()
        self.in_flight = 0
        self.throttles_in_a_row = 0
        """How often it was throttled since the remote let a call through; from the second on, one call tries first."""

    def paced_until_s(self, now_s: float) -> float | None:
        """When the next call may begin, by what the user declared and by what was learned; None when it may now."""
        ends = (self.pace.until_s(now_s), self.bucket.until_s(now_s) if self.bucket else None)
        return max((end for end in ends if end is not None), default=None)

    def began(self, now_s: float) -> None:
        """A call begins."""
        self.in_flight += 1
        self.pace.began(now_s)
        if self.bucket:
            self.bucket.began(now_s)

    def has_room(self, now_s: float) -> bool:
        """Whether its width and its breaker admit another call."""
        if self.throttles_in_a_row > 1 and self.in_flight:
            return False
        return self.in_flight < self.width_now and self.breaker.admits(now_s, self.in_flight)

    @property
    def width_now(self) -> int:
        """Calls at once that are ours at the moment."""
        return self.share.of(self.width.now)

    def set_share(self, share: Share) -> None:
        """Use no more than this of the quota."""
        whole = max(self.width.now, share.members, self.share.members)
        self.pace.scale(share.of(whole) / self.share.of(whole))
        self.share = share
        if self.bucket:
            self.bucket.share(share.members)
