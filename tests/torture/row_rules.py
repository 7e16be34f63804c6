"""Rows after the storm: none is missing, and each verdict follows from its data or from a fault."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from pydantic import ValidationError

from penstock.operations.model import RowView, StepView

from .facts import Evidence
from .kinds import fails_until, is_barred
from .ordeal import ONCE, POLL_TIMEOUT_S, SIGNAL_TIMEOUT_S, Parcel, is_wanted, worth

__all__ = ["rows_are_conserved", "verdicts_follow_from_the_data", "waits_last_their_time"]

CLOCK_S = 0.1
POISON_LOST = 4


def rows_are_conserved(evidence: Evidence) -> Iterator[str]:
    """Rows are numbered 1 to N; N is the file's when it was read to the end; each has a verdict."""
    operation, numbers = evidence.operation, list(evidence.rows)
    if numbers != list(range(1, len(numbers) + 1)):
        yield f"its rows are numbered {numbers}"
    created = evidence.acknowledged("create")
    sent = created[0].detail["rows"] if created else None
    was_cut_short = evidence.had("cancel_requested", "cancelled", "broke", "rejected")
    if sent is not None and len(numbers) != sent and not (was_cut_short and len(numbers) < sent):
        yield f"it has {len(numbers)} rows, {sent} were sent"
    states = Counter(row.state for row in evidence.rows.values())
    told = {
        "Completed": operation.successful_rows,
        "Invalid": operation.invalid_rows,
        "TimedOut": operation.timed_out_rows,
        "Cancelled": operation.cancelled_rows,
        "Failed": operation.failed_rows - operation.invalid_rows - operation.timed_out_rows,
    }
    if +Counter(told) != states:
        yield f"its counters say {told}, its rows {dict(states)}"


def verdicts_follow_from_the_data(evidence: Evidence) -> Iterator[str]:
    """Each row's verdict and outputs are what its data leads to, or an error that the faults explain."""
    for row in evidence.rows.values():
        wrong = _objection(evidence, row)
        if wrong:
            yield f"row {row.number} is {row.state} at {row.step_name}: {wrong}"


def _objection(evidence: Evidence, row: RowView) -> str | None:
    current = row.steps[-1]
    try:
        parcel = Parcel.model_validate(row.data)
    except ValidationError:
        return None if row.state in ("Invalid", "Cancelled") else "its data is not valid"
    if is_barred(evidence.operation.name, parcel):
        return None if row.state in ("Invalid", "Cancelled") else "its validation refuses it"
    if row.state == "Completed":
        return _wrong_outputs(evidence, row, parcel)
    if row.state == "TimedOut":
        return _wrong_timeout(current)
    return _unexplained(evidence, row, parcel, current)


def _wrong_outputs(evidence: Evidence, row: RowView, parcel: Parcel) -> str | None:
    for step in row.steps[1:]:
        if step.name == "approve":
            taken = [s for s in evidence.signals if (s.row, s.step) == (row.number, step.index) and s.outcome == "ok"]
            wanted = taken[-1].payload if taken else "no signal was taken"
        elif step.name == "enrich" and not is_wanted(parcel):
            wanted = None
        else:
            wanted = worth(step.name, parcel)
        if step.output != wanted and not _was_edited(evidence, row.number):
            return f"{step.name} left {step.output!r}, expected {wanted!r}"
        if step.state not in ("Completed", "Skipped"):
            return f"{step.name} is {step.state}"
    return None


def _was_edited(evidence: Evidence, row: int) -> bool:
    """Whether steps that ran before an edit left outputs of the old data."""
    return any(line.row == row and line.event == "edited" for line in evidence.history)


def waits_last_their_time(evidence: Evidence) -> Iterator[str]:
    """No wait times out before its time, as the witnesses' clock tells, which is nobody's wall clock."""
    for row in evidence.rows.values():
        step = row.steps[-1]
        seen = evidence.sightings.settled.get((row.number, step.index, row.generation))
        place = (row.number, step.name, row.generation, step.attempt, "end")
        begun = [e.t for e in evidence.effects if (e.row, e.step, e.generation, e.attempt, e.what) == place]
        if row.state == "TimedOut" and seen is not None and begun and seen - begun[-1] < _LIMITS[step.name] - CLOCK_S:
            yield f"row {row.number} timed out within {seen - begun[-1]:.2f} s of {_LIMITS[step.name]:g} at {step.name}"


_LIMITS = {"approve": SIGNAL_TIMEOUT_S, "ship": POLL_TIMEOUT_S}


def _wrong_timeout(step: StepView) -> str | None:
    limit = _LIMITS.get(step.name)
    if limit is None:
        return "the step has no time limit"
    assert step.started_at is not None
    assert step.ended_at is not None
    waited = (step.ended_at - step.started_at).total_seconds()
    return None if waited >= limit - CLOCK_S else f"it waited {waited:.3f} s of {limit:g}"


def _unexplained(evidence: Evidence, row: RowView, parcel: Parcel, step: StepView) -> str | None:
    """None when the faults or the data explain why a valid row did not succeed."""
    message = step.message or ""
    match row.state, step.error_type:
        case "Cancelled", _:
            is_explained = evidence.had("cancel_requested", "broke")
        case "Invalid", "Poison":
            # Its readers were killed again and again at this very row.
            is_explained = "validator" in message or evidence.lost.get(row.number, 0) >= POISON_LOST
        case "Failed", "StepFailure" if "stubborn" in message:
            is_explained = row.generation < fails_until(evidence.operation.name, parcel)
        case "Failed", "StepFailure":
            # Earlier outputs are of the data before the edit.
            is_explained = step.name == "finish" and _was_edited(evidence, row.number)
        case "Failed", "InDoubt":
            is_explained = step.name in ONCE
        case "Failed", "Poison":
            is_explained = evidence.lost.get(row.number, 0) >= POISON_LOST
        case "Failed", "SignalFailure":
            place = (row.number, step.index, row.generation, "failed")
            is_explained = place in {(s.row, s.step, s.generation, s.outcome) for s in evidence.signals}
        case _:
            is_explained = False
    return None if is_explained else f"nothing explains {step.error_type}: {message}"
