"""A dry run: what validation would say of metadata, a file and every row of it. Nothing is stored."""

from __future__ import annotations

import asyncio
import random
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, BinaryIO

from penstock.blobs.model import StoredBytes
from penstock.clock import Clock
from penstock.errors import Fault, FileRejected, MetadataInvalid, RowInvalid
from penstock.formats import Batch, Limits, format_of
from penstock.operations.chunk.records import StepRecord
from penstock.operations.counts import breach
from penstock.operations.intake import Source, accept_metadata, name_of, open_source
from penstock.operations.model import ErrorGroup, FileCheck, FileFault, RowError
from penstock.operations.rows.gates import FOREVER, StartLimit
from penstock.operations.rows.judging import check_batch, validate
from penstock.operations.rows.runtime import OperationRuntime
from penstock.operations.rows.step_threads import StepThreads
from penstock.operations.rows.task_pool import TaskPool
from penstock.operations.validating.sources import no_rows
from penstock.operations.views.chunk_view import VALIDATION, RowLayout
from penstock.operations.views.error_views import row_error
from penstock.pipeline import Definition, OperationOptions, Run
from penstock.settings import Settings

__all__ = ["check_file", "check_row"]


@dataclass(slots=True)
class _Findings:
    """What has been found so far; memory is bounded by the first errors and one example for each kind."""

    options: OperationOptions
    errors_max: int
    rows: int = 0
    invalid: int = 0
    stop_reason: str | None = None
    errors: list[RowError] = field(default_factory=list)
    groups: dict[tuple[str, str], ErrorGroup] = field(default_factory=dict)

    def add(self, layout: RowLayout, batch: Batch, records: Sequence[StepRecord], *, with_data: bool) -> None:
        """Add a batch, with the records of the rows that are not valid."""
        self.rows += len(batch.rows)
        self.invalid += len(records)
        self.stop_reason = self.stop_reason or breach(self.options, failed=self.invalid, judged=self.rows)
        for record in records[: max(0, self.errors_max - len(self.errors))]:
            data = layout.shown(batch.rows[record.row - batch.start.row]) if with_data else None
            self.errors.append(row_error(layout, record, data))
        for record in records:
            self._count(record)

    def _count(self, record: StepRecord) -> None:
        key = (str(record.error_type), str(record.error_group))
        seen = self.groups.get(key)
        rows, first, message = (seen.rows, seen.first_row, seen.message) if seen else (0, record.row, record.message)
        self.groups[key] = ErrorGroup(-1, VALIDATION, key[0], message or "", rows + 1, first)


async def check_file(
    definition: Definition,
    pipeline: object,
    settings: Settings,
    *,
    source: Source | None,
    file_name: str | None,
    metadata: Any,
    overrides: Mapping[str, Any],
    clock: Clock,
    errors_max: int,
    with_data: bool = False,
) -> FileCheck:
    """Judge everything that `create` and validation would; what is wrong is reported, never raised.

    Without good metadata the rows are checked by their model alone, because validators may ask for it. Without a source
    the metadata alone is checked.
    """
    resolved = definition.for_run(overrides)
    meta, metadata_faults = None, tuple[Fault, ...]()
    try:
        meta = await accept_metadata(resolved, pipeline, metadata, bytes_max=settings.metadata_bytes_max)
    except MetadataInvalid as error:
        metadata_faults = error.faults or (Fault(str(error)),)
    found, file_fault = _Findings(resolved.options, errors_max), None
    with _runtime(resolved, pipeline, meta, clock) as runtime:
        if metadata_faults:
            runtime.validators = ()
        try:
            if source is not None:
                name = file_name or name_of(source)
                runtime.file_format = format_of(name)
                with _seekable(source) as stream:
                    await _check_rows(runtime, settings, stream, found, with_data=with_data)
                if not (found.rows or resolved.options.allow_empty):
                    raise no_rows(resolved, name, runtime.columns)
        except FileRejected as error:
            file_fault = FileFault(error.code, str(error), error.faults)
    return FileCheck(
        operation=definition.name,
        metadata_faults=metadata_faults,
        file_fault=file_fault,
        stop_reason=found.stop_reason,
        total_rows=found.rows,
        invalid_rows=found.invalid,
        errors=tuple(found.errors),
        groups=tuple(sorted(found.groups.values(), key=lambda group: (-group.rows, group.first_row))),
    )


async def check_row(
    definition: Definition,
    pipeline: object,
    raw: Any,
    columns: tuple[str, ...] | None,
    *,
    meta: Any,
    clock: Clock,
) -> None:
    """Judge one row as validation would; `RowInvalid` names everything that is wrong with it.

    A validator that breaks has found nothing wrong: the row's worker asks its own.
    """
    with _runtime(definition, pipeline, meta, clock) as runtime:
        runtime.use_columns(columns)
        objection = await validate(runtime, raw)
    if objection is not None and objection.error_type == "Validation":
        raise RowInvalid(faults=objection.faults)


async def _check_rows(
    runtime: OperationRuntime, settings: Settings, stream: BinaryIO, found: _Findings, *, with_data: bool
) -> None:
    definition, limits = runtime.definition, Limits(row_bytes_max=settings.row_bytes_max)
    reader = await asyncio.to_thread(runtime.open_reader, stream, limits)
    runtime.use_columns(reader.columns)
    layout = RowLayout(
        number=0,
        id="",
        name=definition.name,
        rows_read=0,
        columns=reader.columns,
        plan=definition.plan_document(),
        key_names=(),
        secret_names=tuple(definition.row.secret_names),
    )
    batches = reader.batches(settings.chunk_rows)
    while (batch := await asyncio.to_thread(next, batches, None)) is not None:
        records = await check_batch(runtime, batch, runtime.may_start)
        found.add(layout, batch, records, with_data=with_data)


@contextmanager
def _runtime(definition: Definition, pipeline: object, meta: Any, clock: Clock) -> Iterator[OperationRuntime]:
    """A runtime that can judge rows; its task pool has no tasks, so it starts no step.

    It has a thread for sync validators; a caller that is cancelled does not wait for one that blocks.
    """

    def refuse(_work: object) -> None:
        raise AssertionError("a dry run starts no step")

    threads = StepThreads(1)
    try:
        yield OperationRuntime(
            number=0,
            file_format="",
            file=StoredBytes("", 0, ""),
            definition=definition,
            pipeline=pipeline,
            run=Run("", definition.name, meta, definition),
            columns=None,
            task_pool=TaskPool(0, refuse),
            clock=clock,
            jitter=random.Random(0),
            threads=threads,
            start_limit=StartLimit(clock, FOREVER),
        )
    finally:
        threads.close()


@contextmanager
def _seekable(source: Source) -> Iterator[BinaryIO]:
    """The source as a stream that begins at 0; a caller's own is left as it was, so that it can be sent next."""
    with open_source(source) as stream:
        if stream.seekable() and stream.tell() == 0:
            yield stream
            if not stream.closed:
                stream.seek(0)
            return
        with tempfile.TemporaryFile(prefix="penstock-") as copy:
            start = stream.tell() if stream.seekable() else None
            shutil.copyfileobj(stream, copy)
            if start is not None:
                stream.seek(start)
            yield copy
