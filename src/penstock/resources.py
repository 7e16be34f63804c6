"""The documents machines get, from the command line and over HTTP alike: camelCase, times in UTC."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import Any, TypeVar

import msgspec

from penstock.errors import (
    AccessRefused,
    Conflict,
    DatabaseDamaged,
    DatabaseRefused,
    DatabaseUnready,
    DatabaseUnsafe,
    DeclarationError,
    DefinitionInvalid,
    Fault,
    FileRejected,
    Forbidden,
    IllegalMove,
    InvalidInput,
    KeyRefused,
    MetadataInvalid,
    NoSuchWait,
    NotFound,
    PenstockError,
    PreconditionFailed,
    RowInvalid,
    SettingsInvalid,
    Throttled,
    TooLarge,
    Unauthenticated,
    Unavailable,
)
from penstock.idempotency.model import KeyRecord
from penstock.operations.model import (
    Difference,
    ErrorGroup,
    Event,
    FileCheck,
    HistoryEntry,
    Operation,
    Pruned,
    RowError,
    RowView,
    StepView,
    VerifyReport,
)
from penstock.operations.proof.symptoms import Diagnosis, Symptom
from penstock.operations.retrying import Eligibility, NothingToRetry, Retry
from penstock.operations.signals import Receipt, Unclaimed, Wait, signal_key

__all__ = [
    "PROBLEMS",
    "Document",
    "diagnosis",
    "eligibility",
    "error",
    "error_group",
    "event",
    "faults",
    "file_check",
    "history_entry",
    "idempotency_key",
    "instant",
    "listing",
    "operation",
    "problem",
    "progress",
    "receipt",
    "retry",
    "row",
    "unclaimed",
    "verify_report",
    "wait",
]

T = TypeVar("T")
Document = dict[str, Any]

# The first class that fits an error names its problem: (class, HTTP status, name, title).
PROBLEMS: tuple[tuple[type[PenstockError], int, str, str], ...] = (
    (MetadataInvalid, 422, "metadata-invalid", "The metadata does not fit the operation"),
    (FileRejected, 422, "file-rejected", "The file cannot be read"),
    (DatabaseRefused, 503, "unavailable", "Temporarily unavailable"),
    (SettingsInvalid, 422, "settings-invalid", "A setting or option is invalid"),
    (DefinitionInvalid, 422, "definition-invalid", "The document of the definition is invalid"),
    (DeclarationError, 422, "declaration-error", "The declaration of an operation is invalid"),
    (RowInvalid, 422, "row-invalid", "The row is invalid"),
    (TooLarge, 413, "too-large", "Too much was sent at once"),
    (InvalidInput, 422, "invalid-input", "The input is invalid"),
    (Unauthenticated, 401, "unauthenticated", "A credential is needed"),
    (Forbidden, 403, "forbidden", "The credential may not do this"),
    (AccessRefused, 403, "access-refused", "Access is refused"),
    (NoSuchWait, 404, "no-such-wait", "No row can wait for this signal"),
    (NotFound, 404, "not-found", "Not found"),
    (IllegalMove, 409, "illegal-move", "Not possible in the current state"),
    (PreconditionFailed, 412, "precondition-failed", "It has changed since it was read"),
    (KeyRefused, 409, "idempotency-key-refused", "Not possible in the current state of the idempotency key"),
    (Conflict, 409, "conflict", "Not possible in the current state"),
    (DatabaseUnready, 503, "database-unready", "The database needs an upgrade"),
    (DatabaseUnsafe, 503, "database-unsafe", "The database settings could lose commits"),
    (Throttled, 429, "throttled", "Too many requests"),
    (Unavailable, 503, "unavailable", "Temporarily unavailable"),
    (DatabaseDamaged, 500, "database-damaged", "The database is damaged"),
    (PenstockError, 500, "error", "Error"),
)


def problem(error: PenstockError) -> Document:
    """An error as a problem document (RFC 9457), with every fault it names."""
    status, name, title = next(entry[1:] for entry in PROBLEMS if isinstance(error, entry[0]))
    document: Document = {
        "type": f"urn:penstock:problem:{name}",
        "title": title,
        "status": status,
        "detail": str(error),
    }
    if isinstance(error, InvalidInput) and error.faults:
        document["faults"] = faults(error.faults)
    if isinstance(error, FileRejected):
        document["code"] = error.code
    if isinstance(error, NothingToRetry):
        document |= _skipped(error.retry)
    return document


def listing(items: Iterable[T], shape: Callable[[T], Document], next_cursor: str | None = None) -> Document:
    """Part of a list; `nextCursor` is null at its end."""
    return {"items": [shape(item) for item in items], "nextCursor": next_cursor}


def operation(found: Operation) -> Document:
    """One operation with its counters."""
    return {
        "id": found.id,
        "operationName": found.name,
        "status": found.status,
        "totalRows": found.total_rows,
        "rowsRead": found.rows_read,
        "processedRows": found.processed_rows,
        "successfulRows": found.successful_rows,
        "failedRows": found.failed_rows,
        "invalidRows": found.invalid_rows,
        "timedOutRows": found.timed_out_rows,
        "waitingRows": found.waiting_rows,
        "cancelledRows": found.cancelled_rows,
        "stepsDone": found.steps_done,
        "stepsTotal": found.steps_total,
        "progress": progress(found),
        "generation": found.generation,
        "retryCount": found.retry_count,
        "errorMessage": found.error,
        "trouble": found.trouble,
        "version": found.version,
        "keep": dict(found.keep) or None,
        "pruned": list(found.pruned),
        "hold": found.hold,
        "misfits": [{"worker": each.worker, "differences": list(each.differences)} for each in found.misfits],
        "metadata": found.metadata,
        "fileName": found.file_name,
        "fileSize": found.file_bytes,
        "fileSha256": found.file_sha256,
        "blobId": found.blob_id,
        "createdBy": found.created_by,
        "createdAt": instant(found.created_at),
        "startedAt": instant(found.started_at),
        "completedAt": instant(found.finished_at),
        "steps": list(found.steps),
        "options": dict(found.options),
    }


def progress(found: Operation) -> float:
    """How many of the steps of all rows are done, from 0 to 100; 100 is never said before it is true."""
    if not found.total_rows:
        return 100.0 if found.status == "Completed" else 0.0
    return found.steps_done * 1000 // found.steps_total / 10


def row(found: RowView) -> Document:
    """One row with every step it has reached; `rowData` only where it was asked for."""
    document: Document = {
        "rowNumber": found.number,
        "rowId": found.row_key,
        "state": found.state,
        "currentState": found.state,  # the same, as BulkSharp's rows name it
        "currentStep": found.step_name,
        "currentStepIndex": found.step,
        "completedSteps": found.completed_steps,
        "totalSteps": found.total_steps,
        "retryAttempt": found.generation,
        "steps": [_step(found, step) for step in found.steps],
    }
    return document if found.data is None else document | {"rowData": found.data}


def _step(of: RowView, found: StepView) -> Document:
    scoped = None if found.signal_key is None else signal_key(of.operation_id, found.signal_key, of.number)
    return {
        "stepName": found.name,
        "stepIndex": found.index,
        "state": found.state,
        "stepAttempts": found.attempt,
        "startedAt": instant(found.started_at),
        "completedAt": instant(found.ended_at),
        "dueAt": instant(found.due_at),
        "deadline": instant(found.deadline),
        "output": found.output,
        "errorType": found.error_type,
        "errorMessage": found.message,
        "faults": faults(found.faults) if found.faults else [],
        "key": found.signal_key,
        "signalKey": scoped,
    }


def error(found: RowError) -> Document:
    """What is wrong with one row; `rowData` only where it was asked for."""
    document: Document = {
        "rowNumber": found.row,
        "rowId": found.row_key,
        "stepName": found.step_name,
        "stepIndex": found.step,
        "state": found.state,
        "errorType": found.error_type,
        "errorMessage": found.message,
        "faults": faults(found.faults),
        "retryAttempt": found.generation,
        "stepAttempts": found.attempt,
        "createdAt": instant(found.at),
    }
    return document if found.data is None else document | {"rowData": found.data}


def error_group(found: ErrorGroup) -> Document:
    """Errors of one kind, counted."""
    return {
        "rows": found.rows,
        "stepName": found.step_name,
        "stepIndex": found.step,
        "errorType": found.error_type,
        "errorMessage": found.message,
        "firstRow": found.first_row,
    }


def event(found: Event) -> Document:
    """One move of an operation."""
    return {
        "sequence": found.sequence,
        "operationId": found.operation_id,
        "from": found.source,
        "event": found.event,
        "to": found.target,
        "at": instant(found.at),
        "actor": found.actor,
        "cause": found.cause,
    }


def history_entry(found: HistoryEntry) -> Document:
    """Something that happened to a row and is no longer its current record."""
    document: Document = {
        "rowNumber": found.row,
        "stepName": found.step_name,
        "stepIndex": found.step,
        "retryAttempt": found.generation,
        "attempt": found.generation,  # the same, as BulkSharp's history names it
        "stepAttempts": found.attempt,
        "event": found.event,
        "errorType": found.error_type,
        "errorMessage": found.message,
        "createdAt": instant(found.at),
    }
    if found.actor is not None:
        changes = [{"field": change.field, "old": change.old, "new": change.new} for change in found.changes]
        document |= {"actor": found.actor, "askedAt": instant(found.asked_at), "changes": changes}
    return document if found.data is None else document | {"rowData": found.data}


def retry(operation_id: str, found: Retry) -> Document:
    """What a retry request came to."""
    return {"operationId": operation_id, "rowsSubmitted": found.submitted, **_skipped(found)}


def _skipped(found: Retry) -> Document:
    return {
        "rowsSkipped": found.skipped,
        "skippedReasons": [f"row {number}: {reason}" for number, reason in found.reasons.items()],
    }


def eligibility(operation_id: str, found: Eligibility) -> Document:
    """Whether an operation can be retried, and every reason against it."""
    return {
        "operationId": operation_id,
        "isEligible": found.is_eligible,
        "reason": "; ".join(found.reasons) or None,
        "reasons": list(found.reasons),
        "eligibleRows": found.rows,
    }


def pruned(found: Pruned, *, is_dry_run: bool) -> Document:
    """What was removed, or would be."""
    return {
        "isDryRun": is_dry_run,
        "operations": found.operations,
        "rows": found.rows,
        "fileBytes": found.file_bytes,
        "filesLeft": found.files_left,
        "parts": dict(found.parts),
    }


def receipt(found: Receipt) -> Document:
    """What became of a signal."""
    return {
        "id": found.id,
        "outcome": found.outcome,
        "stored": found.outcome == "stored",
        "rowNumber": found.row,
        "stepName": found.step,
    }


def wait(found: Wait) -> Document:
    """A row that waits for a signal; `signalKey` names this one wait and no other."""
    return {
        "operationId": found.operation_id,
        "rowNumber": found.row,
        "rowId": found.row_key,
        "stepName": found.step,
        "key": found.key,
        "signalKey": found.signal_key,
        "since": instant(found.since),
        "deadline": instant(found.deadline),
    }


def unclaimed(found: Unclaimed) -> Document:
    """A stored signal that no row has taken."""
    return {
        "id": found.id,
        "key": found.key,
        "outcome": found.outcome,
        "errorMessage": found.message,
        "acceptedAt": instant(found.accepted_at),
    }


def diagnosis(found: Diagnosis) -> Document:
    """What `doctor` looked at, and every symptom it found."""
    return {
        "isHealthy": found.is_healthy,
        "database": found.facts.database,
        "version": found.facts.version,
        "revision": found.facts.revision,
        "clockAheadSeconds": found.facts.clock_ahead_us / 1e6,
        "workers": [
            {"id": worker.id, "host": worker.host, "process": worker.process, "state": worker.state}
            for worker in found.facts.workers
        ],
        "openOperations": len(found.facts.operations),
        "storage": found.facts.storage,
        "findings": [_symptom(symptom) for symptom in found.symptoms],
    }


def _symptom(found: Symptom) -> Document:
    return {
        "check": found.check,
        "isProblem": found.is_problem,
        "what": found.what,
        "why": found.why,
        "remedy": found.remedy,
    }


def idempotency_key(found: KeyRecord) -> Document:
    """An idempotency key; `leaseUntil` only while its request runs."""
    return {
        "key": found.key,
        "request": found.label,
        "state": found.state,
        "attempt": found.attempt,
        "createdAt": instant(found.created_at),
        "leaseUntil": instant(found.lease_until),
        "completedAt": instant(found.finished_at),
        "expiresAt": instant(found.expires_at),
        "hasAnswer": found.has_answer,
    }


def file_check(found: FileCheck) -> Document:
    """What would become of a file."""
    fault = found.file_fault
    return {
        "operationName": found.operation,
        "isValid": found.is_valid,
        "totalRows": found.total_rows,
        "validRows": found.valid_rows,
        "invalidRows": found.invalid_rows,
        "metadataFaults": faults(found.metadata_faults),
        "fileFault": fault and {"code": fault.code, "message": fault.message, "faults": faults(fault.faults)},
        "stopReason": found.stop_reason,
        "errors": [error(wrong) for wrong in found.errors],
        "errorGroups": [error_group(group) for group in found.groups],
    }


def verify_report(found: VerifyReport) -> Document:
    """What `verify` looked at, and every difference it found."""
    return {
        "isClean": found.is_clean,
        "operations": found.operations,
        "chunks": found.chunks,
        "rows": found.rows,
        "differences": [_difference(difference) for difference in found.differences],
        "unlisted": found.unlisted,
    }


def _difference(found: Difference) -> Document:
    return {
        "rule": found.rule,
        "message": found.message,
        "operationId": found.operation,
        "chunk": found.chunk,
        "rowNumber": found.row,
    }


def faults(found: Iterable[Fault]) -> list[Document]:
    """Faults by field; the field is null when the whole is meant."""
    return [{"field": fault.field, "message": fault.message} for fault in found]


def instant(moment: datetime | None) -> str | None:
    """A moment as RFC 3339 in UTC."""
    if moment is None:
        return None
    in_utc = moment if moment.tzinfo is UTC else moment.astimezone(UTC)
    if in_utc.microsecond:
        return _ENCODER.encode(in_utc)[1:-1].decode()  # the same, several times as fast
    return in_utc.isoformat(timespec="microseconds").replace("+00:00", "Z")


_ENCODER = msgspec.json.Encoder()
