"""One bulk call from its first record to its result."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial

from penstock.targets.model import ErrorKind, TargetError
from penstock.targets.pool import Pool
from penstock.targets.progress import Progress, ProgressTracker
from penstock.targets.quotas import RENEW_S, current_quotas, keep_share
from penstock.targets.results import BulkResult
from penstock.targets.rules.batch_size import BatchSize
from penstock.targets.rules.duplicates import DuplicateKeys, find_duplicates
from penstock.targets.rules.retry import Act, RetryPolicy, after_lost_question
from penstock.targets.running.arguments import Records, faults_in, refuse_faults
from penstock.targets.running.batch import CallSpec
from penstock.targets.running.batcher import Batcher, InputReader
from penstock.targets.running.calls import SlotCaller
from penstock.targets.running.outcomes import Callback
from penstock.targets.running.scheduler import BatchScheduler
from penstock.targets.running.stop_signal import StopSignal
from penstock.targets.running.waiters import CallQueue

__all__ = ["BulkRun", "batcher_for", "described"]


async def described(spec: CallSpec, caller: SlotCaller) -> CallSpec:
    """The spec with the capabilities of its table; raises the `TargetError` that no retry could avoid."""
    pool, policy = caller.pool, caller.policy
    tries: Counter[ErrorKind] = Counter()
    while True:
        try:
            capabilities = await caller.call(partial(spec.target.describe, spec.table, spec.mode, spec.options))
            return replace(spec, capabilities=capabilities)
        except TargetError as error:
            tries[error.kind] += 1
            move = after_lost_question(error, tries, policy)
            if move.act is Act.AGAIN and move.retry:
                await pool.sleep(policy.wait_s(move.retry, pool.entropy.jitter))
            elif move.act is not Act.AGAIN:
                if error.kind is not ErrorKind.CONNECTION or not 0 < pool.silent_s < policy.outage_s:
                    raise
                await pool.sleep(policy.outage_wait_s(pool.silent_s))


def batcher_for(spec: CallSpec, reader: InputReader) -> Batcher:
    """The input as batches; a list is checked whole, and refused with all its faults."""
    check = partial(faults_in, spec.mode, spec.capabilities.id_field)
    if reader.list is not None:
        refuse_faults(check(reader.list))
    return Batcher(
        reader,
        check=check if reader.list is None else lambda _: {},
        duplicate_keys=_duplicate_keys(spec, reader),
        size=spec.size,
        bytes_max=spec.capabilities.bytes_max,
    )


def _duplicate_keys(spec: CallSpec, reader: InputReader) -> DuplicateKeys | None:
    identity, policy = spec.identity, spec.options.duplicates
    if identity is None:
        return None
    left_out, refused = find_duplicates(reader.list, identity, policy)
    refuse_faults(refused)
    return DuplicateKeys(identity, policy, left_out)


class BulkRun:
    """Opens, works and closes; `stop` ends it early, `abandon` at once."""

    def __init__(
        self,
        spec: CallSpec,
        records: Records,
        pool: Pool,
        policy: RetryPolicy,
        progress: Callable[[Progress], None] | None = None,
    ) -> None:
        self._spec, self._pool = spec, pool
        self._reader = InputReader(records)
        self._caller = SlotCaller(spec.target, pool, CallQueue(spec.options.max_parallel_batches), policy)
        self.tracker = ProgressTracker(self._reader.total, monotonic=pool.clock.monotonic)
        self._tell_progress = Callback(progress)
        self.stop_signal = StopSignal()
        self._scheduler: BatchScheduler | None = None

    def abandon(self) -> None:
        """Wait no longer for what is in flight."""
        if self._scheduler is not None:
            self._scheduler.abandon()

    async def run(self) -> BulkResult:
        """Do the whole call; raises only when its arguments are wrong."""
        started_s = self._pool.clock.monotonic()
        self._caller.count_requests()
        try:
            await self._begin_share()
            async with self._watched():
                scheduler = await self._work()
        finally:
            await self._reader.aclose(self._caller.policy.grace_s)
        return scheduler.result(self._pool.clock.monotonic() - started_s)

    async def _work(self) -> BatchScheduler:
        if await self.stop_signal.guard(self._reader.is_empty()) is not False:
            return self._gathered(self._spec)
        try:
            spec = await self.stop_signal.guard(described(self._spec, self._caller))
        except TargetError as error:
            scheduler = self._gathered(self._spec)
            await self.stop_signal.guard(self._reader.read(BatchSize(self._spec.options, self._spec.capabilities).now))
            scheduler.refuse(error)
            return scheduler
        scheduler = self._gathered(spec or self._spec)
        if spec is not None:
            await scheduler.work(batcher_for(spec, self._reader))
        return scheduler

    def _gathered(self, spec: CallSpec) -> BatchScheduler:
        self._scheduler = BatchScheduler(
            spec,
            self._reader,
            self._caller,
            tracker=self.tracker,
            tell_progress=self._tell_progress,
            stop_signal=self.stop_signal,
        )
        return self._scheduler

    @asynccontextmanager
    async def _watched(self) -> AsyncIterator[None]:
        watched = (self._end_at_deadline(), self._end_of_grace(), self._keep_share())
        watches = [asyncio.ensure_future(watch) for watch in watched]
        try:
            yield
        finally:
            for watch in watches:
                watch.cancel()
            await asyncio.gather(*watches, return_exceptions=True)

    async def _begin_share(self) -> None:
        """Learn our share before the first call; the wait for it is not long."""
        quota, quotas = self._spec.target.quota, current_quotas()
        if quota is not None and quotas is not None:
            await keep_share(self._pool, quota, quotas)

    async def _keep_share(self) -> None:
        """Say again and again that we use the target's quota, and use our share of it."""
        quota, quotas = self._spec.target.quota, current_quotas()
        while quota is not None and quotas is not None:
            await keep_share(self._pool, quota, quotas)
            await self._pool.sleep(RENEW_S)

    async def _end_at_deadline(self) -> None:
        if self._spec.options.deadline_s is not None:
            await self._pool.sleep(self._spec.options.deadline_s)
            self.stop_signal.stop("deadline")

    async def _end_of_grace(self) -> None:
        await self.stop_signal.wait_for_caller()
        await self._pool.sleep(self._caller.policy.grace_s)
        self.abandon()
