"""What must be true of a chunk, its ledger and its records: pure rules, each yielding what it finds wrong.

A rule yields (row or None, sentence) pairs. To check more, write one more function and add it to the list.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields

from penstock.operations.chunk.ledger import (
    CANCELLED,
    COMPLETED,
    FAILED,
    INVALID,
    PENDING,
    SKIPPED,
    STATES,
    TIMED_OUT,
    WAITING,
    Ledger,
)
from penstock.operations.chunk.records import StepRecord
from penstock.operations.counts import Counts

__all__ = ["CHUNK_RULES", "ChunkFacts", "Finding", "ledger_matches_chunk"]

Finding = tuple[int | None, str]

_ENDED_WELL = frozenset((COMPLETED, SKIPPED))
_NEEDS_RECORD = frozenset((INVALID, FAILED, TIMED_OUT, WAITING))


@dataclass(frozen=True, slots=True)
class ChunkFacts:
    """One chunk, its ledger, its records and how many rows are stored with it (None: no data)."""

    id: int
    operation: int
    first_row: int
    row_count: int
    is_raw: bool
    is_open: bool
    owner: str | None
    counts: Counts
    ledger: Ledger
    records: Mapping[tuple[int, int], StepRecord]
    steps: int
    tracks_rows: bool
    stored_rows: int | None
    are_rows_pruned: bool = False  # their removal is under way

    def row(self, i: int) -> int:
        """The number of row i."""
        return self.first_row + i


def ledger_matches_chunk(chunk: ChunkFacts) -> Iterator[Finding]:
    """The ledger has this chunk's rows and the operation's steps."""
    found, right = (chunk.ledger.rows, chunk.ledger.steps), (chunk.row_count, chunk.steps)
    if found != right:
        yield None, f"its ledger has {found[0]} rows and {found[1]} steps, expected {right[0]} and {right[1]}"


def counters_match_ledger(chunk: ChunkFacts) -> Iterator[Finding]:
    """Each counter is what the ledger counts to."""
    recount = chunk.ledger.counts()
    for column in fields(Counts):
        found, right = getattr(chunk.counts, column.name), getattr(recount, column.name)
        if found != right:
            yield None, f"its counter {column.name} is {found}, its ledger has {right}"


def steps_are_in_order(chunk: ChunkFacts) -> Iterator[Finding]:
    """Steps before a row's current one ended well."""
    ledger = chunk.ledger
    for place in range(1, ledger.steps + 1):
        states = ledger.tracks[place].state
        if _ENDED_WELL.issuperset(states):
            continue
        for i, at in enumerate(ledger.at):
            if at > place and states[i] not in _ENDED_WELL:
                yield (
                    chunk.row(i),
                    f"is past step {place - 1}, which is {STATES[states[i]]}, expected Completed or Skipped",
                )


def current_steps_exist(chunk: ChunkFacts) -> Iterator[Finding]:
    """No row is beyond the end of the pipeline, and none at a step that has ended well."""
    ledger = chunk.ledger
    for i, at in enumerate(ledger.at):
        if at > ledger.steps + 1:
            yield chunk.row(i), f"stands at step {at - 1}, the pipeline has {ledger.steps}"
        elif at <= ledger.steps and at and ledger.tracks[at].state[i] in _ENDED_WELL:
            yield chunk.row(i), f"stands at step {at - 1}, which is already {STATES[ledger.tracks[at].state[i]]}"


def running_rows_have_an_owner(chunk: ChunkFacts) -> Iterator[Finding]:
    """Nothing is in flight in a chunk that nobody owns, nor after its verdict."""
    if not any(chunk.ledger.in_flight):
        return
    for i, is_in_flight in enumerate(chunk.ledger.in_flight):
        if is_in_flight and chunk.owner is None:
            yield chunk.row(i), "is in flight, but nobody owns its chunk"
        elif is_in_flight and chunk.ledger.is_terminal(i):
            yield chunk.row(i), "is in flight, but has its verdict"


def closed_chunks_have_ended(chunk: ChunkFacts) -> Iterator[Finding]:
    """A closed chunk has no owner, nothing to validate and only rows with a verdict."""
    if chunk.is_open:
        return
    if chunk.owner is not None:
        yield None, f"it is closed, but owned by {chunk.owner}"
    if chunk.is_raw:
        yield None, "it is closed, but its rows are not validated"
    if not chunk.ledger.is_over:
        for i in chunk.ledger.unfinished():
            yield chunk.row(i), f"is {STATES[chunk.ledger.state(i)]} in a closed chunk, expected a verdict"


