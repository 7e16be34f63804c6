"""How far a bulk call has come, how fast it goes and when it will end: arithmetic on counts and a clock."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import NamedTuple, TypeAlias

from penstock.targets.model import BadInput

__all__ = ["Phase", "Progress", "ProgressTracker", "Report"]

WINDOW_S = 30.0
SAMPLES_MAX = 1000
RATE_AFTER_S = 0.1
"""Below this a rate says more about the clock than about the work."""
RATE_MIN_PER_S = 0.001
REMAINING_MAX_S = 7 * 24 * 3600.0


class Phase(StrEnum):
    """What a bulk call is doing now."""

    RUNNING = "running"
    THROTTLED = "throttled"  # every source waits for its remote
    DRAINING = "draining"  # no new batches; those in flight are awaited
    DONE = "done"


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """A bulk call at one moment."""

    succeeded: int = 0
    failed: int = 0
    unknown: int = 0
    not_run: int = 0
    total: int | None = None
    """Records in the input; None while a stream has not ended."""
    overall_rate_per_second: float = 0.0
    instant_rate_per_second: float = 0.0
    """Over the last 30 seconds."""
    estimated_remaining_s: float | None = None
    """None while nobody can tell: no total, hardly any rate, or more than seven days."""
    elapsed_s: float = 0.0
    phase: Phase = Phase.RUNNING
    throttled_until_s: float | None = None
    """Until when the remote wants to be left alone, in seconds since the start of the call, like `elapsed_s`."""
    in_flight: int = 0
    retries: int = 0
    batch_size: int | None = None
    width: int | None = None

    @property
    def processed(self) -> int:
        """Records whose outcome is settled; those that were never run are not among them."""
        return self.succeeded + self.failed + self.unknown

    @property
    def percent_complete(self) -> float | None:
        """The processed share; None while the total is unknown, 100 for a finished call on nothing."""
        if self.total is None:
            return None
        if self.total == 0:
            return 100.0 if self.phase is Phase.DONE else 0.0
        return min(100.0, 100.0 * self.processed / self.total)


Report: TypeAlias = Callable[[Progress], None] | None
"""A caller's progress callback, if there is one."""


class _Sample(NamedTuple):
    at_s: float
    active_s: float
    processed: int


