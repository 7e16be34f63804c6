"""How many records go into a batch: fixed, or steered by how long batches take."""

from __future__ import annotations

from penstock.targets.model import BulkOptions, Capabilities, Limit

__all__ = ["BatchSize"]

SIZE = 100
MAX_TIMES = 10
"""How many times its first size a batch may reach, unless the options say."""
SMOOTHING = 0.3
GROWTH_MAX, SHRINK_MAX = 1.5, 0.5
CAREFUL_GROWTH = 1.1
GOOD_CALLS = 3


class BatchSize:
    """The size in force.

    It moves towards `batch_seconds_target` per call, by half at most in one step. Once a batch was too much for the
    remote, size is halved and from then on grows by a tenth after three good calls only.
    """

    def __init__(self, options: BulkOptions, capabilities: Capabilities) -> None:
        self._adapts = options.adapt_batch_size
        self._target_s = options.batch_seconds_target
        size = options.batch_size or SIZE
        size_max = options.batch_size_max or MAX_TIMES * size
        self._max = min(capabilities.records_max or size_max, size_max)
        first = min(size, capabilities.records_max or size)
        self._size = float(min(first, self._max) if self._adapts else first)
        self._seconds_per_record: float | None = None
        self._good_calls = 0
        self._is_careful = False

    @property
    def now(self) -> int:
        return max(1, int(self._size))

    def answered(self, records: int, seconds: float) -> None:
        """A batch went well; small leftovers say little about full ones and are passed over."""
        if not self._adapts or 2 * records < self.now:
            return
        each = seconds / records
        known = self._seconds_per_record
        self._seconds_per_record = each if known is None else known + SMOOTHING * (each - known)
        self._good_calls += 1
        wanted = self._target_s / self._seconds_per_record if self._seconds_per_record > 0 else float(self._max)
        if wanted < self._size:
            self._set(max(wanted, self._size * SHRINK_MAX))
        elif not self._is_careful:
            self._set(min(wanted, self._size * GROWTH_MAX))
        elif self._good_calls >= GOOD_CALLS:
            self._good_calls = 0
            self._set(min(wanted, max(self._size * CAREFUL_GROWTH, self._size + 1)))

    def was_too_much(self) -> None:
        """A batch was too big, too slow, or in the way of others."""
        self._is_careful = True
        self._good_calls = 0
        if self._adapts:
            self._set(self._size * SHRINK_MAX)

    def throttled(self, limit: Limit | None) -> None:
        """The remote named the limit that was hit: time wants smaller batches, requests fewer and bigger ones."""
        if limit is Limit.TIME:
            self.was_too_much()
        elif limit is Limit.REQUESTS and self._adapts:
            self._set(self._size * GROWTH_MAX)

    def _set(self, size: float) -> None:
        self._size = min(max(size, 1.0), float(self._max))