def steps_have_records(chunk: ChunkFacts) -> Iterator[Finding]:
    """A row that is invalid, failed, timed out, waiting or was retried has a record of it."""
    ledger = chunk.ledger
    for i in _may_need_records(ledger):
        place = ledger.at[i]
        if place <= ledger.steps and ledger.tracks[place].state[i] in _NEEDS_RECORD:
            yield from _must_have_record(chunk, i, place, f"is {STATES[ledger.tracks[place].state[i]]}")
        for done in range(1, min(place, ledger.steps) + 1):
            if ledger.tracks[done].attempt[i] > 1 and not (done == place and ledger.in_flight[i]):
                yield from _must_have_record(chunk, i, done, f"took {ledger.tracks[done].attempt[i]} attempts")


def _may_need_records(ledger: Ledger) -> list[int]:
    """Rows that may need a record, found by whole columns."""
    retried = any(max(track.attempt, default=0) > 1 for track in ledger.tracks)
    failed = any(not (_ENDED_WELL | {PENDING}).issuperset(track.state) for track in ledger.tracks)
    return list(range(ledger.rows)) if retried or failed else []


def _must_have_record(chunk: ChunkFacts, i: int, place: int, what: str) -> Iterator[Finding]:
    if (chunk.row(i), place - 1) not in chunk.records:
        yield chunk.row(i), f"{what} at step {place - 1}, but has no record of it"


def records_match_ledger(chunk: ChunkFacts) -> Iterator[Finding]:
    """Each record belongs to a row and a step of this chunk, and says of it what the ledger says."""
    for (row, step), record in chunk.records.items():
        i, place = row - chunk.first_row, step + 1
        if not 0 <= i < chunk.ledger.rows:
            end = chunk.first_row + chunk.row_count - 1
            yield row, f"has a record in a chunk that holds rows {chunk.first_row} to {end}"
        elif not 0 <= place <= chunk.ledger.steps:
            yield row, f"has a record of step {step}, the pipeline has {chunk.ledger.steps} steps"
        else:
            yield from _disagreements(chunk, i, place, record)
        if record.operation != chunk.operation:
            yield row, f"has a record of operation number {record.operation}, expected {chunk.operation}"


def _disagreements(chunk: ChunkFacts, i: int, place: int, record: StepRecord) -> Iterator[Finding]:
    ledger, row = chunk.ledger, chunk.row(i)
    track = ledger.tracks[place]
    # The record of a row's last error is brought up to date when the row leaves its steps, not when it starts again.
    may_lag = record.state == "Pending" and not ledger.is_terminal(i)
    if record.state != STATES[track.state[i]] and not may_lag:
        yield row, f"is {STATES[track.state[i]]} at step {record.step}, its record says {record.state}"
    if place and record.attempt != track.attempt[i] and not (may_lag and record.attempt < track.attempt[i]):
        yield row, f"took {track.attempt[i]} attempts at step {record.step}, its record says {record.attempt}"
    is_current = place == ledger.at[i]
    if record.generation > ledger.generation[i] or (is_current and record.generation != ledger.generation[i]):
        yield row, f"is in generation {ledger.generation[i]}, its record of step {record.step} says {record.generation}"
    if record.state in ("Failed", "TimedOut") and not is_current:
        yield row, f"stands at step {ledger.at[i] - 1}, its record of step {record.step} says {record.state}"


def waits_have_deadlines(chunk: ChunkFacts) -> Iterator[Finding]:
    """Each wait has a deadline."""
    for (row, step), record in chunk.records.items():
        if record.state == "WaitingForCompletion" and record.deadline is None:
            yield row, f"waits at step {step} without a deadline"


def rows_are_stored(chunk: ChunkFacts) -> Iterator[Finding]:
    """Tracked rows are there, all of them, once they were validated; others are not."""
    if not chunk.tracks_rows:
        if chunk.stored_rows is not None and not chunk.are_rows_pruned:
            yield None, f"it stores {chunk.stored_rows} rows, but the operation does not track row data"
    elif chunk.stored_rows is None:
        if not (chunk.is_raw or {PENDING, CANCELLED} & {*chunk.ledger.tracks[0].state}):
            yield None, "its row data is missing"
    elif chunk.stored_rows != chunk.row_count:
        yield None, f"it stores {chunk.stored_rows} rows, expected {chunk.row_count}"


ChunkRule = Callable[[ChunkFacts], Iterator[Finding]]

CHUNK_RULES: Sequence[ChunkRule] = (
    counters_match_ledger,
    current_steps_exist,
    steps_are_in_order,
    running_rows_have_an_owner,
    closed_chunks_have_ended,
    steps_have_records,
    records_match_ledger,
    waits_have_deadlines,
    rows_are_stored,
)