class ProgressTracker:
    """Counts outcomes and takes snapshots; one thread, one bulk call.

    Time spent throttled is part of `elapsed_s` and of the rates shown, but not of the rate that the estimate uses:
    the estimate adds what is left of the present throttle instead.
    """

    def __init__(self, total: int | None = None, *, monotonic: Callable[[], float], window_s: float = WINDOW_S) -> None:
        if total is not None:
            _refuse_negative(total=total)
        self._total = total
        self._monotonic = monotonic
        self._window_s = max(1.0, window_s)
        self.reset()

    def reset(self) -> None:
        """Start over, with the total that was given first."""
        self._start_s = self._monotonic()
        self._now = Progress(total=self._total)
        self._throttled_from_s: float | None = None
        self._waited_s = 0.0
        self._ended_s: float | None = None
        self._samples = deque([_Sample(0.0, 0.0, 0)])

    def record(self, *, succeeded: int = 0, failed: int = 0, unknown: int = 0, not_run: int = 0) -> None:
        """Add the outcomes of a batch; counts only ever grow."""
        added = {"succeeded": succeeded, "failed": failed, "unknown": unknown, "not_run": not_run}
        _refuse_negative(**added)
        self._now = replace(self._now, **{name: getattr(self._now, name) + count for name, count in added.items()})
        self._sample()

    def state(
        self,
        *,
        phase: Phase | str | None = None,
        throttled_until_s: float | None = None,
        in_flight: int | None = None,
        retries: int | None = None,
        batch_size: int | None = None,
        width: int | None = None,
        total: int | None = None,
    ) -> None:
        """Set facts; what is not named stays, except that a new phase also says the throttle anew.

        `throttled_until_s` is an instant of the tracker's clock.
        """
        numbers = {"in_flight": in_flight, "retries": retries, "batch_size": batch_size, "width": width, "total": total}
        given = {name: number for name, number in numbers.items() if number is not None}
        _refuse_negative(**given)
        self._now = replace(self._now, **given)  # type: ignore[arg-type]
        if throttled_until_s is not None or phase is not None:
            until = None if throttled_until_s is None else max(0.0, throttled_until_s - self._start_s)
            self._now = replace(self._now, throttled_until_s=until)
        if phase is not None:
            self._enter(Phase(phase))

    def finish(self) -> None:
        """The call has ended: time stands still, and a total that was unknown is known."""
        self._enter(Phase.DONE)
        self._ended_s = self._elapsed()
        now = self._now
        total = now.processed + now.not_run if now.total is None else now.total
        self._now = replace(now, total=total, in_flight=0, throttled_until_s=None)

    def snapshot(self) -> Progress:
        """How things stand now."""
        elapsed = self._elapsed()
        base = self._base(elapsed)
        overall = _rate(self._now.processed, elapsed)
        instant = _rate(self._now.processed - base.processed, elapsed - base.at_s, otherwise=overall)
        return replace(
            self._now,
            elapsed_s=elapsed,
            overall_rate_per_second=overall,
            instant_rate_per_second=instant,
            estimated_remaining_s=self._remaining(elapsed, base),
        )

    def _remaining(self, elapsed: float, base: _Sample) -> float | None:
        now = self._now
        if now.phase is Phase.DONE:
            return 0.0
        if now.total is None:
            return None
        active = self._active(elapsed)
        overall = _rate(now.processed, active)
        instant = _rate(now.processed - base.processed, active - base.active_s, otherwise=overall)
        rate = (overall + instant) / 2
        left = max(0, now.total - now.processed - now.not_run)
        if left and rate <= RATE_MIN_PER_S:
            return None
        throttled_until_s = (now.throttled_until_s if now.phase is Phase.THROTTLED else None) or elapsed
        seconds = max(0.0, throttled_until_s - elapsed) + left / rate if left else 0.0
        return seconds if seconds <= REMAINING_MAX_S else None

    def _enter(self, phase: Phase) -> None:
        elapsed = self._elapsed()
        if self._throttled_from_s is not None:
            self._waited_s += elapsed - self._throttled_from_s
        self._throttled_from_s = elapsed if phase is Phase.THROTTLED else None
        self._now = replace(self._now, phase=phase)

    def _elapsed(self) -> float:
        return self._monotonic() - self._start_s if self._ended_s is None else self._ended_s

    def _active(self, elapsed: float) -> float:
        throttled = 0.0 if self._throttled_from_s is None else elapsed - self._throttled_from_s
        return elapsed - self._waited_s - throttled

    def _sample(self) -> None:
        elapsed = self._elapsed()
        sample = _Sample(elapsed, self._active(elapsed), self._now.processed)
        # Samples closer together than this are merged, so that a thousand of them always span the whole window.
        apart_s = 2 * self._window_s / (SAMPLES_MAX - 2)
        if len(self._samples) > 1 and elapsed - self._samples[-2].at_s < apart_s:
            self._samples[-1] = sample
        else:
            self._samples.append(sample)
        self._base(elapsed)

    def _base(self, elapsed: float) -> _Sample:
        """The newest sample that is at least a window old, or the first; older ones are let go."""
        while len(self._samples) > 1 and self._samples[1].at_s <= elapsed - self._window_s:
            self._samples.popleft()
        return self._samples[0]


def _rate(count: int, seconds: float, *, otherwise: float = 0.0) -> float:
    return count / seconds if seconds >= RATE_AFTER_S else otherwise


def _refuse_negative(**counts: int) -> None:
    negative = {name: count for name, count in counts.items() if count < 0}
    if negative:
        raise BadInput(f"counts of progress cannot be negative: {negative}")
