"""What must be true of an operation, given its log and what its chunks came to: pure rules, like those of chunks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from penstock.journal.queries import Entry
from penstock.operations.chunk.ledger import Ledger
from penstock.operations.counts import Counts
from penstock.operations.moves import Head, ending
from penstock.operations.proof.chunk_invariants import Finding
from penstock.operations.states import NOTES, OPERATION

__all__ = ["OPERATION_RULES", "OperationFacts"]


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
        """Whether the operation's state is a settled one."""
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
