"""A chunk as its owner holds it in memory, and the records of its rows that have a story to tell."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any, overload

import msgspec

from penstock.operations.ledger import (
    CANCELLED,
    FAILED,
    INVALID,
    PENDING,
    RUNNING,
    WAITING,
    Counts,
    Ledger,
    compress,
    decompress,
)
from penstock.operations.rules.decide import cut, error_group, in_doubt
from penstock.operations.states import ROW_STEP

KEY_MAX = 200  # characters of a row's key that its records hold
# A row that was lost with its worker runs in a small group, then alone; lost twice while alone, it is poison.
POISON_LOST = 4
BLOCK = 100  # rows that are stored and decoded together
CHECKS_NOTED_MAX = 100  # of one wait; later ones are only counted, whatever they raise

__all__ = [
    "POISON_LOST",
    "Begun",
    "Held",
    "Packer",
    "StoredRows",
    "Story",
    "Writing",
    "cancel_unfinished",
    "interrupt",
    "pack_rows",
    "recover",
    "unpack_rows",
]


@dataclass(slots=True)
class Story:
    """The record of one step of one row that did not simply succeed; the fields are the table's columns."""

    chunk: int
    row: int
    step: int
    operation: int
    state: str
    at: int
    generation: int = 0
    attempt: int = 0
    errors: int = 0
    row_key: str | None = None
    signal_key: str | None = None
    since: int | None = None
    put_off_since: int | None = None
    due_at: int | None = None
    deadline: int | None = None
    error_type: str | None = None
    error_group: str | None = None
    message: str | None = None
    faults: list[list[str | None]] | None = None
    data: Any = None

    def columns(self) -> dict[str, Any]:
        """The record as it is stored."""
        return {name: getattr(self, name) for name in _COLUMNS}

    def tell(self, error_type: str | None, message: str | None) -> None:
        """What went wrong, or nothing."""
        self.error_type, self.message = error_type, message
        self.error_group = None if message is None else error_group(message)


_COLUMNS = tuple(column.name for column in fields(Story))


@dataclass(frozen=True, slots=True)
class Begun:
    """Which rows were in flight at some moment, where each row stood, and which of them waited."""

    in_flight: bytes = b""
    at: bytes = b""
    waiting: frozenset[int] = frozenset()

    @classmethod
    def of(cls, ledger: Ledger) -> Begun:
        """As it is now."""
        in_flight, at = bytes(ledger.in_flight), bytes(ledger.at)
        if not any(WAITING in track.state for track in ledger.tracks[1:]):
            return cls(in_flight, at)
        return cls(in_flight, at, frozenset(i for i in range(ledger.rows) if ledger.state(i) == WAITING))


@dataclass(frozen=True, slots=True)
class Writing:
    """What one commit writes of a chunk, fixed before it begins: rows may go on while it runs."""

    begun: Begun
    ledger: bytes
    counts: Counts
    steps_done: int
    stories: Mapping[tuple[int, int], Mapping[str, Any]]
    lines: Sequence[Mapping[str, Any]]
    rows: Mapping[str, Any] | None

    def columns(self) -> dict[str, Any]:
        """What is written to the chunk's own record."""
        return {"ledger": self.ledger, **self.counts.columns(), "steps_done": self.steps_done}


