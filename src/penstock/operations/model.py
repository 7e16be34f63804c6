"""Operations, rows and steps as callers see them: frozen values, whichever way they are stored."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal

from penstock.errors import Fault
from penstock.listing import Page
from penstock.operations.states import OPERATION

__all__ = [
    "Difference",
    "ErrorGroup",
    "Event",
    "FileCheck",
    "FileFault",
    "Flow",
    "HistoryEntry",
    "LimitUse",
    "Misfit",
    "Operation",
    "Page",
    "Pruned",
    "RowError",
    "RowState",
    "RowView",
    "Status",
    "StepFlow",
    "StepState",
    "StepView",
    "Throughput",
    "VerifyReport",
    "WorkerLoad",
    "Workload",
]

Status = Literal[
    "Pending", "Validating", "Running", "Paused", "Stopping", "Retrying",
    "Completed", "CompletedWithErrors", "Failed", "Cancelled",
]  # fmt: skip
StepState = Literal[
    "Pending", "Running", "WaitingForCompletion", "Completed", "Failed", "TimedOut", "Cancelled", "Skipped"
]
RowState = Literal[
    "Pending", "Running", "WaitingForCompletion", "Completed", "Invalid", "Failed", "TimedOut", "Cancelled"
]


@dataclass(frozen=True, slots=True)
class Misfit:
    """A live worker that leaves an operation alone, because its code is not what the operation was planned for."""

    worker: str
    differences: tuple[str, ...]

    def __str__(self) -> str:
        return f"worker {self.worker}: {'; '.join(self.differences)}"


@dataclass(frozen=True, slots=True)
class Operation:
    """One run over one file, with its counters as of one moment."""

    id: str
    name: str
    status: Status
    total_rows: int
    rows_read: int
    successful_rows: int
    failed_rows: int
    invalid_rows: int
    timed_out_rows: int
    cancelled_rows: int
    waiting_rows: int
    generation: int
    retry_count: int
    error: str | None
    metadata: Any
    file_name: str
    file_bytes: int
    file_sha256: str
    created_by: str
    created_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    steps: tuple[str, ...]
    options: Mapping[str, Any] = field(repr=False)
    steps_done: int = 0  # over all rows; a row that has failed counts as done with all
    trouble: str | None = None  # why the worker that tried last could not go on with it; None once one does
    version: str | None = None  # of the code it was created for, or moved to
    misfits: tuple[Misfit, ...] = ()  # live workers that have other code; of a settled operation none
    keep: Mapping[str, float | None] = field(default_factory=dict)  # its own policy: seconds by part, None for ever
    pruned: tuple[str, ...] = ()  # what was removed of it
    hold: str | None = None  # why nothing of it is removed
    blob_id: str | None = None  # its file; None when it was stored before there were blobs

    @property
    def processed_rows(self) -> int:
        """Rows with a verdict of success or failure; the rest of `total_rows` is unprocessed."""
        return self.successful_rows + self.failed_rows

    @property
    def steps_total(self) -> int:
        """The steps of all rows; 0 until the file is validated."""
        return self.total_rows * len(self.steps)

    @property
    def is_settled(self) -> bool:
        """Whether the operation is in a settled state."""
        return OPERATION.is_settled(self.status)


@dataclass(frozen=True, slots=True)
class StepView:
    """One step of one row; validation is step -1. The times are those of the last attempt that ended."""

    index: int
    name: str
    state: StepState
    attempt: int
    started_at: datetime | None
    ended_at: datetime | None
    output: Any = None
    error_type: str | None = None
    message: str | None = None
    faults: tuple[Fault, ...] = ()
    signal_key: str | None = None
    due_at: datetime | None = None
    deadline: datetime | None = None


@dataclass(frozen=True, slots=True)
class RowView:
    """One row: its verdict so far, its current step, and every step it has reached.

    The current step of a row that has run all its steps is the last one. `row_key` is the text of the row_key field.
    """

    number: int
    row_key: str | None
    state: RowState
    step: int
    step_name: str
    generation: int
    total_steps: int
    steps: tuple[StepView, ...]
    data: Any = None
    operation_id: str = ""

    @property
    def completed_steps(self) -> int:
        """Steps that ended well; validation is not counted."""
        return len([step for step in self.steps if step.state in ("Completed", "Skipped") and step.index >= 0])


@dataclass(frozen=True, slots=True)
class RowError:
    """What went wrong with one row."""

    row: int
    row_key: str | None
    step: int
    step_name: str
    state: str
    error_type: str
    message: str
    faults: tuple[Fault, ...]
    generation: int
    attempt: int
    at: datetime
    data: Any = None


@dataclass(frozen=True, slots=True)
class ErrorGroup:
    """Errors that differ only in numbers, ids and quoted values, counted."""

    step: int
    step_name: str
    error_type: str
    message: str
    rows: int
    first_row: int


@dataclass(frozen=True, slots=True)
class StepFlow:
    """Where the rows of an operation are at one step: how many are through, and how many stand there in which state."""

    index: int
    name: str
    passed: int
    pending: int = 0
    running: int = 0
    waiting: int = 0
    failed: int = 0
    timed_out: int = 0
    cancelled: int = 0

    @property
    def here(self) -> int:
        """The rows that stand at this step."""
        return self.pending + self.running + self.waiting + self.failed + self.timed_out + self.cancelled


@dataclass(frozen=True, slots=True)
class Flow:
    """The rows of an operation on their way through its steps; validation is the first of them.

    `is_exact` is False where so many chunks are under way that only some were counted.
    """

    rows: int
    steps: tuple[StepFlow, ...]
    is_exact: bool = True


@dataclass(frozen=True, slots=True)
class Throughput:
    """How many rows ended in each of several equal spans of time; `is_sample` when not all chunks were read."""

    start: datetime
    span_s: float
    rows: tuple[int, ...]
    is_sample: bool = False


@dataclass(frozen=True, slots=True)
class WorkerLoad:
    """One worker: how long its lease still lasts (less than nothing when it ran out), and what it owns."""

    id: str
    host: str
    process: int
    started_at: datetime
    lease_s: float
    chunks: int
    files: int


@dataclass(frozen=True, slots=True)
class LimitUse:
    """The units of an operation's limits that one worker holds."""

    operation_id: str
    operation: str
    worker: str
    units: Any


