"""A chunk as its owner has it in memory, and what happens to its rows when their worker is lost or must stop."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from penstock.operations.chunk.ledger import CANCELLED, FAILED, INVALID, PENDING, RUNNING, STATES, WAITING, Ledger
from penstock.operations.chunk.records import ROW_KEY_MAX, StepRecord
from penstock.operations.counts import Counts
from penstock.operations.messages import cut, in_doubt
from penstock.operations.states import ROW_STEP

__all__ = ["GIVEN_UP", "ChunkWrite", "OwnedChunk", "RowPlaces", "cancel_unfinished", "interrupt", "no_key", "recover"]

# A row that was lost with its worker runs in a small group, then alone; lost twice while alone, it is poison.
POISON_LOST = 4
GIVEN_UP = "nobody"  # the owner of a chunk that its worker could not go on with; no worker has this id
CHECKS_NOTED_MAX = 100  # of one wait; later ones are only counted, whatever they raise


@dataclass(frozen=True, slots=True)
class RowPlaces:
    """Which rows were in flight at some moment, at which place each row was, and which of them waited."""

    in_flight: bytes = b""
    at: bytes = b""
    waiting: frozenset[int] = frozenset()

    @classmethod
    def of(cls, ledger: Ledger) -> RowPlaces:
        """As the ledger is now."""
        in_flight, at = bytes(ledger.in_flight), bytes(ledger.at)
        if not any(WAITING in track.state for track in ledger.tracks[1:]):
            return cls(in_flight, at)
        return cls(in_flight, at, frozenset(i for i in range(ledger.rows) if ledger.state(i) == WAITING))


@dataclass(frozen=True, slots=True)
class ChunkWrite:
    """What one commit writes of a chunk, fixed before it begins: rows may go on while it runs."""

    written_places: RowPlaces
    ledger: bytes
    counts: Counts
    steps_done: int
    records: Mapping[tuple[int, int], Mapping[str, Any]]
    lines: Sequence[Mapping[str, Any]]
    rows: Mapping[str, Any] | None

    def columns(self) -> dict[str, Any]:
        """What is written to the chunk's own record."""
        return {"ledger": self.ledger, **self.counts.columns(), "steps_done": self.steps_done}


def no_key(_: int) -> None:
    """The key of a row, for whoever cannot read it."""


