"""Sends records that refer to each other in waves: parents first, circles in two passes, no children of failed parents.

Records are ordered by what they actually refer to, over all tables of a run. A reference that closes a circle is left
out when the record is sent and set by an update when all are there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import replace
from typing import Any

from penstock.errors import PenstockError
from penstock.targets.composite.ordering import PRESENT, Place, ReferenceGraph
from penstock.targets.composite.result_merge import MergedProgress, MergedResult, with_positions, with_time_left
from penstock.targets.executor import BulkCancelled, BulkExecutor
from penstock.targets.model import BadInput, BulkOptions, Mode, Outcome, Record, TargetError
from penstock.targets.progress import Report
from penstock.targets.results import BulkResult

__all__ = ["WavesCancelled", "in_waves", "tables_in_waves"]

TABLES_MAX = 4
"""Tables of a wave that are sent at the same time."""


class WavesCancelled(PenstockError):
    """What cancelled waves had done by then, by table; the cause of the `CancelledError`."""

    def __init__(self, results: Mapping[str, BulkResult]) -> None:
        super().__init__(f"the waves were cancelled; so far: {dict(results)}")
        self.results = results


async def in_waves(
    executor: BulkExecutor,
    table: str,
    records: Sequence[Record],
    *,
    mode: Mode = Mode.CREATE,
    options: BulkOptions | None = None,
    progress: Report = None,
) -> BulkResult:
    """Create or upsert records of one table that may refer to each other."""
    try:
        results = await tables_in_waves(executor, {table: records}, mode=mode, options=options, progress=progress)
    except asyncio.CancelledError as cancelled:
        if isinstance(cancelled.__cause__, WavesCancelled):
            raise cancelled from BulkCancelled(cancelled.__cause__.results[table])
        raise
    return results[table]


async def tables_in_waves(
    executor: BulkExecutor,
    tables: Mapping[str, Sequence[Record]],
    *,
    mode: Mode = Mode.CREATE,
    options: BulkOptions | Mapping[str, BulkOptions] | None = None,
    progress: Report = None,
) -> dict[str, BulkResult]:
    """Create or upsert records of several tables that may refer to each other; a result for each table.

    What a record refers to is what `Target.references` says. A record whose parent failed, is unknown or was not run
    is not sent (`PARENT_FAILED`). A record that was sent, but whose circle could not be closed, counts as failed with
    the code `REFERENCE_NOT_SET`: it exists, and an update is what it lacks. A deadline holds for the whole run. Input
    that turns out to be wrong is refused with `BadInput` while nothing was sent; later it stops the run.
    """
    if mode not in (Mode.CREATE, Mode.UPSERT):
        raise BadInput(f"waves create or upsert records; to {mode} them no order is needed")
    waves = _Waves(executor, tables, mode, options, progress)
    try:
        await waves.run()
    except asyncio.CancelledError as cancelled:
        raise cancelled from WavesCancelled(waves.results())
    results = waves.results()
    wrong = next((result.input_error for result in results.values() if result.input_error is not None), None)
    if wrong is not None and not any(result.statistics.calls for result in results.values()):
        raise wrong
    return results


class _Waves:
    """One run."""

    def __init__(
        self,
        executor: BulkExecutor,
        tables: Mapping[str, Sequence[Record]],
        mode: Mode,
        options: BulkOptions | Mapping[str, BulkOptions] | None,
        progress: Report,
    ) -> None:
        self._executor, self._tables, self._mode = executor, tables, mode
        given = options if isinstance(options, Mapping) else dict.fromkeys(tables, options)
        self._options = {table: executor.chosen(given.get(table)) for table in tables}
        self._merged = {table: MergedResult(mode, len(records)) for table, records in tables.items()}
        self._clock = executor.pool.clock
        self._started_s = self._clock.monotonic()
        total = sum(map(len, tables.values()))
        self._progress = MergedProgress(total, progress, monotonic=self._clock.monotonic)

    def results(self) -> dict[str, BulkResult]:
        elapsed_s = self._clock.monotonic() - self._started_s
        return {table: merged.result(elapsed_s) for table, merged in self._merged.items()}

    async def run(self) -> None:
        id_fields = {table: await self._id_field(table) for table in self._tables}
        if not self._is_stopped:
            references = self._executor.target.references
            graph = ReferenceGraph(
                self._tables, id_fields, lambda table, record: references(table, record, self._options[table])
            )
            closed = {table: MergedResult(Mode.UPDATE, len(records)) for table, records in self._tables.items()}
            try:
                for wave in graph.plan.waves:
                    if not self._is_stopped:
                        await _at_once({table: self._send(graph, table, indexes) for table, indexes in wave.items()})
                if not self._is_stopped:
                    circles = self._circles(graph)
                    await _at_once({table: self._close(graph, table, circles, closed[table]) for table in closed})
            finally:
                self._mark_open_circles(graph, closed)
        self._progress.finish(self.results().values())

    @property
    def _is_stopped(self) -> bool:
        return any(merged.stopped_reason is not None for merged in self._merged.values())

    def _outcome(self, place: Place) -> Outcome:
        table, index = place
        return self._merged[table].outcome(index)

    async def _id_field(self, table: str) -> str:
        """What identifies records of a table; a table that cannot be described stops the run."""
        try:
            described = await self._executor.describe(self._mode, table, self._in_time(self._options[table]))
        except (TargetError, TimeoutError) as error:
            self._merged[table].stop(error)
            return "id"
        return described.id_field or "id"

    def _in_time(self, options: BulkOptions) -> BulkOptions:
        return with_time_left(options, self._clock.monotonic() - self._started_s)

    async def _send(self, graph: ReferenceGraph, table: str, indexes: Sequence[int]) -> None:
        ready: dict[int, Record] = {}
        for index in indexes:
            parent_error = graph.parent_error((table, index), self._outcome)
            if parent_error is None:
                ready[index] = graph.without_cycle((table, index))
            else:
                self._merged[table].mark(parent_error)
        options = self._in_time(with_positions(self._options[table], list(ready)))
        start, records = self._executor.start, list(ready.values())
        await self._merged[table].add_call(
            list(ready), lambda: start(self._mode, table, records, options, self._progress.part())
        )

    def _circles(self, graph: ReferenceGraph) -> dict[Place, Mapping[str, Place]]:
        """The records that are there and lack a reference; for each, those of its references that are not there."""
        there = [place for place in graph.plan.deferred if self._outcome(place) in PRESENT]
        return {place: graph.unreachable(place, self._outcome) for place in there}

    async def _close(
        self, graph: ReferenceGraph, table: str, circles: Mapping[Place, Mapping[str, Place]], closed: MergedResult
    ) -> None:
        """Set the references that were left out, of records that are there, to records that are there."""
        updates = {}
        for place, lost in circles.items():
            fields = [field for field in graph.plan.deferred[place] if field not in lost]
            if fields and place[0] == table:
                updates[place[1]] = graph.cycle_update(place, fields, self._merged[table].id_of(place[1]))
        options = self._in_time(replace(self._options[table], on_outcomes=None))
        start, records = self._executor.start, list(updates.values())
        await closed.add_call(list(updates), lambda: start(Mode.UPDATE, table, records, options))

    def _mark_open_circles(self, graph: ReferenceGraph, closed: Mapping[str, MergedResult]) -> None:
        """Count records that still lack a reference as failed, also when the run was cancelled."""
        updated = {table: merged.result(0) for table, merged in closed.items()}
        causes = {(table, error.index): error for table, found in updated.items() for error in found.errors}
        for place, lost in self._circles(graph).items():
            table, index = place
            if lost:
                self._merged[table].mark(graph.lost_reference_error(place, *next(iter(lost.items()))))
            elif not updated[table].outcome(index).is_success:
                self._merged[table].mark(graph.unset_reference_error(place, causes.get(place)))


async def _at_once(work: Mapping[str, Coroutine[Any, Any, None]]) -> None:
    """Work on several tables at the same time, but not on too many."""
    free = asyncio.Semaphore(TABLES_MAX)

    async def limited(coroutine: Coroutine[Any, Any, None]) -> None:
        async with free:
            await coroutine

    async with asyncio.TaskGroup() as group:
        for table, coroutine in work.items():
            group.create_task(limited(coroutine), name=table)
