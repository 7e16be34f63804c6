"""Several bulk calls as one: their results and their progress, each record at its place in the whole input."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

from penstock.targets.executor import BulkCall, BulkCancelled
from penstock.targets.ids import PackedIds
from penstock.targets.model import BadInput, BulkOptions, Mode, Outcome
from penstock.targets.progress import Phase, Progress, ProgressTracker, Report
from penstock.targets.results import CODES, BulkError, BulkResult, Outcomes, Statistics, StoppedReason
from penstock.targets.running.outcomes import Callback

__all__ = ["MergedProgress", "MergedResult", "with_positions", "with_time_left"]

DEADLINE_MIN_S = 0.001
"""A deadline that has passed; none at all would mean to wait without end."""


class MergedResult:
    """A result in the making. What no call has answered for is not run."""

    def __init__(self, mode: Mode, length: int) -> None:
        self._mode = mode
        self._codes = bytearray([CODES[Outcome.NOT_RUN]]) * length
        self._errors: dict[int, BulkError] = {}
        self._ids = PackedIds() if mode in (Mode.CREATE, Mode.UPSERT) else None
        self._counts_exact = True
        self.stopped_reason: StoppedReason | None = None
        """Why one of the calls ended early."""
        self._stopped_error: BaseException | None = None
        self._statistics = Statistics()

    def outcome(self, position: int) -> Outcome:
        return Outcomes(self._codes)[position]

    def id_of(self, position: int) -> Any:
        return self._ids.get(position) if self._ids is not None else None

    def add(self, positions: Sequence[int], result: BulkResult) -> None:
        """Put the outcomes of a call at the positions of its records; it may have read fewer."""
        answered = positions[: len(result.outcomes)]
        if answered:
            self._codes.extend(bytes([CODES[Outcome.NOT_RUN]]) * (max(answered) + 1 - len(self._codes)))
        for position, outcome in zip(answered, result.outcomes, strict=True):
            self._codes[position] = CODES[outcome]
        for error in result.errors:
            index = positions[error.index]
            moved = (one if one.index is None else replace(one, index=index) for one in error.diagnostics)
            self._errors[index] = replace(error, index=index, diagnostics=tuple(moved))
        if self._ids is not None and result.ids is not None:
            self._ids.put(answered, [result.id_of(index) for index in range(len(answered))])
        self._counts_exact &= result.counts_exact
        if self.stopped_reason is None:
            self.stopped_reason, self._stopped_error = result.stopped_reason, result.stopped_error
        self._statistics = _summed(self._statistics, result.statistics)

    async def add_call(self, positions: Sequence[int], start: Callable[[], BulkCall]) -> None:
        """Make a call, if there are records, and add its result; also what a cancelled one had done by then."""
        if not positions:
            return
        try:
            self.add(positions, await start())
        except asyncio.CancelledError as cancelled:
            partial = BulkCancelled.found_in(cancelled)
            if partial is not None:
                self.add(positions, partial)
            raise
        except Exception as error:
            self.stop(error)

    def stop(self, error: Exception) -> None:
        """A call could not be made; what it would have sent is not run."""
        if self.stopped_reason is None:
            reason: StoppedReason = "error in input" if isinstance(error, BadInput) else "systemic"
            self.stopped_reason = "deadline" if isinstance(error, TimeoutError) else reason
            self._stopped_error = error

    def mark(self, error: BulkError) -> None:
        """Say what became of one record, and why; `index` is its place in the whole input."""
        self._codes[error.index] = CODES[error.outcome]
        self._errors[error.index] = error

    def result(self, duration_s: float) -> BulkResult:
        return BulkResult(
            mode=self._mode,
            outcomes=Outcomes(bytes(self._codes)),
            errors=[self._errors[index] for index in sorted(self._errors)],
            duration_s=duration_s,
            counts_exact=self._counts_exact,
            stopped_reason=self.stopped_reason,
            stopped_error=self._stopped_error,
            statistics=self._statistics,
            ids=self._ids,
        )


def _summed(one: Statistics, other: Statistics) -> Statistics:
    return Statistics(
        calls=one.calls + other.calls,
        requests=one.requests + other.requests,
        throttles=one.throttles + other.throttles,
        waited_s=one.waited_s + other.waited_s,
        retries=dict(Counter(one.retries) + Counter(other.retries)),
        batch_size_min=min(filter(None, (one.batch_size_min, other.batch_size_min)), default=0),
        batch_size_max=max(one.batch_size_max, other.batch_size_max),
        batch_size_last=other.batch_size_last or one.batch_size_last,
        in_flight_max=max(one.in_flight_max, other.in_flight_max),
        width_last=other.width_last or one.width_last,
    )


def with_positions(options: BulkOptions, positions: Sequence[int]) -> BulkOptions:
    """Options whose `on_outcomes` is told of records by their place in the whole input."""
    tell = options.on_outcomes
    if tell is None:
        return options
    return replace(options, on_outcomes=lambda told: tell([(positions[index], verdict) for index, verdict in told]))


def with_time_left(options: BulkOptions, spent_s: float) -> BulkOptions:
    """Options whose deadline is what earlier calls have left of it."""
    if options.deadline_s is None:
        return options
    return replace(options, deadline_s=max(options.deadline_s - spent_s, DEADLINE_MIN_S))


class MergedProgress:
    """One progress over several calls; each call gets a callback of its own from `part`."""

    def __init__(self, total: int | None, progress: Report, *, monotonic: Callable[[], float]) -> None:
        self._tracker = ProgressTracker(total, monotonic=monotonic)
        self._callback = Callback(progress)

    def add(self, result: BulkResult) -> None:
        """Count a call that reported nothing itself."""
        self._tracker.record(succeeded=result.success_count, failed=result.failure_count, unknown=result.unknown_count)
        self.tell()

    def part(self) -> Callable[[Progress], None]:
        """A callback for the next call; what it reports is added up."""
        before = Progress()

        def report(now: Progress) -> None:
            nonlocal before
            self._tracker.record(
                succeeded=now.succeeded - before.succeeded,
                failed=now.failed - before.failed,
                unknown=now.unknown - before.unknown,
            )
            before = now
            self._tracker.state(
                phase=Phase.RUNNING if now.phase is Phase.DONE else now.phase,
                in_flight=now.in_flight,
                retries=now.retries,
                batch_size=now.batch_size,
                width=now.width,
            )
            self.tell()

        return report

    def finish(self, results: Iterable[BulkResult]) -> None:
        """The last report; records that were skipped are not part of the total."""
        ended = list(results)
        self._tracker.record(not_run=sum(result.not_run_count for result in ended))
        self._tracker.state(total=sum(len(result.outcomes) - result.skipped_count for result in ended))
        self._tracker.finish()
        self.tell()

    def tell(self) -> None:
        self._callback(self._tracker.snapshot())