@dataclass(slots=True)
class OwnedChunk:
    """A claimed chunk: on disk as of `version`; what was changed since is in `changed` and `lines`."""

    plan: Mapping[str, Any]
    id: int
    operation: int
    operation_state: str
    first_row: int
    row_count: int
    source_offset: int
    fence: int
    version: int
    is_open: bool
    is_raw: bool  # its rows are still to be validated, by whoever claims it
    unsuccessful: int  # rows, as of `version`
    message_count: int
    ledger: Ledger
    data: bytes | None
    was_given_up: bool = False  # by a worker that lives on: see `GIVEN_UP`
    has_trouble: bool = False  # somebody could not go on with the operation
    columns: tuple[str, ...] | None = None  # of a candidate: what the cells of its rows are called
    unstored: Mapping[str, bytes | None] | None = None  # the rows, to be stored with our next write
    records: dict[tuple[int, int], StepRecord] = field(default_factory=dict)  # by (row number, step)
    changed: set[tuple[int, int]] = field(default_factory=set)
    lines: list[dict[str, Any]] = field(default_factory=list)  # history not yet written
    written_places: RowPlaces = RowPlaces()  # as of our last write
    key_of: Callable[[int], str | None] = no_key  # of row i, for whoever can read the rows

    @property
    def rows(self) -> range:
        """The numbers of its rows."""
        return range(self.first_row, self.first_row + self.row_count)

    @property
    def is_validated(self) -> bool:
        """Whether no row is left to be validated."""
        return PENDING not in self.ledger.tracks[0].state

    def record_of(self, i: int, place: int) -> StepRecord | None:
        """The record of row i's step, if it has one."""
        return self.records.get((self.first_row + i, place - 1))

    def record(self, i: int, place: int, state: str, now: int) -> StepRecord:
        """The record of row i's step, made when it has none, in its new state."""
        key = (self.first_row + i, place - 1)
        record = self.records.get(key)
        if record is None:
            record = self.records[key] = StepRecord(self.id, *key, self.operation, state, now)
        record.state, record.at = state, now
        record.generation, record.attempt = self.ledger.generation[i], self.ledger.tracks[place].attempt[i]
        self.changed.add(key)
        return record

    def close_records(self, i: int, place: int, now: int) -> None:
        """Bring the records of earlier attempts up to date, at steps before this one that have ended well since."""
        for done in range(1, place):
            record = self.record_of(i, done)
            if record is not None and record.state == "Pending":
                record = self.record(i, done, STATES[self.ledger.tracks[done].state[i]], now)
                record.due_at = None
                record.set_error(None, None)

    def store_output(self, i: int, place: int, output: bytes, now: int) -> None:
        """Keep what a step of row i that is about to be Completed returned: in the ledger, or in the step's record."""
        if self.ledger.add_output(i, place, output):
            return
        record = self.record_of(i, place) or self.record(i, place, "Completed", now)
        record.output = output
        self.changed.add((record.row, record.step))

    def add_history(self, record: StepRecord, event: str, *, at: int | None = None, data: Any = None) -> None:
        """Add a line to the row's history."""
        self.lines.append(record.history_line(event, record.at if at is None else at, data))

    def check_raised(self, record: StepRecord, message: str, now: int) -> None:
        """Note that a poll's check raised. Only the first time, and an error of another kind, gets a line of history.

        The record counts the others and keeps the last message, for the next owner too.
        """
        before = record.error_group
        record.set_error("StepFailure", message)
        record.errors += 1
        if record.error_group != before and record.errors <= CHECKS_NOTED_MAX:
            self.add_history(record, "check_raised", at=now)

    def end_checks(self, i: int, place: int, now: int) -> None:
        """Row i is about to stop waiting: if several of its checks raised, a line of history says how many."""
        record = self.record_of(i, place)
        if record is None or record.state != "WaitingForCompletion" or record.message is None or record.errors < 2:
            return
        record.set_error(record.error_type, cut(f"{record.errors:,} checks raised; the last: {record.message}"))
        self.add_history(record, "check_raised", at=now)

    def end_wait(
        self, i: int, place: int, event: str, now: int, *, error_type: str | None = None, message: str | None = None
    ) -> None:
        """End the wait of row i by an event; where that completes the step, the row moves on to the next one."""
        track, state = self.ledger.tracks[place], ROW_STEP.after("WaitingForCompletion", event)
        track.took[i] = max(1, now - self.ledger.base - track.began[i])
        track.state[i] = STATES.index(state)
        self.ledger.in_flight[i] = 0
        if state == "Completed":
            self.ledger.at[i] = place + 1
        self.end_checks(i, place, now)
        record = self.record(i, place, state, now)
        record.due_at = record.deadline = None
        record.set_error(error_type, message)

    def time_out(self, i: int, place: int, now: int) -> None:
        """End the wait of row i, because nobody answered in time."""
        message = f"nobody answered within {self.option(place, 'timeout'):g} s"
        self.end_wait(i, place, "timed_out", now, error_type="Timeout", message=message)

    def writing(self) -> ChunkWrite:
        """What has to be written now."""
        records = {key: self._columns(key) for key in sorted(self.changed)}
        rows = None if self.unstored is None else {"chunk": self.id, **self.unstored}
        written_places, lines = RowPlaces.of(self.ledger), tuple(self.lines)
        ledger = self.ledger
        return ChunkWrite(written_places, ledger.encode(), ledger.counts(), ledger.steps_done(), records, lines, rows)

    def written(self, writing: ChunkWrite) -> None:
        """Note that this is on disk; what changed while it was being written is still to be written."""
        self.version += 1
        self.written_places = writing.written_places
        self.unstored = None
        self.changed -= {key for key, columns in writing.records.items() if self._columns(key) == columns}
        del self.lines[: len(writing.lines)]

    def _columns(self, key: tuple[int, int]) -> dict[str, Any]:
        record = self.records[key]
        if record.row_key is None and (found := self.key_of(record.row - self.first_row)):
            record.row_key = cut(found, ROW_KEY_MAX)
        return record.columns()

    def copy(self) -> OwnedChunk:
        """A copy to try changes on."""
        records = {key: replace(record) for key, record in self.records.items()}
        return replace(
            self, ledger=self.ledger.copy(), records=records, changed=set(self.changed), lines=list(self.lines)
        )

    def option(self, place: int, name: str) -> Any:
        """An option of a step as it was when the operation was created; `kind` tells what kind it is."""
        step = self.plan["steps"][place - 1]
        return step["kind"] if name == "kind" else step["options"][name]


