"""How often somebody may ask: a bucket of tokens for each, which fills at a steady pace. Pure but for the clock."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable

from penstock.clock import Clock

__all__ = ["TokenBuckets"]

KEPT_MAX = 10_000


class TokenBuckets:
    """Buckets by key; one that was not used for long is full again, and forgotten.

    They belong to this process: several servers admit as many times as much.
    """

    def __init__(self, *, per_s: float, burst: float, clock: Clock) -> None:
        self._per_s, self._burst, self._clock = per_s, burst, clock
        self._buckets: OrderedDict[Hashable, tuple[float, float]] = OrderedDict()  # tokens, and when

    def wait_s(self, key: Hashable) -> float:
        """How long it takes until a token is there; 0 when there is one now. Takes none."""
        return max(0.0, (1 - self._tokens(key, self._clock.monotonic())) / self._per_s) if self._per_s else 0.0

    def take(self, key: Hashable) -> float:
        """Take a token, and answer 0; or, when there is none, how long it takes until there is one."""
        if not self._per_s:
            return 0.0
        now = self._clock.monotonic()
        tokens = self._tokens(key, now)
        if tokens < 1:
            return (1 - tokens) / self._per_s
        self._buckets[key] = (tokens - 1, now)
        self._buckets.move_to_end(key)
        if len(self._buckets) > KEPT_MAX:
            self._buckets.popitem(last=False)
        return 0.0

    def _tokens(self, key: Hashable, now: float) -> float:
        tokens, at = self._buckets.get(key, (self._burst, now))
        return min(self._burst, tokens + (now - at) * self._per_s)
