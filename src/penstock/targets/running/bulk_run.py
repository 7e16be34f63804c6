"""One bulk call from its first record to its result: batches are read as there is room, carried side by side and
settled as they are through."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from operator import attrgetter

from penstock.targets.model import Outcome, TargetError, Verdict
from penstock.targets.pool import Pool
from penstock.targets.progress import Phase, ProgressTracker, Report
from penstock.targets.quotas import keep_share
from penstock.targets.results import BulkResult, Statistics, StoppedReason
from penstock.targets.rules.duplicates import DuplicateKeys, find_duplicates
from penstock.targets.rules.retry import RetryPolicy
from penstock.targets.running.calls import Caller, CallSpec, PendingBatch
from penstock.targets.running.input import Batcher, InputReader, NextBatch, Records, faults_in, refuse_faults
from penstock.targets.running.lifecycle import BatchLifecycle
from penstock.targets.running.outcomes import Callback, OutcomeRecorder
from penstock.targets.verdicts import UniformVerdicts, Verdicts

__all__ = ["BulkRun"]

LOOK_AHEAD = 2
"""Batches that wait for a slot, so that none stays idle while the input is read."""
BY_CALLER: frozenset[StoppedReason] = frozenset({"cancelled", "deadline"})


class BulkRun:
    """Owns the tasks of one bulk call, and its account; `stop` ends it early, `abandon` at once."""

    def __init__(
        self, spec: CallSpec, records: Records, pool: Pool, policy: RetryPolicy, progress: Report = None
    ) -> None:
        self._spec, self._pool = spec, pool
        self._reader = InputReader(records)
        self._caller = Caller(spec, pool, policy, self._is_held)
        self._queue = self._caller.queue
        self._recorder = OutcomeRecorder(spec)
        self._lifecycle = BatchLifecycle(spec, self._caller, settle=self._settle, stop=self.stop)
        self.tracker = ProgressTracker(self._reader.total, monotonic=pool.clock.monotonic)
        self._tell_progress = Callback(progress)
        self._stopped: tuple[StoppedReason | None, BaseException | None] = (None, None)
        self._stopped_by_caller = asyncio.Event()
        self._sizes = (0, 0)
        self._errors = 0
        self._batcher: Batcher | None = None
        self._group = asyncio.TaskGroup()
        self._feeding: asyncio.Task[None] | None = None
        self._has_share = asyncio.Event()
        self._open: dict[PendingBatch, asyncio.Task[None] | None] = {}
        self._room = asyncio.Event()

    @property
    def is_stopped(self) -> bool:
        return self._stopped[0] is not None

    def stop(self, reason: StoppedReason, error: BaseException | None = None) -> None:
        """Let what is in flight finish, and begin nothing else. The first reason counts.

        When the call is already ending, a caller's reason still limits the wait for what is in flight.
        """
        if reason in BY_CALLER:
            self._stopped_by_caller.set()
        if not self.is_stopped:
            self._stopped = (reason, error)
            waiting = (task for work, task in self._open.items() if work not in self._caller.in_flight)
            _cancel(self._feeding, *waiting)

    def abandon(self) -> None:
        """Wait no longer for what is in flight."""
        _cancel(self._feeding, *self._open.values())

    async def run(self) -> BulkResult:
        """Do the whole call; raises only when its arguments are wrong."""
        started_s = self._pool.clock.monotonic()
        self._caller.counter.begin()
        try:
            watched = (self._end_at_deadline(), self._end_of_grace(), self._keep_share())
            watches = [asyncio.ensure_future(watch) for watch in watched]
            try:
                await self._work()
            finally:
                _cancel(*watches)
                await asyncio.gather(*watches, return_exceptions=True)
        finally:
            await self._reader.aclose(self._caller.policy.grace_s)
        return self._result(self._pool.clock.monotonic() - started_s)

    async def _keep_share(self) -> None:
        """Say again and again that we use the target's quota, and use our share of it."""
        try:
            while await keep_share(self._pool, self._spec.target.quota):
                self._has_share.set()
                await self._pool.sharing_is_due()
        finally:  # also when the loop that keeps the quotas has ended, and cancels who asks there
            self._has_share.set()

    async def _end_at_deadline(self) -> None:
        if self._spec.options.deadline_s is not None:
            await self._pool.sleep(self._spec.options.deadline_s)
            self.stop("deadline")

    async def _end_of_grace(self) -> None:
        """Once the caller wants the call to end, what is in flight has only the grace."""
        await self._stopped_by_caller.wait()
        await self._pool.sleep(self._caller.policy.grace_s)
        self.abandon()

    async def _work(self) -> None:
        """Take the input to its end, or until the call must stop."""
        try:
            async with self._group:
                if not self.is_stopped:
                    self._feeding = self._group.create_task(self._feed())
        except BaseExceptionGroup as group:
            raise group.exceptions[0] from None

    async def _feed(self) -> None:
        await self._has_share.wait()
        if await self._reader.is_empty():
            return
        try:
            await self._caller.describe()
        except TargetError as error:
            try:
                await self._reader.read(self._caller.size.now)
            finally:  # also when the call is stopped while the input is slow
                self._refuse(error)
            return
        self._batcher = self._made_batcher()
        while not self.is_stopped:
            while len(self._open) >= self._width + LOOK_AHEAD:
                await self._change()
            piece = await self._batcher.take(self._caller.size.now)
            if piece is None:
                return
            self._admit(piece)

    def _made_batcher(self) -> Batcher:
        """The input as batches; a list is checked whole, and refused with all its faults."""
        spec, records = self._spec, self._reader.list
        check = partial(faults_in, spec.mode, spec.capabilities.id_field)
        if records is not None:
            refuse_faults(check(records))
        duplicate_keys = None
        if spec.identity is not None:
            left_out, refused = find_duplicates(records, spec.identity, spec.options.duplicates)
            refuse_faults(refused)
            duplicate_keys = DuplicateKeys(spec.identity, spec.options.duplicates, left_out)
        return Batcher(
            self._reader,
            check=check if records is None else lambda _: {},
            duplicate_keys=duplicate_keys,
            size=spec.size,
            bytes_max=spec.capabilities.bytes_max,
        )

    def _refuse(self, error: TargetError) -> None:
        """The table takes no records at all: those at hand fail, the others are not run."""
        self.stop("systemic", error)
        indexes, records = self._reader.take(self._caller.size.now)
        self._recorder.reach(self._reader.read_count)
        self._settle_alike(self._batch(indexes, records), Outcome.FAILED, error)

    def _admit(self, piece: NextBatch) -> None:
        self._recorder.reach(self._reader.read_count)
        self._recorder.skip(piece.skipped)
        for index, record, error in piece.refused:
            self._settle_alike(self._batch([index], [record]), Outcome.FAILED, error)
        if piece.refused:
            self._report()
        if piece.records:
            size = len(piece.records)
            self._sizes = (min(self._sizes[0] or size, size), max(self._sizes[1], size))
            work = self._batch(piece.indexes, piece.records)
            work.identities = piece.identities
            self._launch(work)

    def _batch(self, indexes: Sequence[int], records: Sequence[object]) -> PendingBatch:
        return PendingBatch(indexes, records, self._lifecycle.new_key())

    @property
    def _width(self) -> int:
        return min(self._pool.width, self._queue.width_max or self._pool.width)

    async def _change(self) -> None:
        """Wait until a batch is through or in pieces."""
        self._room.clear()
        await self._room.wait()

    def _launch(self, work: PendingBatch) -> None:
        self._open[work] = None
        if not self.is_stopped:
            self._open[work] = self._group.create_task(self._carry(work))

    async def _carry(self, work: PendingBatch) -> None:
        try:
            while not self.is_stopped:
                if work.wait_s:
                    wait_s, work.wait_s = work.wait_s, 0.0
                    await self._pool.sleep(wait_s)
                await self._pool.table_gate.wait_until_free(self._spec.table, work)
                while self._waits_for_search(work):
                    await self._change()
                left = await self._lifecycle.attempt(work)
                for piece in left:
                    if piece is not work:
                        self._launch(piece)
                if work not in left:
                    del self._open[work]
                self._report()
                if work not in left:
                    return
        finally:
            self._pool.table_gate.end(self._spec.table, work)
            self._room.set()

    def _is_held(self, work: PendingBatch) -> bool:
        return self._pool.table_gate.is_held(self._spec.table, work) or self._waits_for_search(work)

    def _waits_for_search(self, work: PendingBatch) -> bool:
        """Whether a bad record is being looked for that would stop the call before this work is sent."""
        if self._spec.options.continue_on_error or work.isolation is not None:
            return False
        if self._pool.table_gate.is_held_by(self._spec.table, work):
            return False  # the search waits for this work: it holds the table
        return any(other.isolation is not None for other in self._open)

    def _settle(self, work: PendingBatch, verdicts: Verdicts) -> None:
        succeeded, failed, unknown = self._recorder.settle(work, verdicts)
        if self._batcher is not None:
            self._batcher.release(work.identities)
        self.tracker.record(succeeded=succeeded, failed=failed, unknown=unknown)
        self._tell(work, verdicts)
        self._errors += failed + unknown
        options = self._spec.options
        if failed + unknown and not options.continue_on_error:
            self.stop("stopped on error")
        elif options.max_errors is not None and self._errors > options.max_errors:
            self.stop("too many errors")

    def _settle_alike(self, work: PendingBatch, outcome: Outcome, error: TargetError) -> None:
        self._settle(work, UniformVerdicts(Verdict(outcome, error=error), len(work)))

    def _tell(self, work: PendingBatch, verdicts: Verdicts) -> None:
        if self._spec.options.on_outcomes is not None:
            try:
                self._spec.options.on_outcomes(list(zip(work.indexes, verdicts, strict=True)))
            except Exception as error:
                self.stop("error in on_outcomes", error)

    def _report(self) -> None:
        if self._tell_progress.progress is None:
            return
        is_over = self._reader.is_over
        read = self._reader.read_count if is_over else self._reader.total
        throttled_until_s = None if self.is_stopped else self._pool.throttled_until_s
        going = Phase.DRAINING if is_over or self.is_stopped else Phase.RUNNING
        self.tracker.state(
            phase=going if throttled_until_s is None else Phase.THROTTLED,
            throttled_until_s=throttled_until_s,
            total=None if read is None else read - self._recorder.skipped,
            in_flight=self._queue.in_flight,
            retries=self._lifecycle.retries.total(),
            batch_size=self._caller.size.now,
            width=self._width,
        )
        self._tell_progress(self.tracker.snapshot())

    def _result(self, duration_s: float) -> BulkResult:
        """What became of every record; what was left behind is settled first."""
        self._recorder.reach(max(self._reader.read_count, self._reader.total or 0))
        for work in self._open:
            self._leave(work)
        reason, error = self._stopped
        if reason is None and self._reader.error is not None:
            reason, error = "error in input", self._reader.error
        result = BulkResult(
            mode=self._spec.mode,
            outcomes=self._recorder.outcomes,
            errors=sorted(self._recorder.errors, key=attrgetter("index")),
            duration_s=duration_s,
            counts_exact=self._lifecycle.counts_exact,
            stopped_reason=reason,
            stopped_error=error,
            statistics=self._statistics(),
            ids=self._recorder.ids,
        )
        self.tracker.record(not_run=result.not_run_count)
        self.tracker.state(total=len(result.outcomes) - result.skipped_count)
        self.tracker.finish()
        self._tell_progress(self.tracker.snapshot())
        return result

    def _leave(self, work: PendingBatch) -> None:
        """Settle work that was stopped: unknown when it may have taken effect, otherwise not run.

        Pieces of a batch that failed fail with what stopped the call, when that was found to be everyone's trouble.
        """
        self._pool.table_gate.end(self._spec.table, work)
        reason, error = self._stopped
        if work.unresolved is not None:
            self._settle_alike(work, Outcome.UNKNOWN, work.unresolved)
        elif work.isolation is not None and reason == "systemic" and isinstance(error, TargetError):
            self._settle_alike(work, Outcome.FAILED, error)

    def _statistics(self) -> Statistics:
        return Statistics(
            calls=self._caller.calls,
            requests=self._caller.requests,
            throttles=self._lifecycle.throttles,
            waited_s=self._queue.waited_s,
            retries=dict(self._lifecycle.retries),
            batch_size_min=self._sizes[0],
            batch_size_max=self._sizes[1],
            batch_size_last=self._caller.size.now,
            in_flight_max=self._queue.in_flight_max,
            width_last=self._width,
        )


def _cancel(*tasks: asyncio.Task[None] | None) -> None:
    """Cancel others: who cancels goes on."""
    for task in tasks:
        if task is not None and task is not asyncio.current_task():
            task.cancel()