def recover(owned: OwnedChunk, now: int) -> None:
    """Reset rows found in flight, lost with their worker: they run again, or are in doubt if they must not.

    A worker that lives on did not die of them: a database that is away again and again does not make a row poison.
    Only the owner may do this; it is written with its next intent, flush or drain.
    """
    ledger = owned.ledger
    for i in range(ledger.rows):
        if not ledger.in_flight[i]:
            continue
        ledger.in_flight[i] = 0
        if not owned.was_given_up:
            ledger.lost[i] = min(255, ledger.lost[i] + 1)
        place = ledger.next_place(i)
        is_waiting = ledger.tracks[place].state[i] == WAITING
        if place > 0 and not is_waiting and owned.option(place, "delivery") == "at_most_once":
            _leave_in_doubt(owned, i, place, now)
        elif ledger.lost[i] >= POISON_LOST:
            _poison(owned, i, place, now, "WaitingForCompletion" if is_waiting else "Running")
        else:
            owned.add_history(
                owned.record(i, place, "WaitingForCompletion" if is_waiting else "Pending", now), "owner_lost"
            )


def _poison(owned: OwnedChunk, i: int, place: int, now: int, state: str) -> None:
    owned.end_checks(i, place, now)
    owned.close_records(i, place, now)
    owned.ledger.at[i] = place
    owned.ledger.tracks[place].state[i] = INVALID if owned.is_raw else FAILED
    record = owned.record(i, place, ROW_STEP.after(state, "poisoned"), now)
    record.due_at = record.deadline = None
    doing = "validating" if place == 0 else "running"
    record.set_error("Poison", f"its worker died {POISON_LOST} times while {doing} it, twice with nothing else running")


def cancel_unfinished(owned: OwnedChunk, now: int) -> None:
    """Give every row without a verdict one: Cancelled, or in doubt where an at-most-once call has begun."""
    ledger = owned.ledger
    for i in range(ledger.rows):
        if ledger.is_terminal(i):
            continue
        place = ledger.next_place(i)
        owned.close_records(i, place, now)
        if place > 0 and ledger.state(i) == RUNNING and owned.option(place, "delivery") == "at_most_once":
            _leave_in_doubt(owned, i, place, now)
            continue
        ledger.at[i] = place
        ledger.tracks[place].state[i] = CANCELLED
        ledger.in_flight[i] = 0
        if owned.record_of(i, place) is not None:
            owned.end_checks(i, place, now)
            record = owned.record(i, place, "Cancelled", now)
            record.due_at = None
            record.set_error("Cancelled", "the operation was stopped")


def interrupt(owned: OwnedChunk, now: int) -> None:
    """Put back the rows that a graceful stop cut off, not counted as lost; an at-most-once call is in doubt."""
    ledger = owned.ledger
    for i in range(ledger.rows):
        if ledger.in_flight[i]:
            ledger.in_flight[i] = 0
            place = ledger.next_place(i)
            if place == 0 or ledger.tracks[place].state[i] != PENDING:
                continue
            if owned.option(place, "delivery") == "at_most_once":
                _leave_in_doubt(owned, i, place, now)
            else:
                owned.add_history(owned.record(i, place, ROW_STEP.after("Running", "interrupted"), now), "interrupted")


def _leave_in_doubt(owned: OwnedChunk, i: int, place: int, now: int) -> None:
    owned.ledger.tracks[place].state[i] = FAILED
    owned.ledger.in_flight[i] = 0
    record = owned.record(i, place, ROW_STEP.after("Running", "left_in_doubt"), now)
    record.due_at = None
    record.set_error("InDoubt", in_doubt("the call was cut off"))
