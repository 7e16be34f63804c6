"""What requests, signals and deadlines do to a chunk's rows, in that order. Pure.

The owner calls these inside its settling transaction on a copy of its chunk, and again on the chunk itself once that is
committed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from penstock.operations.chunk.ledger import CANCELLED, FAILED, INVALID, PENDING, TIMED_OUT, WAITING
from penstock.operations.chunk.owned import OwnedChunk
from penstock.operations.inbox.matching import Match
from penstock.operations.states import ROW_STEP

__all__ = ["Request", "SignalContent", "apply_deadlines", "apply_requests", "apply_signals", "refusal"]


@dataclass(frozen=True, slots=True)
class Request:
    """A request to run failed rows again: one row, or every eligible row of the chunk when `row` is None."""

    id: int
    row: int | None
    confirms_doubt: int  # 0 or 1
    data: Any
    accepted_at: int


@dataclass(frozen=True, slots=True)
class SignalContent:
    """What a signal says: `ok` with a payload that becomes the step's output, or `failed` with a message.

    To a row whose step cannot have the payload for its output it says `unfit`, with the reason for a message.
    """

    outcome: str
    payload: Any
    message: str | None


def apply_signals(owned: OwnedChunk, matches: Mapping[Match, SignalContent], now: int) -> None:
    """End the waits that were matched; a payload becomes the step's output."""
    for found, content in matches.items():
        i = found.row - owned.first_row
        place = owned.ledger.at[i]
        if content.outcome == "ok":
            if content.payload is not None:
                owned.store_output(i, place, msgspec.json.encode(content.payload), now)
            owned.end_wait(i, place, "signalled", now)
        else:
            # An output that is not what the step declares is a failure of the step; nobody has said that it failed.
            error_type = "StepFailure" if content.outcome == "unfit" else "SignalFailure"
            owned.end_wait(i, place, "signal_failed", now, error_type=error_type, message=content.message)


def apply_deadlines(owned: OwnedChunk, now: int) -> None:
    """Time out the rows that wait for a signal past their deadline; a polled row gets one last check instead."""
    ledger = owned.ledger
    for (row, step), record in list(owned.records.items()):
        i, place = row - owned.first_row, step + 1
        if (
            record.deadline is not None
            and record.deadline <= now
            and ledger.at[i] == place
            and ledger.tracks[place].state[i] == WAITING
            and owned.option(place, "kind") == "signal"
        ):
            owned.time_out(i, place, now)


def refusal(owned: OwnedChunk, i: int, *, is_named: bool, confirms_doubt: bool, has_data: bool) -> str | None:
    """Why row i cannot be run again, or None when it can."""
    ledger = owned.ledger
    place = ledger.at[i]
    state = ledger.state(i)
    if place == 0:
        if state == INVALID and not has_data:
            return "it failed validation; correct its data first"
        return None if state in (INVALID, FAILED, CANCELLED) else "it is being validated"
    if state not in (FAILED, TIMED_OUT, CANCELLED):
        return "it has succeeded" if place > ledger.steps else "it is still on its way"
    record = owned.record_of(i, place)
    if record is not None and record.error_type == "InDoubt" and not (is_named and confirms_doubt):
        return "it is in doubt; name it and confirm that it may run twice"
    if not owned.option(place, "allow_operation_retry"):
        return f"step {owned.plan['steps'][place - 1]['name']!r} does not allow a retry"
    return None


def apply_requests(
    owned: OwnedChunk, requests: Iterable[Request], raw_of: Callable[[int], Any], now: int
) -> Mapping[int, str]:
    """Reset the requested rows, each into its next generation; returns the outcome of each request, by id."""
    outcomes = {}
    for request in requests:
        rows = range(owned.row_count) if request.row is None else (request.row - owned.first_row,)
        is_named, confirms, has_data = request.row is not None, bool(request.confirms_doubt), request.data is not None
        reset = 0
        why = "nothing to run again"
        for i in rows:
            refused = refusal(owned, i, is_named=is_named, confirms_doubt=confirms, has_data=has_data)
            if refused is None:
                _reset(owned, i, request, raw_of(i), now)
                reset += 1
            elif is_named:
                why = refused
        outcomes[request.id] = f"applied to {reset} rows" if reset else f"refused: {why}"
    return outcomes


def _reset(owned: OwnedChunk, i: int, request: Request, raw: Any, now: int) -> None:
    ledger = owned.ledger
    place = ledger.at[i]
    old = owned.record_of(i, place)
    if old is None:
        old = owned.record(i, place, "Cancelled", now)
        old.set_error("Cancelled", "the operation was stopped")
    owned.add_history(old, "edited" if request.data is not None else "retried", at=old.at, data=raw)
    ledger.generation[i] += 1
    ledger.lost[i] = 0
    track = ledger.tracks[place]
    track.attempt[i], track.state[i] = 0, PENDING
    track.outputs.pop(i, None)
    record = owned.record(i, place, ROW_STEP.after(old.state, "reset"), now)
    record.errors, record.put_off_since, record.due_at, record.deadline, record.signal_key = 0, None, None, None, None
    record.since = request.accepted_at
    record.faults = record.output = None
    record.set_error(None, None)
    if request.data is not None:
        ledger.tracks[0].state[i] = PENDING
        edited = owned.record(i, 0, "Pending", now)
        edited.data, edited.since, edited.faults = request.data, request.accepted_at, None
        edited.set_error(None, None)
