"""The shapes of documents, for the OpenAPI description; answers are made by `resources` and not validated again."""

from __future__ import annotations

from typing import Annotated, Any, Generic, TypeVar

from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic.alias_generators import to_camel

from penstock.operations.model import RowState, Status, StepState

__all__ = [
    "BulkBody",
    "BulkCreated",
    "BulkStatus",
    "CauseBody",
    "CheckReport",
    "DiagnosisShape",
    "Eligibility",
    "ErrorGroupShape",
    "ErrorShape",
    "EventShape",
    "FieldShape",
    "HistoryShape",
    "ListOf",
    "OperationInfo",
    "PageOf",
    "PlanShape",
    "Problem",
    "RetryShape",
    "RowChangesBody",
    "RowNumbersBody",
    "RowShape",
    "SignalAnswer",
    "SignalBody",
    "SignalFailBody",
    "SignalsBody",
    "UnclaimedShape",
    "WaitShape",
]

ROW_MAX = 2**63 - 1

T = TypeVar("T")

Instant = Annotated[str, Field(json_schema_extra={"format": "date-time"})]
"""A moment in UTC, as text."""


class Shape(BaseModel):
    """A document with camelCase names."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True)


class Body(Shape):
    """What a caller sends; names match ignoring case, and unknown ones are refused."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, extra="forbid")

    @model_validator(mode="before")
    @classmethod
    def _names_ignore_case(cls, given: Any) -> Any:
        if not isinstance(given, dict):
            return given
        known = {str(field.alias or name).casefold(): field.alias for name, field in cls.model_fields.items()}
        return {known.get(str(name).casefold(), name): value for name, value in given.items()}


class FaultShape(Shape):
    """One thing that is wrong; `field` is null when the whole is meant."""

    field: str | None
    message: str


class Problem(Shape):
    """An error (RFC 9457). `code` is stable; `error` repeats `detail`."""

    type: str
    title: str
    status: int
    detail: str
    code: str
    error: str
    faults: list[FaultShape] = []


class ListOf(Shape, Generic[T]):
    """Part of a list; give `nextCursor` as `cursor` to get the next part."""

    items: list[T]
    next_cursor: str | None


class PageOf(ListOf[T], Generic[T]):
    """Part of a list. When asked for by `page`, it says how many entries there are: null where that is not known."""

    total_count: int | None = None
    page: int | None = None
    page_size: int | None = None
    has_next_page: bool | None = None


# --- what can be run


class FieldShape(Shape):
    """A field of the metadata, or a column of the file."""

    name: str
    type: str
    required: bool


class PlanShape(Shape):
    """One step."""

    name: str
    kind: str


class OperationInfo(Shape):
    """An operation that files can be submitted to."""

    name: str
    description: str
    is_step_based: bool
    metadata_type: str | None
    row_type: str
    type_full_name: str
    metadata_fields: list[FieldShape]
    file_columns: list[FieldShape]
    row_key: str | None
    tags: list[str]
    steps: list[PlanShape]


# --- operations


class MisfitShape(Shape):
    """A live worker that leaves an operation alone, because its code is not what the operation was planned for."""

    worker: str
    differences: list[str]


class BulkBody(Shape):
    """One operation with its counters."""

    id: str
    operation_name: str
    status: Status
    total_rows: int
    rows_read: int
    processed_rows: int
    successful_rows: int
    failed_rows: int
    invalid_rows: int
    timed_out_rows: int
    waiting_rows: int
    cancelled_rows: int
    steps_done: int
    steps_total: int
    progress: float
    generation: int
    retry_count: int
    error_message: str | None
    trouble: str | None
    metadata: Any
    file_name: str
    file_size: int
    file_sha256: str = Field(alias="fileSha256")
    created_by: str
    created_at: Instant
    started_at: Instant | None
    completed_at: Instant | None
    steps: list[str]
    options: dict[str, Any]
    version: str | None
    keep: dict[str, float | None] | None
    pruned: list[str]
    hold: str | None
    misfits: list[MisfitShape]
    blob_id: str | None


class BulkCreated(BulkBody):
    """The operation that was created."""

    operation_id: str


class BulkStatus(Shape):
    """How far an operation is."""

    status: Status
    processed_rows: int
    total_rows: int
    error_count: int
    completed_at: Instant | None
    progress: float


class ErrorGroupShape(Shape):
    """Errors that differ only in numbers, ids and quoted values."""

    rows: int
    step_name: str
    step_index: int
    error_type: str
    error_message: str
    first_row: int


class ErrorShape(Shape):
    """What is wrong with one row."""

    id: str | None = None
    bulk_operation_id: str | None = None
    row_number: int
    row_id: str | None
    step_name: str
    step_index: int
    state: str
    error_type: str
    error_message: str
    faults: list[FaultShape]
    retry_attempt: int
    step_attempts: int
    created_at: Instant
    row_data: Any = None


class FileFaultShape(Shape):
    """Why the file as a whole cannot be read."""

    code: str
    message: str
    faults: list[FaultShape]


