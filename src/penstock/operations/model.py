"""Operations, rows and steps as callers see them: frozen values, whichever way they are stored."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Generic, TypeVar

from penstock.errors import Fault
from penstock.operations.states import OPERATION

__all__ = ["ErrorGroup", "Event", "Operation", "Page", "RowError", "RowView", "StepView"]

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Operation:
    """One run over one file, with its counters as of one moment."""

    id: str
    name: str
    status: str
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

    @property
    def processed_rows(self) -> int:
        """Rows with a verdict of success or failure; the rest of `total_rows` is unprocessed."""
        return self.successful_rows + self.failed_rows

    @property
    def is_settled(self) -> bool:
        """Whether the operation is at rest."""
        return OPERATION.is_settled(self.status)


@dataclass(frozen=True, slots=True)
class StepView:
    """One step of one row; validation is step -1."""

    index: int
    name: str
    state: str
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
    """One row: its verdict so far, the step it stands at, and every step it has reached."""

    number: int
    key: str | None
    state: str
    step: int
    step_name: str
    generation: int
    total_steps: int
    steps: tuple[StepView, ...]
    data: Any = None

    @property
    def completed_steps(self) -> int:
        """Steps that ended well; validation is not counted."""
        return sum(step.index >= 0 and step.state in ("Completed", "Skipped") for step in self.steps)


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
class Event:
    """One move of an operation, from the transition log."""

    sequence: int
    operation_id: str
    source: str | None
    event: str
    target: str
    at: datetime
    actor: str
    cause: str | None


@dataclass(frozen=True, slots=True)
class Page(Generic[T]):
    """Part of a list; pass `next_cursor` to get the next part."""

    items: Sequence[T]
    next_cursor: str | None = None
