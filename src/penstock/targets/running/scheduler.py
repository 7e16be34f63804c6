"""The batches of one bulk call: read as there is room, carried side by side, settled as they are through."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial

from penstock.targets.model import Outcome, TargetError, Verdict
from penstock.targets.progress import Phase, ProgressTracker
from penstock.targets.results import BulkResult, Statistics
from penstock.targets.rules.batch_size import BatchSize
from penstock.targets.running.batch import BatchCallbacks, CallSpec, PendingBatch
from penstock.targets.running.batcher import Batcher, InputReader, NextBatch
from penstock.targets.running.calls import SlotCaller
from penstock.targets.running.lifecycle import BatchLifecycle
from penstock.targets.running.outcomes import Callback, Counts, OutcomeRecorder
from penstock.targets.running.stop_signal import StopSignal
from penstock.targets.target import UniformVerdicts

__all__ = ["BatchScheduler"]

LOOK_AHEAD = 2
"""Batches that wait for a slot, so that none stays idle while the input is read."""


class BatchScheduler:
    """Owns the tasks of one bulk call, and its account."""

    def __init__(
        self,
        spec: CallSpec,
        reader: InputReader,
        caller: SlotCaller,
        *,
        tracker: ProgressTracker,
        tell_progress: Callback,
        stop_signal: StopSignal,
    ) -> None:
        self._spec, self._reader = spec, reader
        self._caller, self._pool, self._queue = caller, caller.pool, caller.queue
        self._tracker, self._tell_progress, self._stop_signal = tracker, tell_progress, stop_signal
        self._recorder = OutcomeRecorder(spec.mode, spec.options, spec.own_id)
        self._size = BatchSize(spec.options, spec.capabilities)
        self._sizes: tuple[int, int] | None = None
        self._errors = 0
        callbacks = BatchCallbacks(self._is_held, self._settle, self._launch, stop_signal.stop, self._report)
        self._lifecycle = BatchLifecycle(spec, callbacks, caller, self._size)
        self._batcher: Batcher | None = None
        self._group: asyncio.TaskGroup | None = None
        self._feeding: asyncio.Task[None] | None = None
        self._open: dict[PendingBatch, asyncio.Task[None] | None] = {}
        self._room = asyncio.Event()
        stop_signal.on_stop(self._halt)

    async def work(self, batcher: Batcher) -> None:
        """Take the batcher to its end, or until the call must stop."""
        self._batcher = batcher
        async with asyncio.TaskGroup() as self._group:
            self._feeding = self._group.create_task(self._read(batcher))

    def abandon(self) -> None:
        """Wait no longer for what is in flight."""
        for task in (self._feeding, *self._open.values()):
            if task is not None:
                task.cancel()

    def refuse(self, error: TargetError) -> None:
        """The table takes no records at all: those at hand fail, the others are not run."""
        self._stop_signal.stop("systemic", error)
        indexes, records = self._reader.take(self._size.now)
        self._recorder.reach(self._reader.read_count)
        self._settle(
            PendingBatch(indexes, records, self._lifecycle.new_key()),
            UniformVerdicts(Verdict(Outcome.FAILED, error=error), len(records)),
        )

    def _halt(self) -> None:
        """Let what is in flight finish; nothing else is begun."""
        waiting = (task for work, task in self._open.items() if work not in self._lifecycle.in_flight)
        for task in (self._feeding, *waiting):
            if task is not None and task is not asyncio.current_task():
                task.cancel()

    async def _read(self, batcher: Batcher) -> None:
        while not self._stop_signal.is_set:
            await self._until_room()
            piece = await batcher.take(self._size.now)
            if piece is None:
                return
            self._admit(piece)

    async def _until_room(self) -> None:
        while len(self._open) >= self._width + LOOK_AHEAD:
            self._room.clear()
            await self._room.wait()

    @property
    def _width(self) -> int:
        return min(self._pool.width, self._queue.width_max or self._pool.width)

    def _admit(self, piece: NextBatch) -> None:
        self._recorder.reach(self._reader.read_count)
        self._recorder.skip(piece.skipped)
        for index, record, error in piece.refused:
            verdict = Verdict(Outcome.FAILED, error=error)
            self._settle(PendingBatch([index], [record], self._lifecycle.new_key()), [verdict])
        if piece.records:
            smallest, biggest = self._sizes or (len(piece.records), 0)
            self._sizes = (min(smallest, len(piece.records)), max(biggest, len(piece.records)))
            self._launch(PendingBatch(piece.indexes, piece.records, self._lifecycle.new_key(), piece.identities))

    def _launch(self, work: PendingBatch) -> None:
        self._open[work] = None
        if self._group is not None and not self._stop_signal.is_set:
            self._open[work] = self._group.create_task(self._carry(work))

    async def _carry(self, work: PendingBatch) -> None:
        try:
            is_again = True
            while is_again and not self._stop_signal.is_set:
                if work.wait_s:
                    wait_s, work.wait_s = work.wait_s, 0.0
                    await self._pool.sleep(wait_s)
                await self._until_free(work)
                is_again = await self._lifecycle.attempt(work)
            if not is_again:
                del self._open[work]
        finally:
            self._pool.table_gate.end(self._spec.table, work)
            self._room.set()

    async def _until_free(self, work: PendingBatch) -> None:
        await self._pool.table_gate.wait_until_free(self._spec.table, work)
        while self._waits_for_search(work):
            self._room.clear()
            await self._room.wait()

    def _is_held(self, work: PendingBatch) -> bool:
        return self._pool.table_gate.is_held(self._spec.table, work) or self._waits_for_search(work)

    def _waits_for_search(self, work: PendingBatch) -> bool:
        """Whether a bad record is being looked for that would stop the call before this work is sent."""
        if self._spec.options.continue_on_error or work.isolation is not None:
            return False
        if self._pool.table_gate.is_held_by(self._spec.table, work):
            return False  # the search waits for this work: it holds the table
        return any(other.isolation is not None for other in self._open)

    def _settle(self, work: PendingBatch, verdicts: Sequence[Verdict]) -> None:
        diagnose = partial(self._lifecycle.diagnoser.of_verdicts, work, verdicts)
        counts = self._recorder.settle(work.indexes, work.records, verdicts, diagnose)
        if self._batcher is not None:
            self._batcher.release(work.identities)
        self._tracker.record(succeeded=counts.succeeded, failed=counts.failed, unknown=counts.unknown)
        self._tell(work, verdicts)
        if counts.has_errors:
            self._stop_on_errors(counts)
        self._report()

    def _stop_on_errors(self, counts: Counts) -> None:
        self._errors += counts.failed + counts.unknown
        options = self._spec.options
        if not options.continue_on_error:
            self._stop_signal.stop("stopped on error")
        elif options.max_errors is not None and self._errors > options.max_errors:
            self._stop_signal.stop("too many errors")

    def _tell(self, work: PendingBatch, verdicts: Sequence[Verdict]) -> None:
        if self._spec.options.on_outcomes is not None:
            try:
                self._spec.options.on_outcomes(list(zip(work.indexes, verdicts, strict=True)))
            except Exception as error:
                self._stop_signal.stop("error in on_outcomes", error)

    def _report(self) -> None:
        if not self._tell_progress.is_given:
            return
        is_over, is_stopped = self._reader.is_over, self._stop_signal.is_set
        read = self._reader.read_count if is_over else self._reader.total
        throttled_until_s = None if is_stopped else self._pool.throttled_until_s
        going = Phase.DRAINING if is_over or is_stopped else Phase.RUNNING
        self._tracker.state(
            phase=going if throttled_until_s is None else Phase.THROTTLED,
            throttled_until_s=throttled_until_s,
            total=None if read is None else read - self._recorder.skipped,
            in_flight=self._queue.in_flight,
            retries=self._lifecycle.retries.total(),
            batch_size=self._size.now,
            width=self._width,
        )
        self._tell_progress(self._tracker.snapshot())

    def result(self, duration_s: float) -> BulkResult:
        """What became of every record; what was left behind is settled first."""
        self._recorder.reach(max(self._reader.read_count, self._reader.total or 0))
        for work in self._open:
            self._leave(work)
        reason, error = self._stop_signal.reason, self._stop_signal.error
        if reason is None and self._reader.error is not None:
            reason, error = "error in input", self._reader.error
        result = BulkResult(
            mode=self._spec.mode,
            outcomes=self._recorder.outcomes,
            errors=self._recorder.errors,
            duration_s=duration_s,
            counts_exact=self._lifecycle.counts_exact,
            stopped_reason=reason,
            stopped_error=error,
            statistics=self._statistics(),
            ids=self._recorder.ids,
        )
        self._tracker.record(not_run=result.not_run_count)
        self._tracker.state(total=len(result.outcomes) - result.skipped_count)
        self._tracker.finish()
        self._tell_progress(self._tracker.snapshot())
        return result

    def _leave(self, work: PendingBatch) -> None:
        """Settle work that was stopped: unknown when it may have taken effect, otherwise not run.

        Pieces of a batch that failed fail with what stopped the call, when that was found to be everyone's trouble.
        """
        self._pool.table_gate.end(self._spec.table, work)
        error = self._stop_signal.error
        if work.unresolved is not None:
            self._settle(work, UniformVerdicts(Verdict(Outcome.UNKNOWN, error=work.unresolved), len(work)))
        elif work.isolation is not None and self._stop_signal.reason == "systemic" and isinstance(error, TargetError):
            self._settle(work, UniformVerdicts(Verdict(Outcome.FAILED, error=error), len(work)))

    def _statistics(self) -> Statistics:
        smallest, biggest = self._sizes or (0, 0)
        return Statistics(
            calls=self._lifecycle.calls,
            requests=self._caller.requests,
            throttles=self._lifecycle.throttles,
            waited_s=self._queue.waited_s,
            retries=dict(self._lifecycle.retries),
            batch_size_min=smallest,
            batch_size_max=biggest,
            batch_size_last=self._size.now,
            in_flight_max=self._queue.in_flight_max,
            width_last=self._width,
        )