class CheckReport(Shape):
    """What would become of a file."""

    valid: bool
    metadata_errors: list[str]
    file_errors: list[str]
    operation_name: str
    is_valid: bool
    total_rows: int
    valid_rows: int
    invalid_rows: int
    metadata_faults: list[FaultShape]
    file_fault: FileFaultShape | None
    stop_reason: str | None
    errors: list[ErrorShape]
    error_groups: list[ErrorGroupShape]


# --- rows


class StepShape(Shape):
    """One step of a row; validation has the index -1."""

    step_name: str
    step_index: int
    state: StepState
    step_attempts: int
    started_at: Instant | None
    completed_at: Instant | None
    due_at: Instant | None
    deadline: Instant | None
    output: Any
    error_type: str | None
    error_message: str | None
    faults: list[FaultShape]
    key: str | None
    signal_key: str | None


class RowShape(Shape):
    """One row with every step it has reached."""

    row_number: int
    row_id: str | None
    state: RowState
    current_state: RowState
    current_step: str
    current_step_index: int
    completed_steps: int
    total_steps: int
    retry_attempt: int
    steps: list[StepShape]
    row_data: Any = None


class ChangeShape(Shape):
    """A field that somebody corrected."""

    field: str
    old: Any
    new: Any


class HistoryShape(Shape):
    """Something that happened to a row before its present state."""

    bulk_operation_id: str
    row_number: int
    step_name: str
    step_index: int
    retry_attempt: int
    attempt: int
    step_attempts: int
    event: str
    error_type: str | None
    error_message: str | None
    created_at: Instant
    failed_at: Instant
    actor: str | None = None
    asked_at: Instant | None = None
    changes: list[ChangeShape] = []
    row_data: Any = None


class RetryShape(Shape):
    """What a retry came to."""

    operation_id: str
    rows_submitted: int
    rows_skipped: int
    skipped_reasons: list[str]


class Eligibility(Shape):
    """Whether an operation can be retried."""

    operation_id: str
    is_eligible: bool
    reason: str | None
    reasons: list[str]
    eligible_rows: int


class EventShape(Shape):
    """One move of an operation."""

    sequence: int
    operation_id: str
    operation_name: str
    type: str
    severity: str
    message: str
    timestamp: Instant
    source: str | None = Field(alias="from")
    event: str
    target: str = Field(alias="to")
    at: Instant
    actor: str
    cause: str | None


class WaitShape(Shape):
    """A row that waits for a signal."""

    operation_id: str
    row_number: int
    row_id: str | None
    step_name: str
    key: str
    signal_key: str
    since: Instant
    deadline: Instant


class UnclaimedShape(Shape):
    """A stored signal that no row has taken."""

    id: str
    key: str
    outcome: str
    error_message: str | None
    accepted_at: Instant


class SignalAnswer(Shape):
    """What became of a signal."""

    id: str
    outcome: str
    stored: bool
    row_number: int | None
    step_name: str | None
    step: str | None
    completed: bool
    failed: bool
    error: str | None
    cross_process: bool


class WorkerShape(Shape):
    """A worker."""

    id: str
    host: str
    process: int
    state: str


class FindingShape(Shape):
    """Something that is not as it should be."""

    check: str
    is_problem: bool
    what: str
    why: str
    remedy: str


class DiagnosisShape(Shape):
    """What `doctor` looked at."""

    is_healthy: bool
    database: str | None
    version: str | None
    revision: str | None
    clock_ahead_seconds: float
    workers: list[WorkerShape]
    open_operations: int
    storage: str
    findings: list[FindingShape]


# --- what callers send


class CauseBody(Body):
    """Why."""

    cause: str | None = Field(default=None, max_length=2000)


class SignalBody(Body):
    """What comes with a signal; `payload` becomes the step's output."""

    payload: Any = None
    row: int | None = Field(default=None, ge=1, le=ROW_MAX)
    id: str | None = Field(default=None, min_length=1, max_length=200)


class SignalFailBody(Body):
    """Why the awaited thing failed."""

    error_message: str | None = Field(default=None, max_length=10_000)
    row: int | None = Field(default=None, ge=1, le=ROW_MAX)
    id: str | None = Field(default=None, min_length=1, max_length=200)


class SignalsBody(Body):
    """A signal with its key, for keys that do not fit into a path."""

    key: str = Field(min_length=1)
    outcome: str = Field(default="completed", pattern="^(completed|failed)$")
    payload: Any = None
    error_message: str | None = Field(default=None, max_length=10_000)
    row: int | None = Field(default=None, ge=1, le=ROW_MAX)
    id: str | None = Field(default=None, min_length=1, max_length=200)


class RowNumbersBody(Body):
    """Which rows."""

    row_numbers: list[int] = Field(min_length=1, max_length=100_000)
    confirm_doubt: bool = False


class RowChangesBody(Body):
    """New values of fields; `generation` is the one that the caller has seen."""

    changes: dict[str, Any] = Field(min_length=1)
    generation: int | None = Field(default=None, ge=0, le=ROW_MAX)
