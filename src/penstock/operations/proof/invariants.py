"""What must be true of a chunk, its ledger and its records, and of an operation, its log and what its chunks came to.

A rule is pure and yields (row or None, sentence) pairs. To check more, write one more function and add it to the list.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

from penstock.journal.queries import Entry
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
from penstock.operations.moves import Head, ending
from penstock.operations.states import NOTES, OPERATION

__all__ = ["CHUNK_RULES", "OPERATION_RULES", "ChunkFacts", "Finding", "OperationFacts", "ledger_matches_chunk"]

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


@dataclass(slots=True)
class OperationFacts:
    """An operation, its log, and what its chunks came to."""

    head: Head
    total_rows: int
    finished_at: int | None
    log: Sequence[Entry]
    suspect_row: int | None = None
    chunks: int = 0
    open_chunks: int = 0
    raw_chunks: int = 0
    last_row: int = 0
    unfinished: int = 0
    counts: Counts = field(default_factory=Counts)

    def add_chunk(self, chunk: Any) -> None:
        """Count one more chunk, by its record, whether or not its ledger can be read."""
        self.chunks += 1
        self.open_chunks += chunk.is_open
        self.raw_chunks += chunk.is_raw and chunk.is_open
        self.last_row = max(self.last_row, chunk.first_row + chunk.row_count - 1)

    def add_ledger(self, ledger: Ledger) -> None:
        """Count what a chunk's ledger says, not what its counters say."""
        self.unfinished += 0 if ledger.is_over else len(ledger.unfinished())
        self.counts += ledger.counts()

    @property
    def is_settled(self) -> bool:
        return OPERATION.is_settled(self.head.state)


def open_chunks_are_counted(facts: OperationFacts) -> Iterator[Finding]:
    """`open_chunks` counts what is open: chunks, and the reading."""
    right = facts.open_chunks + (facts.head.reading == "open")
    if facts.head.open_chunks != right:
        yield None, f"open_chunks is {facts.head.open_chunks}, expected {right}"
    if facts.head.raw_chunks != facts.raw_chunks:
        yield None, f"raw_chunks is {facts.head.raw_chunks}, expected {facts.raw_chunks}"


def settled_operations_have_ended(facts: OperationFacts) -> Iterator[Finding]:
    """A settled operation has nothing open, nothing unfinished and no owner; any other has something open."""
    head = facts.head
    if facts.is_settled != (facts.finished_at is not None):
        yield None, f"it is {head.state}, but finished_at is {'set' if facts.finished_at is not None else 'missing'}"
    if head.owner is not None and head.reading != "open":
        yield None, f"its file is read ({head.reading}), but {head.owner} owns the reading"
    if not facts.is_settled:
        if not head.open_chunks:
            yield None, f"it is {head.state}, but nothing of it is open, expected a settled state"
        return
    if head.open_chunks:
        yield None, f"it is {head.state}, but {head.open_chunks} chunks are open, expected none"
    if facts.unfinished:
        yield None, f"it is {head.state}, but {facts.unfinished} rows have no verdict"
    if head.owner is not None:
        yield None, f"it is {head.state}, but {head.owner} owns it"


def rows_are_counted(facts: OperationFacts) -> Iterator[Finding]:
    """Every row that was read is in a chunk."""
    head = facts.head
    if head.rows_read != facts.last_row:
        yield None, f"rows_read is {head.rows_read}, its chunks end at row {facts.last_row}"
    total = 0 if head.reading == "open" else facts.last_row
    if facts.total_rows != total:
        yield None, f"total_rows is {facts.total_rows}, expected {total} (reading is {head.reading})"


def reading_fields_are_consistent(facts: OperationFacts) -> Iterator[Finding]:
    """What belongs to the reading of the file is there while it is read, and points behind what was stored."""
    head = facts.head
    if facts.suspect_row is not None:
        if head.reading == "complete":
            yield None, f"its file is read, but row {facts.suspect_row} of it is still suspected"
        elif head.reading == "open" and facts.suspect_row <= head.rows_read:
            yield None, f"row {facts.suspect_row} is suspected, but rows up to {head.rows_read} are stored"
    if facts.raw_chunks and head.state not in ("Validating", "Paused", "Stopping"):
        yield None, f"it is {head.state}, but {facts.raw_chunks} chunks are not validated"


def state_follows_from_rows(facts: OperationFacts) -> Iterator[Finding]:
    """The last move is the one that the verdicts and the stop outcome lead to."""
    head = facts.head
    last = next((entry for entry in reversed(facts.log) if entry.event not in NOTES), None)
    if head.state == "Stopping" and head.stop_outcome not in ("Cancelled", "Failed"):
        yield None, f"it is Stopping, but stop_outcome is {head.stop_outcome}, expected Cancelled or Failed"
    if last is None or not facts.is_settled or last.source is None:
        return
    if last.event == "rejected" or last.source == OPERATION.initial:
        if facts.chunks:
            yield None, f"it was {last.event} before it ran, but has {facts.chunks} chunks"
        return
    right = OPERATION.moves.get((last.source, ending(replace(head, state=last.source), facts.counts)))
    if head.state != right:
        yield None, f"it is {head.state}, its rows lead to {right}"


def transition_log_is_consistent(facts: OperationFacts) -> Iterator[Finding]:
    """The transition log leads from creation to the present state by moves that the table lists."""
    if not facts.log:
        yield None, "its transition log is empty"
        return
    state: str | None = None
    for entry in facts.log:
        move = f"entry {entry.sequence} of its log ({entry.source} -{entry.event}-> {entry.target})"
        if entry.source != state:
            yield None, f"{move} does not follow {state}"
        right = OPERATION.initial if entry.event == "created" else OPERATION.moves.get((str(entry.source), entry.event))
        right = state if entry.event in NOTES else right
        if (entry.event == "created") != (entry is facts.log[0]) or entry.target != right:
            yield None, f"{move} is not a move of the operation machine"
        state = entry.target
    if state != facts.head.state:
        yield None, f"it is {facts.head.state}, its log ends at {state}"


OperationRule = Callable[[OperationFacts], Iterator[Finding]]

OPERATION_RULES: Sequence[OperationRule] = (
    open_chunks_are_counted,
    settled_operations_have_ended,
    rows_are_counted,
    reading_fields_are_consistent,
    state_follows_from_rows,
    transition_log_is_consistent,
)
