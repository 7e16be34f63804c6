"""Tells the caller how far its bulk call has come; a callback that fails never fails the call."""

from __future__ import annotations

import logging
from collections.abc import Callable

from penstock.targets.progress import Phase, Progress, ProgressTracker
from penstock.targets.running.account import Counts

__all__ = ["Callback", "Reporter"]

log = logging.getLogger("penstock.targets")


class Callback:
    """A caller's progress callback; what it raises is logged once and does no harm."""

    def __init__(self, progress: Callable[[Progress], None] | None) -> None:
        self._progress = progress
        self._has_complained = False

    @property
    def is_given(self) -> bool:
        """Whether anyone wants reports."""
        return self._progress is not None

    def __call__(self, now: Progress) -> None:
        if self._progress is None:
            return
        try:
            self._progress(now)
        except Exception:
            if not self._has_complained:
                log.exception("the progress callback failed; the bulk call goes on")
            self._has_complained = True


class Reporter:
    """Keeps the progress of a bulk call and reports it."""

    def __init__(self, tracker: ProgressTracker, progress: Callable[[Progress], None] | None) -> None:
        self._tracker, self._callback = tracker, Callback(progress)

    @property
    def is_heard(self) -> bool:
        """Whether anyone wants reports."""
        return self._callback.is_given

    def snapshot(self) -> Progress:
        """How things stand."""
        return self._tracker.snapshot()

    def settled(self, counts: Counts) -> None:
        """Count the records of a batch."""
        self._tracker.record(succeeded=counts.succeeded, failed=counts.failed, unknown=counts.unknown)

    def report(
        self,
        *,
        total: int | None,
        throttled_until_s: float | None,
        is_draining: bool,
        in_flight: int,
        retries: int,
        batch_size: int,
        width: int,
    ) -> None:
        """Tell where the call stands now."""
        going = Phase.DRAINING if is_draining else Phase.RUNNING
        phase = going if throttled_until_s is None else Phase.THROTTLED
        self._tracker.state(
            phase=phase,
            throttled_until_s=throttled_until_s,
            total=total,
            in_flight=in_flight,
            retries=retries,
            batch_size=batch_size,
            width=width,
        )
        self._callback(self._tracker.snapshot())

    def finish(self, *, total: int, not_run: int) -> None:
        """The last report."""
        self._tracker.record(not_run=not_run)
        self._tracker.state(total=total)
        self._tracker.finish()
        self._callback(self._tracker.snapshot())
