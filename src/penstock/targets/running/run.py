"""One bulk call from its first record to its result."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from penstock.targets.model import TargetError
from penstock.targets.pool import Pool
from penstock.targets.progress import Progress, ProgressTracker
from penstock.targets.results import BulkResult
from penstock.targets.running.calling import Caller
from penstock.targets.running.crew import Crew
from penstock.targets.running.inputs import Records
from penstock.targets.running.job import Job
from penstock.targets.running.opening import described, feed_of
from penstock.targets.running.party import Party
from penstock.targets.running.reader import Reader
from penstock.targets.running.reporting import Reporter
from penstock.targets.running.stopping import Stopping

__all__ = ["Run"]


class Run:
    """Opens, works and closes; `stop` ends it early, `abandon` at once."""

    def __init__(
        self, job: Job, records: Records, pool: Pool, progress: Callable[[Progress], None] | None = None
    ) -> None:
        self._job, self._pool = job, pool
        self._reader = Reader(records)
        self._caller = Caller(job.target, pool, Party(job.options.max_parallel_batches))
        self.reporter = Reporter(ProgressTracker(self._reader.total, monotonic=pool.clock.monotonic), progress)
        self.stopping = Stopping()
        self._crew: Crew | None = None

    def abandon(self) -> None:
        """Wait no longer for what is in flight."""
        if self._crew is not None:
            self._crew.abandon()

    async def run(self) -> BulkResult:
        """Do the whole call; raises only when its arguments are wrong."""
        started_s = self._pool.clock.monotonic()
        try:
            async with self._watched():
                crew = await self._work()
        finally:
            await self._reader.aclose(self._pool.policy.grace_s)
        return crew.result(self._pool.clock.monotonic() - started_s)

    async def _work(self) -> Crew:
        if await self.stopping.guard(self._reader.is_empty()) is not False:
            return self._gathered(self._job)
        try:
            job = await self.stopping.guard(described(self._job, self._caller))
        except TargetError as error:
            crew = self._gathered(self._job)
            await self.stopping.guard(self._reader.read(self._job.options.batch_size))
            crew.refuse(error)
            return crew
        crew = self._gathered(job or self._job)
        if job is not None:
            await crew.work(feed_of(job, self._reader))
        return crew

    def _gathered(self, job: Job) -> Crew:
        self._crew = Crew(job, self._reader, self._caller, reporter=self.reporter, stopping=self.stopping)
        return self._crew

    @asynccontextmanager
    async def _watched(self) -> AsyncIterator[None]:
        watches = [asyncio.ensure_future(self._end_at_deadline()), asyncio.ensure_future(self._end_of_grace())]
        try:
            yield
        finally:
            for watch in watches:
                watch.cancel()
            await asyncio.gather(*watches, return_exceptions=True)

    async def _end_at_deadline(self) -> None:
        if self._job.options.deadline_s is not None:
            await self._pool.sleep(self._job.options.deadline_s)
            self.stopping.stop("deadline")

    async def _end_of_grace(self) -> None:
        await self.stopping.wait()
        if self.stopping.is_by_caller:
            await self._pool.sleep(self._pool.policy.grace_s)
            self.abandon()