@dataclass(frozen=True, slots=True)
class Workload:
    """Open chunks by who has them: a worker, nobody although they are due, nobody because they wait."""

    chunks_open: int
    chunks_owned: int
    chunks_due: int
    chunks_parked: int
    oldest_due_s: float | None
    workers: tuple[WorkerLoad, ...]
    limits: tuple[LimitUse, ...]


@dataclass(frozen=True, slots=True)
class Change:
    """A field of a row that somebody corrected; None where it was missing."""

    field: str
    old: Any
    new: Any


@dataclass(frozen=True, slots=True)
class HistoryEntry:
    """Something that happened to a row and is no longer its current record: an attempt that was retried, a reset.

    `at` is when the row came to the state it was in. Where somebody asked for it to run again, `actor` and `asked_at`
    say who and when, and `changes` what was corrected; `data` is the row before.
    """

    row: int
    step: int
    step_name: str
    generation: int
    attempt: int
    event: str
    error_type: str | None
    message: str | None
    at: datetime
    data: Any = None
    actor: str | None = None
    asked_at: datetime | None = None
    changes: tuple[Change, ...] = ()


@dataclass(frozen=True, slots=True)
class FileFault:
    """Why a file as a whole cannot be read; `code` is a short stable word for the reason."""

    code: str
    message: str
    faults: tuple[Fault, ...] = ()


@dataclass(frozen=True, slots=True)
class FileCheck:
    """What would become of a file if an operation were created with it; nothing was stored.

    `errors` holds the first rows that are wrong, `groups` all of them, counted. `stop_reason` says that so many rows
    are wrong that the operation would stop.
    """

    operation: str
    metadata_faults: tuple[Fault, ...]
    file_fault: FileFault | None
    stop_reason: str | None
    total_rows: int
    invalid_rows: int
    errors: tuple[RowError, ...]
    groups: tuple[ErrorGroup, ...]

    @property
    def valid_rows(self) -> int:
        """The rows that would run."""
        return self.total_rows - self.invalid_rows

    @property
    def is_valid(self) -> bool:
        """Whether nothing at all is wrong."""
        return not (self.metadata_faults or self.file_fault or self.stop_reason or self.invalid_rows)


@dataclass(frozen=True, slots=True)
class Difference:
    """Something stored that does not follow from the rest: `rule` names the check, `message` says it in a sentence."""

    rule: str
    message: str
    operation: str | None = None
    chunk: int | None = None
    row: int | None = None

    def __str__(self) -> str:
        return self.message


@dataclass(frozen=True, slots=True)
class VerifyReport:
    """What `verify` looked at and every difference it found; beyond a limit they are only counted, in `unlisted`."""

    operations: int
    chunks: int
    rows: int
    differences: tuple[Difference, ...]
    unlisted: int = 0

    @property
    def is_clean(self) -> bool:
        """Whether everything stored follows from the records."""
        return not self.differences


@dataclass(slots=True)
class Pruned:
    """What was removed: whole operations with their rows, the bytes of files, and parts of operations that stay.

    `files_left` counts files for a later time: they could not be removed, or are shared ones of an earlier
    release that were stored within the last hour. `parts` says of how many operations that stay their rows, outputs,
    history or files were removed.
    """

    operations: int = 0
    rows: int = 0
    file_bytes: int = 0
    files_left: int = 0
    parts: Counter[str] = field(default_factory=Counter)


@dataclass(frozen=True, slots=True)
class Event:
    """One move of an operation, from the transition log; `sequence` is its number in the feed."""

    sequence: int
    operation_id: str
    source: str | None
    event: str
    target: str
    at: datetime
    actor: str
    cause: str | None
    operation_name: str = ""
