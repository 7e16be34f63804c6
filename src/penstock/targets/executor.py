"""Bulk operations against a remote: create, update, upsert and delete many records, with an outcome for each."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from typing import Any

from penstock.clock import operation_id
from penstock.errors import PenstockError
from penstock.targets.model import BulkOptions, Mode
from penstock.targets.pool import Pool
from penstock.targets.progress import Progress, Report
from penstock.targets.results import BulkResult
from penstock.targets.rules.retry import RetryPolicy
from penstock.targets.running.bulk_run import BulkRun
from penstock.targets.running.calls import Caller, CallSpec
from penstock.targets.running.input import Records, checked_options, checked_records, checked_table, named_options
from penstock.targets.target import BulkMethods, Capabilities, Target

__all__ = ["BulkCall", "BulkCancelled", "BulkExecutor"]


class BulkCancelled(PenstockError):
    """What a cancelled bulk call had done by then, in `result`.

    It is the cause (`__cause__`) of the `CancelledError`, which stays what asyncio's timeouts and groups expect.
    """

    def __init__(self, result: BulkResult) -> None:
        super().__init__(f"the bulk call was cancelled; so far: {result.outcomes!r}")
        self.result = result

    @classmethod
    def found_in(cls, error: BaseException | None) -> BulkResult | None:
        """The partial result behind a `CancelledError` or the `TimeoutError` it became."""
        while error is not None and not isinstance(error, BulkCancelled):
            error = error.__cause__ or error.__context__  # timeouts of Python 3.11.2 name no cause
        return error.result if error is not None else None


class BulkCall:
    """A bulk call under way. Await it for its result."""

    def __init__(self, run: BulkRun) -> None:
        self._run = run
        self._task = asyncio.ensure_future(run.run())

    def __await__(self) -> Generator[Any, None, BulkResult]:
        return self._result().__await__()

    @property
    def progress(self) -> Progress:
        """How far it has come."""
        return self._run.tracker.snapshot()

    def stop(self) -> None:
        """Begin no more batches, and give those in flight a moment; whoever awaits the call gets its result."""
        self._run.stop("cancelled")

    async def cancel(self) -> BulkResult:
        """Stop, and return what was done."""
        self.stop()
        return await self._result()

    async def _result(self) -> BulkResult:
        try:
            return await asyncio.shield(self._task)
        except asyncio.CancelledError as cancelled:
            if self._task.cancelled():
                raise
            self._run.stop("cancelled")
            while not self._task.done():
                try:
                    await asyncio.wait((self._task,))
                except asyncio.CancelledError:
                    self._run.abandon()  # who cancels again does not want to wait for what is in flight
            if self._task.cancelled():
                raise
            raise cancelled from self._task.exception() or BulkCancelled(self._task.result())


class BulkExecutor(BulkMethods):
    """Runs bulk calls against one target.

    Executors of one target share its slots, and so do targets of one quota that name the same sources and limits. With
    a `pool`, its clock, sleep and chance are used, and its policy unless one is given; share one pool between other
    targets of one remote to share limits.
    """

    def __init__(
        self,
        target: Target,
        *,
        options: BulkOptions | None = None,
        pool: Pool | None = None,
        policy: RetryPolicy | None = None,
    ) -> None:
        self.target = target
        self.options = options or BulkOptions()
        self._policy, self._own_pool = policy, pool

    @property
    def pool(self) -> Pool:
        """The slots of its calls."""
        return self._own_pool or Pool.shared(self.target, self._policy)

    @property
    def policy(self) -> RetryPolicy:
        """How patient its calls are."""
        return self._policy or (self._own_pool.policy if self._own_pool else RetryPolicy())

    async def describe(self, mode: Mode, table: str, options: BulkOptions) -> Capabilities:
        """How a table behaves, asked under the same limits and retries.

        Raises what no retry could avoid, and `TimeoutError` at the deadline.
        """
        spec = CallSpec(self.target, checked_table(table), mode, self.chosen(options))
        async with asyncio.timeout(options.deadline_s):
            await Caller(spec, self.pool, self.policy).describe()
            return spec.capabilities

    def start(
        self,
        mode: Mode,
        table: str,
        records: Records,
        options: BulkOptions | None = None,
        progress: Report = None,
        **changes: Any,
    ) -> BulkCall:
        """Start a bulk call and return at once; wrong arguments are refused here, before anything is sent.

        `options`, and over them `changes`, single options by name, are laid over the executor's.
        """
        mode = Mode(mode)
        chosen = self.chosen(options, **changes)
        pool = self.pool
        call_id = operation_id(pool.clock, pool.entropy)
        spec = CallSpec(self.target, checked_table(table), mode, chosen, call_id)
        return BulkCall(BulkRun(spec, checked_records(mode, records), pool, self.policy, progress))

    def chosen(self, options: BulkOptions | None, **changes: Any) -> BulkOptions:
        """The options of a call: what it gives, laid over the executor's, and checked."""
        chosen = self.options
        for given in (options, named_options(self.target, changes) if changes else None):
            if given is not None:
                self.target.check_options(given)
                chosen = given.laid_over(chosen)
        self.target.check_options(chosen)
        return checked_options(chosen, self.target.batch_size)