@dataclass(slots=True)
class Held:
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
    mail: int
    ledger: Ledger
    data: bytes | None
    has_trouble: bool = False  # somebody could not go on with the operation
    columns: tuple[str, ...] | None = None  # of a candidate: what the cells of its rows are called
    unstored: Mapping[str, bytes | None] | None = None  # the rows, to be stored with our next write
    stories: dict[tuple[int, int], Story] = field(default_factory=dict)  # by (row number, step)
    changed: set[tuple[int, int]] = field(default_factory=set)
    lines: list[dict[str, Any]] = field(default_factory=list)  # history not yet written
    begun: Begun = Begun()  # as of our last write
    key_of: Callable[[int], str | None] = lambda _: None  # of row i, for whoever can read the rows

    @property
    def is_validated(self) -> bool:
        """Whether no row is left to be validated."""
        return PENDING not in self.ledger.tracks[0].state

    def told(self, i: int, place: int) -> Story | None:
        """The record of row i's step, if it has one."""
        return self.stories.get((self.first_row + i, place - 1))

    def story(self, i: int, place: int, state: str, now: int) -> Story:
        """The record of row i's step, made when it has none, in its new state."""
        key = (self.first_row + i, place - 1)
        story = self.stories.get(key)
        if story is None:
            story = self.stories[key] = Story(self.id, *key, self.operation, state, now)
        story.state, story.at = state, now
        story.generation, story.attempt = self.ledger.generation[i], self.ledger.tracks[place].attempt[i]
        self.changed.add(key)
        return story

    def note(self, story: Story, event: str, *, at: int | None = None, data: Any = None) -> None:
        """Add a line to the row's history."""
        self.lines.append(
            {
                "operation": story.operation,
                "row": story.row,
                "step": story.step,
                "generation": story.generation,
                "attempt": story.attempt,
                "event": event,
                "error_type": story.error_type,
                "message": story.message,
                "data": data,
                "at": story.at if at is None else at,
            }
        )

    def check_raised(self, story: Story, message: str, now: int) -> None:
        """A poll's check could not tell: the first time gets a line in the row's history, and so does another error.

        The rest is counted in the record, which also keeps the last message; there the next owner finds it.
        """
        before = story.error_group
        story.tell("StepFailure", message)
        story.errors += 1
        if story.error_group != before and story.errors <= CHECKS_NOTED_MAX:
            self.note(story, "check_raised", at=now)

    def end_checks(self, i: int, place: int, now: int) -> None:
        """Row i is about to wait no more: if several of its checks raised, a line says how many."""
        story = self.told(i, place)
        if story is None or story.state != "WaitingForCompletion" or story.message is None or story.errors < 2:
            return
        story.tell(story.error_type, cut(f"{story.errors:,} checks raised; the last: {story.message}"))
        self.note(story, "check_raised", at=now)

    def writing(self) -> Writing:
        """All that is known now, to be written."""
        stories = {key: self._columns(key) for key in sorted(self.changed)}
        rows = None if self.unstored is None else {"chunk": self.id, **self.unstored}
        begun, lines = Begun.of(self.ledger), tuple(self.lines)
        ledger = self.ledger
        return Writing(begun, ledger.encode(), ledger.counts(), ledger.steps_done(), stories, lines, rows)

    def written(self, writing: Writing) -> None:
        """It is on disk; what changed while it was being written is still to be."""
        self.version += 1
        self.begun = writing.begun
        self.unstored = None
        self.changed -= {key for key, columns in writing.stories.items() if self._columns(key) == columns}
        del self.lines[: len(writing.lines)]

    def _columns(self, key: tuple[int, int]) -> dict[str, Any]:
        story = self.stories[key]
        if story.row_key is None and (found := self.key_of(story.row - self.first_row)):
            story.row_key = cut(found, KEY_MAX)
        return story.columns()

    def copy(self) -> Held:
        """Another like this, to try out what will become of it."""
        stories = {key: replace(story) for key, story in self.stories.items()}
        return replace(
            self, ledger=self.ledger.copy(), stories=stories, changed=set(self.changed), lines=list(self.lines)
        )

    def option(self, place: int, name: str) -> Any:
        """An option of a step as it was when the operation was created; `kind` tells what kind it is."""
        step = self.plan["steps"][place - 1]
        return step["kind"] if name == "kind" else step["options"][name]


def recover(held: Held, now: int) -> None:
    """Rows found in flight were lost with their worker: they start again, or are in doubt if they must not.

    Only the owner may do this, and it is written with its next intent, flush or drain.
    """
    ledger = held.ledger
    for i in range(ledger.rows):
        if not ledger.in_flight[i]:
            continue
        ledger.in_flight[i] = 0
        ledger.lost[i] = min(255, ledger.lost[i] + 1)
        place = ledger.next_place(i)
        is_waiting = ledger.tracks[place].state[i] == WAITING
        if place > 0 and not is_waiting and held.option(place, "delivery") == "at_most_once":
            _leave_in_doubt(held, i, place, now)
        elif ledger.lost[i] >= POISON_LOST:
            _poison(held, i, place, now, "WaitingForCompletion" if is_waiting else "Running")
        else:
            held.note(held.story(i, place, "WaitingForCompletion" if is_waiting else "Pending", now), "owner_lost")


def _poison(held: Held, i: int, place: int, now: int, state: str) -> None:
    held.end_checks(i, place, now)
    held.ledger.at[i] = place
    held.ledger.tracks[place].state[i] = INVALID if held.is_raw else FAILED
    story = held.story(i, place, ROW_STEP.after(state, "poisoned"), now)
    story.due_at = story.deadline = None
    story.tell("Poison", f"its worker died {POISON_LOST} times while running it, twice with nothing else running")


