"""A chunk's ledger: state, attempt, start, duration and output of every step of every row, as one compact block.

Columns, not records: a thousand rows that simply succeeded compress to a few kilobytes and cost no row in any
table. In memory the columns are lists and bytearrays indexed by the row's place in its chunk. Step 0 here is
validation (-1 on the wire); steps 1..n are the pipeline's; a row whose place is n + 1 has run them all.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import compress as chosen
from struct import error as PackError
from struct import pack, unpack

import msgspec
import zstandard

from penstock.errors import DatabaseDamaged
from penstock.operations.counts import Counts

__all__ = [
    "CANCELLED",
    "COMPLETED",
    "FAILED",
    "INVALID",
    "OUTPUTS_BYTES_MAX",
    "PENDING",
    "RUNNING",
    "SKIPPED",
    "STATES",
    "TIMED_OUT",
    "WAITING",
    "Ledger",
    "Track",
    "compress",
    "decompress",
]

# A row that fails validation is Failed on the wire too; its own code keeps it apart from a validator that broke.
STATES = (
    "Pending",
    "Running",
    "WaitingForCompletion",
    "Completed",
    "Failed",
    "TimedOut",
    "Cancelled",
    "Skipped",
    "Failed",
)
PENDING, RUNNING, WAITING, COMPLETED, FAILED, TIMED_OUT, CANCELLED, SKIPPED, INVALID = range(9)
_FORMAT = 1
# Of outputs, as bytes: the ledger is written anew with every flush, and a server takes no statement of any size.
OUTPUTS_BYTES_MAX = 2 * 1024 * 1024
# Tables for bytes.translate: all bits set for one place; 1 for a state that is no verdict; all bits set for a failure.
_ONLY = [bytes(place) + b"\xff" + bytes(255 - place) for place in range(256)]
_UNFINISHED = bytes(byte < FAILED for byte in range(256))
_HAS_FAILED = bytes(255 if byte in (FAILED, TIMED_OUT, INVALID) else 0 for byte in range(256))
_FROM_ONE = bytes(max(1, byte) for byte in range(256))


def compress(data: bytes) -> bytes:
    """Shrink a block for storage."""
    return zstandard.ZstdCompressor(level=1).compress(data)


def decompress(data: bytes) -> bytes:
    """Undo `compress`."""
    try:
        return zstandard.ZstdDecompressor().decompress(data)
    except zstandard.ZstdError as error:
        raise DatabaseDamaged(f"rows that are stored in the database cannot be unpacked: {error}") from error


class Track:
    """One step's columns. Times are microseconds: `began` since the ledger's base, `took` at least 1 once it ran."""

    __slots__ = ("attempt", "began", "outputs", "state", "took")

    def __init__(self, rows: int) -> None:
        self.state = bytearray(rows)
        self.attempt: list[int] = [0] * rows
        self.began: list[int] = [0] * rows
        self.took: list[int] = [0] * rows
        self.outputs: dict[int, bytes] = {}


class Ledger:
    """The rows of one chunk and how far each has come."""

    __slots__ = ("at", "base", "generation", "in_flight", "lost", "output_bytes", "rows", "steps", "tracks")

    def __init__(self, rows: int, steps: int, base: int) -> None:
        self.rows, self.steps, self.base = rows, steps, base
        self.at = bytearray(b"\x01") * rows
        self.in_flight = bytearray(rows)
        self.lost = bytearray(rows)
        self.generation: list[int] = [0] * rows
        self.tracks = [Track(rows) for _ in range(steps + 1)]
        self.tracks[0].state = bytearray([COMPLETED]) * rows
        self.output_bytes = 0  # of the outputs that were added; not less when some were dropped

    def copy(self) -> Ledger:
        """Another ledger with the same contents."""
        twin = Ledger(self.rows, self.steps, self.base)
        twin.at, twin.in_flight, twin.lost = self.at[:], self.in_flight[:], self.lost[:]
        twin.generation, twin.output_bytes = self.generation[:], self.output_bytes
        for track, mine in zip(twin.tracks, self.tracks, strict=True):
            track.state, track.attempt = mine.state[:], mine.attempt[:]
            track.began, track.took, track.outputs = mine.began[:], mine.took[:], dict(mine.outputs)
        return twin

    # --- reading

    def state(self, i: int) -> int:
        """The state of row i's current step; Completed when it has run them all."""
        at = self.at[i]
        if at > self.steps:
            return COMPLETED
        state = self.tracks[at].state[i]
        return RUNNING if state == PENDING and self.in_flight[i] else state

    def next_place(self, i: int) -> int:
        """What runs next of row i: its current step, or validation when it was edited."""
        return self.at[i] if self.tracks[0].state[i] != PENDING else 0

    def is_terminal(self, i: int) -> bool:
        """Whether row i has its verdict."""
        return self.at[i] > self.steps or self.tracks[self.at[i]].state[i] >= FAILED

    def counts(self) -> Counts:
        """The verdicts, counted anew from the columns."""
        count = self._states(beyond=COMPLETED).count
        return Counts(
            succeeded=count(COMPLETED),
            invalid=count(INVALID),
            failed=count(FAILED),
            timed_out=count(TIMED_OUT),
            cancelled=count(CANCELLED),
            waiting=count(WAITING),
        )

    def steps_done(self) -> int:
        """How many steps of the pipeline are done, over all rows; a row that has failed counts as done with all."""
        if self.at.count(self.steps + 1) == self.rows:
            return self.steps * self.rows
        places = self.at.translate(_FROM_ONE)
        done = sum(places) - self.rows
        has_failed = self._states(beyond=COMPLETED).translate(_HAS_FAILED)
        if failed := has_failed.count(255):
            theirs = int.from_bytes(places, "big") & int.from_bytes(has_failed, "big")
            done += failed * (self.steps + 1) - sum(theirs.to_bytes(self.rows, "big"))
        return done

    def _states(self, *, beyond: int) -> bytes:
        """The state of each row's current step, a byte a row; of those that have run them all, `beyond`.

        Whole columns are put together as large numbers: a thousand rows take microseconds.
        """
        places = [place for place in range(self.steps + 2) if place in self.at]
        columns = [bytes([beyond]) * self.rows if place > self.steps else self.tracks[place].state for place in places]
        if len(columns) == 1:
            return bytes(columns[0])
        states = 0
        for place, column in zip(places, columns, strict=True):
            is_here = self.at.translate(_ONLY[place])
            states |= int.from_bytes(column, "big") & int.from_bytes(is_here, "big")
        return states.to_bytes(self.rows, "big")

    @property
    def is_over(self) -> bool:
        """Whether every row has its verdict."""
        return not any(self._states(beyond=FAILED).translate(_UNFINISHED))

    @property
    def is_fresh(self) -> bool:
        """Whether every row is valid or not, and no step of any has ever begun."""
        first = self.tracks[1]
        is_untouched = max(self.at, default=0) <= 1 and _is_blank(first.state) and _is_blank(first.attempt)
        has_no_past = _is_blank(self.generation) and _is_blank(self.lost)
        return is_untouched and has_no_past and PENDING not in self.tracks[0].state

    def unfinished(self) -> Sequence[int]:
        """The rows without a verdict."""
        is_unfinished = self._states(beyond=FAILED).translate(_UNFINISHED)
        return list(chosen(range(self.rows), is_unfinished))

    def in_flight_at(self, rows: Sequence[int], first: int, stop: int) -> Sequence[int]:
        """Those of the rows that are in flight at one of the places `first` up to, not including, `stop`."""
        in_flight, places = self.in_flight, self.at
        if first <= 1 < stop and in_flight == places and in_flight.count(1) == len(rows):
            return rows  # all that run are at the first step
        if stop == 1:  # validation: whatever was edited
            validated = self.tracks[0].state
            return [i for i in rows if in_flight[i] and validated[i] == PENDING]
        return [i for i in rows if in_flight[i] and first <= places[i] < stop]

    # --- writing

    def await_validation(self) -> None:
        """Mark all rows as not yet validated."""
        self.tracks[0].state = bytearray(self.rows)

    def reject(self, i: int, state: int = INVALID) -> None:
        """Row i failed validation, or (Failed) its validator broke."""
        self.at[i] = 0
        self.tracks[0].state[i] = state

    def start(self, rows: Sequence[int]) -> None:
        """Note the intent to run these rows from their current step on: they are in flight, one attempt further.

        Asking whether a waiting row is done is no attempt.
        """
        if len(rows) == self.at.count(1) and self.is_fresh:  # every good row, at the first step
            self.in_flight[:] = self.at
            self.tracks[1].attempt = [*self.at]
            return
        tracks, in_flight, places, validated = self.tracks, self.in_flight, self.at, self.tracks[0].state
        for i in rows:
            in_flight[i] = 1
            track = tracks[places[i] if validated[i] else 0]
            if track.state[i] == PENDING:
                track.attempt[i] += 1

    def undo_start(self, rows: Iterable[int]) -> None:
        """Take back the intent of these rows: they did not begin."""
        for i in rows:
            self.in_flight[i] = 0
            track = self.tracks[self.next_place(i)]
            if track.state[i] == PENDING:
                track.attempt[i] -= 1

    def add_output(self, i: int, place: int, output: bytes) -> bool:
        """Keep what row i's step returned; False when there is no room for it."""
        if self.output_bytes + len(output) > OUTPUTS_BYTES_MAX:
            return False
        self.output_bytes += len(output)
        self.tracks[place].outputs[i] = output
        return True

    def drop_outputs(self) -> bool:
        """Forget what steps returned; False when there was nothing."""
        had_some = any(track.outputs for track in self.tracks)
        for track in self.tracks:
            track.outputs = {}
        return had_some

    # --- storing

    def encode(self) -> bytes:
        """The ledger as one compressed block; columns that hold only their default take no space."""
        block = [
            _FORMAT,
            self.rows,
            self.steps,
            self.base,
            b"" if self.at.count(1) == self.rows else bytes(self.at),
            b"" if _is_blank(self.in_flight) else bytes(self.in_flight),
            b"" if _is_blank(self.lost) else bytes(self.lost),
            _pack(self.generation),
            [
                []
                if self._is_untouched(place)
                else [bytes(t.state), _pack(t.attempt), _pack(t.began), _pack(t.took), t.outputs]
                for place, t in enumerate(self.tracks)
            ],
        ]
        return compress(msgspec.msgpack.encode(block))

    def _is_untouched(self, place: int) -> bool:
        """Whether a step's columns are as in a new ledger: valid rows on which nothing has begun."""
        track = self.tracks[place]
        is_initial = track.state.count(COMPLETED if place == 0 else PENDING) == self.rows
        return is_initial and not track.outputs and _is_blank(track.attempt)

    @classmethod
    def decode(cls, data: bytes, *, rows: int, steps: int, base: int) -> Ledger:
        """The ledger that `encode` wrote; an empty block is a chunk of valid rows on which nothing has begun."""
        if not data:
            return cls(rows, steps, base)
        version, rows, steps, base, at, in_flight, lost, generation, tracks = msgspec.msgpack.decode(decompress(data))
        if version != _FORMAT:
            raise ValueError(f"ledger of format {version}; this release reads {_FORMAT}")
        ledger = cls(rows, steps, base)
        if at:
            ledger.at = bytearray(at)
        if in_flight:
            ledger.in_flight = bytearray(in_flight)
        if lost:
            ledger.lost = bytearray(lost)
        ledger.generation = _unpack(generation, ledger.generation)
        for track, columns in zip(ledger.tracks, tracks, strict=True):
            if columns:
                state, attempt, began, took, outputs = columns
                track.state = bytearray(state)
                track.attempt = _unpack(attempt, track.attempt)
                track.began = _unpack(began, track.began)
                track.took = _unpack(took, track.took)
                track.outputs = outputs
                ledger.output_bytes += sum(map(len, outputs.values()))
        return ledger


def _is_blank(column: bytearray | list[int]) -> bool:
    """Whether a column holds nothing but zeros."""
    return column == bytes(len(column)) if isinstance(column, bytearray) else not any(column)


def _pack(values: list[int]) -> bytes:
    """Integers as byte planes: the high bytes of neighbouring times are alike, so they compress to nothing."""
    if _is_blank(values):
        return b""
    try:
        return b"\x01" + bytes(values)
    except ValueError:  # one is larger than a byte
        pass
    try:
        width, flat = 4, pack(f"<{len(values)}I", *values)
    except PackError:
        width, flat = 8, pack(f"<{len(values)}q", *values)
    return bytes([width]) + b"".join([flat[plane::width] for plane in range(width)])


def _unpack(data: bytes, blank: list[int]) -> list[int]:
    """Undo `_pack`; `blank` is the answer for no data: a column of zeros."""
    if not data:
        return blank
    width, planes = data[0], data[1:]
    length = len(planes) // width
    flat = bytearray(len(planes))
    for plane in range(width):
        flat[plane::width] = planes[plane * length : (plane + 1) * length]
    return [*unpack(f"<{length}{_CODES[width]}", flat)]


_CODES = {1: "B", 4: "I", 8: "q"}
