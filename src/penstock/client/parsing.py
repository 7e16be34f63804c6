"""From documents back to the values they were made of: the inverse of `resources`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime
from typing import Any, TypeVar

from penstock.errors import Fault
from penstock.listing import Page
from penstock.operations.model import (
    Change,
    ErrorGroup,
    Event,
    FileCheck,
    FileFault,
    HistoryEntry,
    Misfit,
    Operation,
    RowError,
    RowView,
    StepView,
)
from penstock.operations.retrying import Eligibility, Retry
from penstock.operations.signals import Receipt, Unclaimed, Wait
from penstock.resources import Document

__all__ = [
    "eligibility",
    "error",
    "error_group",
    "event",
    "faults",
    "file_check",
    "history_entry",
    "operation",
    "page",
    "receipt",
    "retry",
    "row",
    "unclaimed",
    "wait",
]

T = TypeVar("T")


def page(document: Document, parse: Callable[[Document], T]) -> Page[T]:
    """Part of a list."""
    return Page([parse(item) for item in document["items"]], document.get("nextCursor"), document.get("totalCount"))


def operation(found: Document) -> Operation:
    """An operation."""
    return Operation(
        id=found["id"],
        name=found["operationName"],
        status=found["status"],
        total_rows=found["totalRows"],
        rows_read=found["rowsRead"],
        successful_rows=found["successfulRows"],
        failed_rows=found["failedRows"],
        invalid_rows=found["invalidRows"],
        timed_out_rows=found["timedOutRows"],
        cancelled_rows=found["cancelledRows"],
        waiting_rows=found["waitingRows"],
        generation=found["generation"],
        retry_count=found["retryCount"],
        error=found["errorMessage"],
        metadata=found["metadata"],
        file_name=found["fileName"],
        file_bytes=found["fileSize"],
        file_sha256=found["fileSha256"],
        created_by=found["createdBy"],
        created_at=_moment(found["createdAt"]),
        started_at=_instant(found["startedAt"]),
        finished_at=_instant(found["completedAt"]),
        steps=tuple(found["steps"]),
        options=found["options"],
        steps_done=found["stepsDone"],
        trouble=found["trouble"],
        version=found["version"],
        misfits=tuple(Misfit(each["worker"], tuple(each["differences"])) for each in found["misfits"]),
        keep=found["keep"] or {},
        pruned=tuple(found["pruned"]),
        hold=found["hold"],
        blob_id=found["blobId"],
    )


def row(found: Document, operation: str = "") -> RowView:
    """A row of an operation, which is given by its id or the beginning of that; the key of a signal has all of it."""
    number = found["rowNumber"]
    scoped = next((step for step in found["steps"] if step["signalKey"] is not None), None)
    return RowView(
        number=number,
        row_key=found["rowId"],
        state=found["state"],
        step=found["currentStepIndex"],
        step_name=found["currentStep"],
        generation=found["retryAttempt"],
        total_steps=found["totalSteps"],
        steps=tuple(map(_step, found["steps"])),
        data=found.get("rowData"),
        operation_id=operation if scoped is None else scoped["signalKey"].removesuffix(f":{scoped['key']}:{number}"),
    )


def _step(found: Document) -> StepView:
    return StepView(
        index=found["stepIndex"],
        name=found["stepName"],
        state=found["state"],
        attempt=found["stepAttempts"],
        started_at=_instant(found["startedAt"]),
        ended_at=_instant(found["completedAt"]),
        output=found["output"],
        error_type=found["errorType"],
        message=found["errorMessage"],
        faults=faults(found["faults"]),
        signal_key=found["key"],
        due_at=_instant(found["dueAt"]),
        deadline=_instant(found["deadline"]),
    )


def error(found: Document) -> RowError:
    """What is wrong with a row."""
    return RowError(
        row=found["rowNumber"],
        row_key=found["rowId"],
        step=found["stepIndex"],
        step_name=found["stepName"],
        state=found["state"],
        error_type=found["errorType"],
        message=found["errorMessage"],
        faults=faults(found["faults"]),
        generation=found["retryAttempt"],
        attempt=found["stepAttempts"],
        at=_moment(found["createdAt"]),
        data=found.get("rowData"),
    )


def error_group(found: Document) -> ErrorGroup:
    """Errors of one kind."""
    return ErrorGroup(
        step=found["stepIndex"],
        step_name=found["stepName"],
        error_type=found["errorType"],
        message=found["errorMessage"],
        rows=found["rows"],
        first_row=found["firstRow"],
    )


def event(found: Document) -> Event:
    """A move of an operation."""
    return Event(
        sequence=found["sequence"],
        operation_id=found["operationId"],
        source=found["from"],
        event=found["event"],
        target=found["to"],
        at=_moment(found["at"]),
        actor=found["actor"],
        cause=found["cause"],
        operation_name=found.get("operationName", ""),
    )


def history_entry(found: Document) -> HistoryEntry:
    """Something that happened to a row."""
    return HistoryEntry(
        row=found["rowNumber"],
        step=found["stepIndex"],
        step_name=found["stepName"],
        generation=found["retryAttempt"],
        attempt=found["stepAttempts"],
        event=found["event"],
        error_type=found["errorType"],
        message=found["errorMessage"],
        at=_moment(found["createdAt"]),
        data=found.get("rowData"),
        actor=found.get("actor"),
        asked_at=_instant(found.get("askedAt")),
        changes=tuple(Change(each["field"], each["old"], each["new"]) for each in found.get("changes", ())),
    )


def retry(found: Document) -> Retry:
    """What a retry came to."""
    told = (text.removeprefix("row ").partition(": ") for text in found["skippedReasons"])
    reasons = {int(number): reason for number, _, reason in told}
    return Retry(found.get("rowsSubmitted", 0), found["rowsSkipped"], reasons)


def eligibility(found: Document) -> Eligibility:
    """Whether an operation can be retried."""
    return Eligibility(found["isEligible"], tuple(found["reasons"]), found["eligibleRows"])


def receipt(found: Document) -> Receipt:
    """What became of a signal."""
    return Receipt(id=found["id"], outcome=found["outcome"], row=found["rowNumber"], step=found["stepName"])


def wait(found: Document) -> Wait:
    """A row that waits."""
    return Wait(
        operation_id=found["operationId"],
        row=found["rowNumber"],
        row_key=found["rowId"],
        step=found["stepName"],
        key=found["key"],
        since=_moment(found["since"]),
        deadline=_moment(found["deadline"]),
    )


def unclaimed(found: Document) -> Unclaimed:
    """A signal that no row has taken."""
    return Unclaimed(
        id=found["id"],
        key=found["key"],
        outcome=found["outcome"],
        message=found["errorMessage"],
        accepted_at=_moment(found["acceptedAt"]),
    )


def file_check(found: Document) -> FileCheck:
    """What would become of a file."""
    fault = found["fileFault"]
    return FileCheck(
        operation=found["operationName"],
        metadata_faults=faults(found["metadataFaults"]),
        file_fault=fault and FileFault(fault["code"], fault["message"], faults(fault["faults"])),
        stop_reason=found["stopReason"],
        total_rows=found["totalRows"],
        invalid_rows=found["invalidRows"],
        errors=tuple(map(error, found["errors"])),
        groups=tuple(map(error_group, found["errorGroups"])),
    )


def faults(found: Iterable[Document]) -> tuple[Fault, ...]:
    """Faults by field."""
    return tuple(Fault(each["message"], each["field"]) for each in found)


def _moment(text: str) -> datetime:
    return datetime.fromisoformat(text)


def _instant(text: Any) -> datetime | None:
    return None if text is None else datetime.fromisoformat(text)
