"""Finds out whether a table takes bulk calls, and sends its records one by one when it does not."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

from penstock.targets.composite.result_merge import MergedProgress, MergedResult, with_positions, with_time_left
from penstock.targets.executor import BulkCancelled, BulkExecutor
from penstock.targets.model import DONE, BulkOptions, ErrorKind, Mode, TargetError, Verdict
from penstock.targets.progress import Report
from penstock.targets.results import BulkResult
from penstock.targets.running.input import (
    InputReader,
    Records,
    checked_records,
    checked_table,
    faults_in,
    refuse_faults,
)
from penstock.targets.target import Answer, Batch, Capabilities, Reference, Target

__all__ = ["Prober"]

Fallback: TypeAlias = Callable[[str, Any, str], Awaitable[Any]]
"""Takes a table, a record (or an id to delete) and a source; returns a `Verdict`, or the record's id, or None."""
AFTER_FIRST = range(1, sys.maxsize)
PASSING = (ErrorKind.CONNECTION, ErrorKind.THROTTLED, ErrorKind.TOKEN)
INCONCLUSIVE = frozenset(
    {ErrorKind.THROTTLED, ErrorKind.TOKEN, ErrorKind.PERMISSION, ErrorKind.CONNECTION, ErrorKind.SERVER, ErrorKind.RACE}
)
"""A first record that failed so says nothing about what its table takes."""


class Prober:
    """Remembers, for each table and mode, whether bulk calls work; tables are known whatever the case of their name.

    The target's metadata are asked first. Where they do not object, the first record goes alone.
    """

    def __init__(self, executor: BulkExecutor) -> None:
        self._executor = executor
        self._known: dict[tuple[str, Mode], bool] = {}

    def is_supported(self, table: str, mode: Mode) -> bool | None:
        """What is known so far; None is nothing."""
        return self._known.get((table.casefold(), mode))

    def mark(self, table: str, mode: Mode, *, is_supported: bool) -> None:
        """Say what a table takes, from other knowledge."""
        self._known[table.casefold(), mode] = is_supported

    def forget(self, table: str, mode: Mode) -> None:
        """Probe again next time."""
        self._known.pop((table.casefold(), mode), None)

    async def run(
        self,
        table: str,
        records: Records,
        *,
        mode: Mode,
        fallback: Fallback,
        options: BulkOptions | None = None,
        progress: Report = None,
    ) -> BulkResult:
        """Run a bulk call, or the fallback for every record where the table takes none.

        `fallback(table, record, source)` sends one record and returns its verdict or its id; it runs under the limits
        and retries of the executor, and raises `TargetError` as a target does.
        """
        call = _Call(self._executor, Mode(mode), checked_table(table), self._executor.chosen(options), progress)
        records = checked_records(mode, records)
        if self.is_supported(table, mode) is None:
            clock = self._executor.pool.clock
            started_s = clock.monotonic()
            if not await self._is_described(call, records):
                self.mark(table, mode, is_supported=False)
            call.options = with_time_left(call.options, clock.monotonic() - started_s)
        match self.is_supported(table, mode):
            case False:
                return await call.singly(records, fallback)
            case None if call.options.duplicates == "keep-order":
                return await self._probed(call, records, fallback)
        return await self._in_bulk(call, records, fallback)

    async def _is_described(self, call: _Call, records: Records) -> bool:
        """Whether the target's metadata allow the call; a list is checked whole before anything is sent."""
        id_field = None
        try:
            id_field = (await self._executor.describe(call.mode, call.table, call.options)).id_field
        except TargetError as error:
            if error.kind is ErrorKind.UNSUPPORTED:
                return False
        except TimeoutError:
            pass  # the call itself will end at the deadline
        if isinstance(records, Sequence):
            refuse_faults(faults_in(call.mode, id_field, records))
        return True

    async def _in_bulk(self, call: _Call, records: Records, fallback: Fallback) -> BulkResult:
        """All at once. If the table takes none of it, a list can still go one by one."""
        result = await call.in_bulk(records, call.progress)
        self._learn(call, result)
        is_untouched = not (result.success_count or result.unknown_count)
        if _is_unsupported(result) and is_untouched and isinstance(records, Sequence):
            call.options = with_time_left(call.options, result.duration_s)
            return await call.singly(records, fallback)
        return result

    async def _probed(self, call: _Call, records: Records, fallback: Fallback) -> BulkResult:
        """The first record alone, then the others."""
        parted = _PartedInput(records)
        try:
            probe = await call.in_bulk(parted.first(), None)
            self._learn(call, probe)
            call.options = with_time_left(call.options, probe.duration_s)
            if _is_unsupported(probe):
                return await call.singly(parted.whole(), fallback)
            return await call.continued(probe, parted.others(), parted.total)
        finally:
            await parted.aclose(self._executor.policy.grace_s)

    def _learn(self, call: _Call, result: BulkResult) -> None:
        if _is_unsupported(result):
            self.mark(call.table, call.mode, is_supported=False)
        elif result.success_count or any(error.kind not in INCONCLUSIVE for error in result.errors):
            self.mark(call.table, call.mode, is_supported=True)


