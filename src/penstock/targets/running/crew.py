"""The batches of one bulk call: read as there is room, carried side by side, settled as they are through."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial

from penstock.targets.model import Outcome, TargetError, Verdict
from penstock.targets.results import BulkResult, Statistics
from penstock.targets.rules.sizing import BatchSize
from penstock.targets.running.account import Account, Counts
from penstock.targets.running.calling import Caller
from penstock.targets.running.carrying import Carrier
from penstock.targets.running.desk import Desk
from penstock.targets.running.feed import Feed, Piece
from penstock.targets.running.job import Job
from penstock.targets.running.reader import Reader
from penstock.targets.running.reporting import Reporter
from penstock.targets.running.stopping import Stopping
from penstock.targets.running.work import Work
from penstock.targets.target import Same

__all__ = ["Crew"]

LOOK_AHEAD = 2
"""Batches that wait for a slot, so that none stays idle while the input is read."""


class Crew:
    """Owns the tasks of one bulk call, and its account."""

    def __init__(self, job: Job, reader: Reader, caller: Caller, *, reporter: Reporter, stopping: Stopping) -> None:
        self._job, self._reader = job, reader
        self._pool, self._party = caller.pool, caller.party
        self._reporter, self._stopping = reporter, stopping
        self._account = Account(job.mode, job.options, job.own_id)
        self._size = BatchSize(job.options, job.traits)
        self._sizes: tuple[int, int] | None = None
        self._errors = 0
        desk = Desk(self._is_held, self._settle, self._launch, stopping.stop, self._report)
        self._carrier = Carrier(job, desk, caller, self._size)
        self._feed: Feed | None = None
        self._group: asyncio.TaskGroup | None = None
        self._feeding: asyncio.Task[None] | None = None
        self._open: dict[Work, asyncio.Task[None] | None] = {}
        self._room = asyncio.Event()
        stopping.on_stop(self._halt)

    async def work(self, feed: Feed) -> None:
        """Take the feed to its end, or until the call must stop."""
        self._feed = feed
        async with asyncio.TaskGroup() as self._group:
            self._feeding = self._group.create_task(self._read(feed))

    def abandon(self) -> None:
        """Wait no longer for what is in flight."""
        for task in (self._feeding, *self._open.values()):
            if task is not None:
                task.cancel()

    def refuse(self, error: TargetError) -> None:
        """The table takes no records at all: those at hand fail, the others are not run."""
        self._stopping.stop("systemic", error)
        indexes, records = self._reader.take(self._size.now)
        self._account.reach(self._reader.read_count)
        self._settle(
            Work(indexes, records, self._carrier.new_key()), Same(Verdict(Outcome.FAILED, error=error), len(records))
        )

    def _halt(self) -> None:
        """Let what is in flight finish; nothing else is begun."""
        waiting = (task for work, task in self._open.items() if work not in self._carrier.in_flight)
        for task in (self._feeding, *waiting):
            if task is not None and task is not asyncio.current_task():
                task.cancel()

    async def _read(self, feed: Feed) -> None:
        while not self._stopping.is_set:
            await self._until_room()
            piece = await feed.take(self._size.now)
            if piece is None:
                return
            self._admit(piece)

    async def _until_room(self) -> None:
        while len(self._open) >= self._width + LOOK_AHEAD:
            self._room.clear()
            await self._room.wait()

    @property
    def _width(self) -> int:
        return min(self._pool.width, self._party.width_max or self._pool.width)

    def _admit(self, piece: Piece) -> None:
        self._account.reach(self._reader.read_count)
        self._account.skip(piece.skipped)
        for index, record, error in piece.refused:
            verdict = Verdict(Outcome.FAILED, error=error)
            self._settle(Work([index], [record], self._carrier.new_key()), [verdict])
        if piece.records:
            smallest, biggest = self._sizes or (len(piece.records), 0)
            self._sizes = (min(smallest, len(piece.records)), max(biggest, len(piece.records)))
            self._launch(Work(piece.indexes, piece.records, self._carrier.new_key(), piece.identities))

    def _launch(self, work: Work) -> None:
        self._open[work] = None
        if self._group is not None and not self._stopping.is_set:
            self._open[work] = self._group.create_task(self._carry(work))

    async def _carry(self, work: Work) -> None:
        try:
            is_again = True
            while is_again and not self._stopping.is_set:
                if work.wait_s:
                    wait_s, work.wait_s = work.wait_s, 0.0
                    await self._pool.sleep(wait_s)
                await self._until_free(work)
                is_again = await self._carrier.attempt(work)
            if not is_again:
                del self._open[work]
        finally:
            self._pool.races.end(self._job.table, work)
            self._room.set()

    async def _until_free(self, work: Work) -> None:
        await self._pool.races.passage(self._job.table, work)
        while self._waits_for_search(work):
            self._room.clear()
            await self._room.wait()

    def _is_held(self, work: Work) -> bool:
        return self._pool.races.is_held(self._job.table, work) or self._waits_for_search(work)

    def _waits_for_search(self, work: Work) -> bool:
        """Whether a bad record is being looked for that would stop the call before this work is sent."""
        if self._job.options.continue_on_error or work.isolation is not None:
            return False
        if self._pool.races.is_held_by(self._job.table, work):
            return False  # the search waits for this work: it holds the table
        return any(other.isolation is not None for other in self._open)

    def _settle(self, work: Work, verdicts: Sequence[Verdict]) -> None:
        diagnose = partial(self._carrier.diagnosing.of_verdicts, work, verdicts)
        counts = self._account.settle(work.indexes, work.records, verdicts, diagnose)
        if self._feed is not None:
            self._feed.release(work.identities)
        self._reporter.settled(counts)
        self._tell(work, verdicts)
        if counts.has_trouble:
            self._stop_on_errors(counts)
        self._report()

    def _stop_on_errors(self, counts: Counts) -> None:
        self._errors += counts.failed + counts.unknown
        options = self._job.options
        if not options.continue_on_error:
            self._stopping.stop("stopped on error")
        elif options.max_errors is not None and self._errors > options.max_errors:
            self._stopping.stop("too many errors")

    def _tell(self, work: Work, verdicts: Sequence[Verdict]) -> None:
        if self._job.options.on_outcomes is not None:
            try:
                self._job.options.on_outcomes(list(zip(work.indexes, verdicts, strict=True)))
            except Exception as error:
                self._stopping.stop("error in on_outcomes", error)

    def _report(self) -> None:
        if not self._reporter.is_heard:
            return
        is_over = self._reader.is_over
        read = self._reader.read_count if is_over else self._reader.total
        self._reporter.report(
            total=None if read is None else read - self._account.skipped,
            throttled_until_s=None if self._stopping.is_set else self._pool.throttled_until_s,
            is_draining=is_over or self._stopping.is_set,
            in_flight=self._party.in_flight,
            retries=self._carrier.retries.total(),
            batch_size=self._size.now,
            width=self._width,
        )

    def result(self, duration_s: float) -> BulkResult:
        """What became of every record; what was left behind is settled first."""
        self._account.reach(max(self._reader.read_count, self._reader.total or 0))
        for work in self._open:
            self._leave(work)
        reason, error = self._stopping.reason, self._stopping.error
        if reason is None and self._reader.error is not None:
            reason, error = "error in input", self._reader.error
        result = BulkResult(
            mode=self._job.mode,
            outcomes=self._account.outcomes,
            errors=self._account.errors,
            duration_s=duration_s,
            counts_exact=self._carrier.counts_exact,
            stopped_reason=reason,
            stopped_error=error,
            statistics=self._statistics(),
            ids=self._account.ids,
        )
        self._reporter.finish(total=len(result.outcomes) - result.skipped_count, not_run=result.not_run_count)
        return result

    def _leave(self, work: Work) -> None:
        """Settle work that was stopped: unknown when it may have taken effect, otherwise not run.

        Pieces of a batch that failed fail with what stopped the call, when that was found to be everyone's trouble.
        """
        self._pool.races.end(self._job.table, work)
        error = self._stopping.error
        if work.doubt is not None:
            self._settle(work, Same(Verdict(Outcome.UNKNOWN, error=work.doubt), len(work)))
        elif work.isolation is not None and self._stopping.reason == "systemic" and isinstance(error, TargetError):
            self._settle(work, Same(Verdict(Outcome.FAILED, error=error), len(work)))

    def _statistics(self) -> Statistics:
        smallest, biggest = self._sizes or (0, 0)
        return Statistics(
            calls=self._carrier.calls,
            throttles=self._carrier.throttles,
            waited_s=self._party.waited_s,
            retries=dict(self._carrier.retries),
            batch_size_min=smallest,
            batch_size_max=biggest,
            batch_size_last=self._size.now,
            in_flight_max=self._party.in_flight_max,
            width_last=self._width,
        )
