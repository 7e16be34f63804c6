"""What word from outside does to a chunk's rows: requests, signals and deadlines, in that order. Pure.

The owner calls these inside its settling transaction, on a copy of what it holds, and again on the real thing
once that is committed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from penstock.operations import hearing
from penstock.operations.held import Held
from penstock.operations.ledger import CANCELLED, FAILED, INVALID, PENDING, TIMED_OUT, WAITING
from penstock.operations.running.outcomes import end_wait, waited_out
from penstock.operations.states import ROW_STEP

__all__ = [
    "Match",
    "Request",
    "Signal",
    "Waiter",
    "Word",
    "apply_deadlines",
    "apply_requests",
    "apply_signals",
    "match",
    "refusal",
]


@dataclass(frozen=True, slots=True)
class Request:
    """A wish that failed rows run again: one row, or every eligible row of the chunk when `row` is None."""

    id: int
    kind: str
    row: int | None
    confirms_doubt: bool
    data: Any
    accepted_at: int


@dataclass(frozen=True, slots=True)
class Signal:
    """Whom a signal is for: whoever waits on `key`; with `row`, that row only."""

    id: int
    key: str
    row: int | None
    accepted_at: int


@dataclass(frozen=True, slots=True)
class Word:
    """What a signal says: `ok` with a payload that becomes the step's output, or `failed` with a message."""

    outcome: str
    payload: Any
    message: str | None


@dataclass(frozen=True, slots=True)
class Waiter:
    """A row that waits on a key; it hears only what was accepted since its generation began."""

    row: int
    step: int
    chunk: int
    key: str
    since: int

    def hears(self, signal: Signal) -> bool:
        """Whether this signal may end this wait."""
        return hearing.hears(signal, key=self.key, row=self.row, since=self.since)


@dataclass(frozen=True, slots=True)
class Match:
    """A signal and the row whose wait it ends."""

    signal: Signal
    row: int
    step: int
    chunk: int


def match(signals: Sequence[Signal], waiters: Sequence[Waiter]) -> list[Match]:
    """Oldest signal first, each to the lowest row that hears it."""
    waiting: dict[str, list[Waiter]] = {}
    for waiter in sorted(waiters, key=lambda waiter: waiter.row):
        waiting.setdefault(waiter.key, []).append(waiter)
    matches = []
    for signal in sorted(signals, key=lambda signal: signal.id):
        listening = waiting.get(signal.key, [])
        taker = next((waiter for waiter in listening if waiter.hears(signal)), None)
        if taker is None:
            continue
        listening.remove(taker)
        matches.append(Match(signal, taker.row, taker.step, taker.chunk))
    return matches


def apply_signals(held: Held, matches: Mapping[Match, Word], now: int) -> None:
    """End the waits that were matched; a payload becomes the step's output."""
    for found, word in matches.items():
        i = found.row - held.first_row
        place = held.ledger.at[i]
        if word.outcome == "ok":
            if word.payload is not None:
                held.ledger.tracks[place].outputs[i] = msgspec.json.encode(word.payload)
            end_wait(held, i, place, "signalled", now)
        else:
            end_wait(held, i, place, "signal_failed", now, error_type="SignalFailure", message=word.message)


def apply_deadlines(held: Held, now: int) -> None:
    """Signalled rows whose deadline has passed are TimedOut; a polled row gets one last check instead."""
    ledger = held.ledger
    for (row, step), story in list(held.stories.items()):
        i, place = row - held.first_row, step + 1
        if (
            story.deadline is not None
            and story.deadline <= now
            and ledger.at[i] == place
            and ledger.tracks[place].state[i] == WAITING
            and held.option(place, "kind") == "signal"
        ):
            message = waited_out(held.option(place, "timeout"))
            end_wait(held, i, place, "timed_out", now, error_type="Timeout", message=message)


def refusal(held: Held, i: int, *, is_named: bool, confirms_doubt: bool, has_data: bool) -> str | None:
    """Why row i cannot be run again, or None when it can."""
    ledger = held.ledger
    place = ledger.at[i]
    state = ledger.state(i)
    if place == 0:
        if state == INVALID and not has_data:
            return "it failed validation; correct its data first"
        return None if state in (INVALID, FAILED, CANCELLED) else "it is being validated"
    if state not in (FAILED, TIMED_OUT, CANCELLED):
        return "it has succeeded" if place > ledger.steps else "it is still on its way"
    story = held.told(i, place)
    if story is not None and story.error_type == "InDoubt" and not (is_named and confirms_doubt):
        return "it is in doubt; name it and confirm that it may run twice"
    if not held.option(place, "allow_operation_retry"):
        return f"step {held.plan['steps'][place - 1]['name']!r} does not allow a retry"
    return None


def apply_requests(
    held: Held, requests: Iterable[Request], raw_of: Callable[[int], Any], now: int
) -> Mapping[int, str]:
    """Reset the rows that are asked for, each into its next generation; says by request what became of it."""
    outcomes = {}
    for request in requests:
        rows = range(held.row_count) if request.row is None else (request.row - held.first_row,)
        reset = 0
        why = "nothing to run again"
        for i in rows:
            has_data = request.data is not None
            refused = refusal(
                held, i, is_named=request.row is not None, confirms_doubt=request.confirms_doubt, has_data=has_data
            )
            if refused is None:
                _reset(held, i, request, raw_of(i), now)
                reset += 1
            elif request.row is not None:
                why = refused
        outcomes[request.id] = f"applied to {reset} rows" if reset else f"refused: {why}"
    return outcomes


def _reset(held: Held, i: int, request: Request, raw: Any, now: int) -> None:
    ledger = held.ledger
    place = ledger.at[i]
    old = held.told(i, place)
    if old is None:
        old = held.story(i, place, "Cancelled", now)
        old.tell("Cancelled", "the operation was stopped")
    held.note(old, "edited" if request.data is not None else "retried", at=old.at, data=raw)
    ledger.generation[i] += 1
    ledger.lost[i] = 0
    track = ledger.tracks[place]
    track.attempt[i], track.state[i] = 0, PENDING
    track.outputs.pop(i, None)
    story = held.story(i, place, ROW_STEP.after(old.state, "reset"), now)
    story.errors, story.put_off_since, story.due_at, story.deadline, story.signal_key = 0, None, None, None, None
    story.since = request.accepted_at
    story.faults = None
    story.tell(None, None)
    if request.data is not None:
        ledger.tracks[0].state[i] = PENDING
        edited = held.story(i, 0, "Pending", now)
        edited.data, edited.since, edited.faults = request.data, request.accepted_at, None
        edited.tell(None, None)