def _is_unsupported(result: BulkResult) -> bool:
    cause = result.stopped_error
    is_stopped = isinstance(cause, TargetError) and cause.kind is ErrorKind.UNSUPPORTED
    return is_stopped or any(error.kind is ErrorKind.UNSUPPORTED for error in result.errors)


class _PartedInput:
    """An input for two calls, the first record for one and the others for the next; whoever made it closes it.

    The calls wait for a stream themselves, so that their deadline and a cancellation end that.
    """

    def __init__(self, records: Records) -> None:
        self._reader = InputReader(records)
        self._first: Sequence[Any] = ()

    @property
    def total(self) -> int | None:
        """How many records there are, if that is known before they are read."""
        return self._reader.total

    def first(self) -> Records:
        return self._reader.list[:1] if self._reader.list is not None else self._read_first()

    def others(self) -> Records:
        return self._reader.list[1:] if self._reader.list is not None else self._read()

    def whole(self) -> Records:
        """All of it, once the first record was read."""
        return self._reader.list if self._reader.list is not None else self._read(self._first)

    async def aclose(self, patience_s: float) -> None:
        await self._reader.aclose(patience_s)

    async def _read_first(self) -> AsyncIterator[Any]:
        self._first = await self._next()
        for record in self._first:
            yield record

    async def _read(self, before: Sequence[Any] = ()) -> AsyncIterator[Any]:
        for record in before:
            yield record
        while records := await self._next():
            yield records[0]

    async def _next(self) -> Sequence[Any]:
        """The next record, if there is one."""
        await self._reader.read(1)
        _, records = self._reader.take(1)
        if not records and self._reader.error is not None:
            raise self._reader.error
        return records


@dataclass
class _Call:
    """One call of the prober, in bulk or one by one."""

    executor: BulkExecutor
    mode: Mode
    table: str
    options: BulkOptions
    progress: Report

    async def in_bulk(self, records: Records, progress: Report) -> BulkResult:
        return await self.executor.start(self.mode, self.table, records, self.options, progress)

    async def singly(self, records: Records, fallback: Fallback) -> BulkResult:
        """Run records through the fallback, in the same pool."""
        single = SingleTarget(self.executor.target, fallback)
        executor = BulkExecutor(single, options=self.options, pool=self.executor.pool, policy=self.executor.policy)
        return await executor.start(self.mode, self.table, records, self.options, self.progress)

    async def continued(self, probe: BulkResult, others: Records, total: int | None) -> BulkResult:
        """Run the records after the first, if there are any, and put both results together."""
        clock = self.executor.pool.clock
        started_s = clock.monotonic() - probe.duration_s
        merged = MergedResult(self.mode, total or 0)
        merged.add(range(1), probe)
        progress = MergedProgress(total, self.progress, monotonic=clock.monotonic)
        if probe.outcomes:
            progress.add(probe)
        if probe.outcomes and merged.stopped_reason is None:
            options = with_positions(self.options, AFTER_FIRST)
            call = partial(self.executor.start, self.mode, self.table, others, options, progress.part())
            try:
                await merged.add_call(AFTER_FIRST, call)
            except asyncio.CancelledError as cancelled:
                if BulkCancelled.found_in(cancelled) is None:
                    raise
                raise cancelled from BulkCancelled(merged.result(clock.monotonic() - started_s))
        result = merged.result(clock.monotonic() - started_s)
        progress.finish([result])
        return result


class SingleTarget(Target):
    """Sends every record by a function, in the name of another target's sources."""

    def __init__(self, target: Target, send_one: Fallback) -> None:
        self.name = f"{target.name}, one by one"
        self.sources = target.sources
        self.width, self.width_max = target.width, target.width_max
        self.options_type, self.rate_limit, self.quota = target.options_type, target.rate_limit, target.quota
        self._target, self._send_one = target, send_one

    async def send(self, batch: Batch, source: str) -> Answer:
        try:
            told = await self._send_one(batch.table, batch.records[0], source)
        except OSError as error:  # timeouts are among them
            raise TargetError(
                f"no answer: {type(error).__name__}", kind=ErrorKind.CONNECTION, maybe_applied=True
            ) from error
        is_told = isinstance(told, Verdict)
        verdict = told if is_told else Verdict(DONE[batch.mode], told)
        return Answer([verdict], counts_exact=is_told or batch.mode is not Mode.UPSERT)

    async def describe(self, table: str, mode: Mode, options: BulkOptions, source: str) -> Capabilities:
        id_field = None
        try:  # the target tells records of one key apart only when it knows the table
            id_field = (await self._target.describe(table, mode, options, source)).id_field
        except TargetError as error:
            if error.kind in PASSING:
                raise
        return Capabilities(id_field=id_field, is_idempotent=mode in (Mode.UPDATE, Mode.UPSERT), records_max=1)

    async def refresh(self, source: str) -> None:
        await self._target.refresh(source)

    def identifier(self, table: str, mode: Mode, options: BulkOptions) -> Callable[[Any], Hashable | None] | None:
        return self._target.identifier(table, mode, options)

    def references(self, table: str, record: Any, options: BulkOptions) -> Iterable[Reference]:
        return self._target.references(table, record, options)