def cancel_unfinished(held: Held, now: int) -> None:
    """The operation is stopping: every row without a verdict is Cancelled; a begun at-most-once call is in doubt."""
    ledger = held.ledger
    for i in range(ledger.rows):
        if ledger.is_terminal(i):
            continue
        place = ledger.next_place(i)
        if place > 0 and ledger.state(i) == RUNNING and held.option(place, "delivery") == "at_most_once":
            _leave_in_doubt(held, i, place, now)
            continue
        ledger.at[i] = place
        ledger.tracks[place].state[i] = CANCELLED
        ledger.in_flight[i] = 0
        if held.told(i, place) is not None:
            held.end_checks(i, place, now)
            story = held.story(i, place, "Cancelled", now)
            story.due_at = None
            story.tell("Cancelled", "the operation was stopped")


def interrupt(held: Held, now: int) -> None:
    """A graceful stop: what was cut off begins again later, uncounted; an at-most-once call is in doubt."""
    ledger = held.ledger
    for i in range(ledger.rows):
        if ledger.in_flight[i]:
            ledger.in_flight[i] = 0
            place = ledger.next_place(i)
            if place == 0 or ledger.tracks[place].state[i] != PENDING:
                continue
            if held.option(place, "delivery") == "at_most_once":
                _leave_in_doubt(held, i, place, now)
            else:
                held.note(held.story(i, place, ROW_STEP.after("Running", "interrupted"), now), "interrupted")


def _leave_in_doubt(held: Held, i: int, place: int, now: int) -> None:
    held.ledger.tracks[place].state[i] = FAILED
    held.ledger.in_flight[i] = 0
    story = held.story(i, place, ROW_STEP.after("Running", "left_in_doubt"), now)
    story.due_at = None
    story.tell("InDoubt", in_doubt("the call was cut off"))


class Packer:
    """A chunk's rows, as the reader gives them, on their way into storage."""

    __slots__ = ("_blocks", "_rest")

    def __init__(self) -> None:
        self._blocks: list[bytes] = []
        self._rest: list[Any] = []

    def add(self, rows: list[Any]) -> None:
        """The rows that come next."""
        rows = self._rest + rows if self._rest else rows
        full = len(rows) - len(rows) % BLOCK
        self._blocks += [_encode(rows[k : k + BLOCK]) for k in range(0, full, BLOCK)]
        self._rest = rows[full:]

    def packed(self) -> bytes:
        """All of them, for storage."""
        blocks = [*self._blocks, _encode(self._rest)] if self._rest else self._blocks
        return compress(b"[" + b",".join(blocks) + b"]")


def pack_rows(rows: list[Any]) -> bytes:
    """A chunk's rows for storage."""
    packer = Packer()
    packer.add(rows)
    return packer.packed()


def unpack_rows(data: bytes) -> StoredRows:
    """Undo `pack_rows`."""
    return StoredRows(_BLOCKS.decode(decompress(data)), BLOCK)


class StoredRows(Sequence[Any]):
    """The rows of a chunk in blocks, of which the one in use is decoded: few rows stay in a core's cache."""

    __slots__ = ("_at", "_block", "_blocks", "_size")

    def __init__(self, blocks: Sequence[msgspec.Raw], size: int) -> None:
        self._blocks, self._size = blocks, size
        self._at, self._block = -1, list[Any]()

    @classmethod
    def of(cls, rows: list[Any]) -> StoredRows:
        """Rows that were never packed."""
        made = cls((), len(rows) or 1)
        made._at, made._block = 0, rows
        return made

    def pick(self, rows: Iterable[int]) -> list[Any]:
        """Some of the rows, best in their order."""
        found, size, at, block = [], self._size, self._at, self._block
        for i in rows:
            if i // size != at:
                at, block = i // size, self._open(i // size)
            found.append(block[i % size])
        return found

    def near(self, text: bytes) -> Iterator[tuple[int, Any]]:
        """The rows, with their places, of the blocks in which this stands."""
        for at, block in enumerate(self._blocks):
            if text in bytes(block):
                yield from enumerate(self._open(at), at * self._size)

    def _open(self, at: int) -> list[Any]:
        if at != self._at:
            self._at, self._block = at, msgspec.json.decode(self._blocks[at])
        return self._block

    @overload
    def __getitem__(self, i: int) -> Any: ...

    @overload
    def __getitem__(self, i: slice) -> list[Any]: ...

    def __getitem__(self, i: int | slice) -> Any:
        if isinstance(i, slice):
            return self.pick(range(len(self))[i])
        return self._open(i // self._size)[i % self._size]

    def __iter__(self) -> Iterator[Any]:
        return iter(self.pick(range(len(self))))

    def __len__(self) -> int:
        if not self._blocks:
            return len(self._block)
        return (len(self._blocks) - 1) * self._size + len(self._open(len(self._blocks) - 1))


_BLOCKS = msgspec.json.Decoder(list[msgspec.Raw])
_encode = msgspec.json.Encoder().encode
