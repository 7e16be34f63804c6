"""Which of a chunk's rows run next, and when it is due again: pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from penstock.operations.held import Held
from penstock.operations.ledger import PENDING, WAITING
from penstock.operations.rules.spans import Segment, Span

__all__ = [
    "ALONE_LOST",
    "SUSPECT_ROWS_MAX",
    "Group",
    "chunk_size",
    "largest_chunk",
    "next_due",
    "next_group",
    "piece_size",
]

# A row that was lost with its worker runs in a small group; lost again, alone.
SUSPECT_ROWS_MAX = 32
ALONE_LOST = 2
# If the worker dies, every row of an at-most-once group that was not written is in doubt: so they are few.
ONCE_ROWS_MAX = 10
# Few rows are cut into chunks that several workers can share; of many, larger ones take fewer transactions.
SHARED_CHUNKS = 16
CHUNK_GROWTH = 4
PIECE_ROWS_MAX = 500
# Rows that come due within this time of each other are run together, so that a chunk is not claimed once a row.
COALESCE_US = 1_000_000


def chunk_size(rows_before: int, least: int, *, may_grow: bool) -> int:
    """How many rows the next chunk of a file has: twice, then four times the least, once enough chunks came before."""
    size = least
    while may_grow and size < largest_chunk(least) and rows_before >= 2 * size * SHARED_CHUNKS:
        size *= 2
    return size


def largest_chunk(least: int) -> int:
    """No chunk has more rows than that."""
    return CHUNK_GROWTH * least


def piece_size(chunk: int) -> int:
    """How many rows of a chunk are read and checked at a time: some hundreds, so that they stay in a core's cache."""
    return chunk // -(-chunk // PIECE_ROWS_MAX)


@dataclass(frozen=True, slots=True)
class Group:
    """Rows that run under one intent; `is_alone` when nothing else may run in this process meanwhile."""

    segments: tuple[Segment, ...]
    rows: Sequence[int]
    is_alone: bool = False


def next_group(held: Held, spans: Sequence[Span], *, now: int, limit: int) -> Group | None:
    """The rows to run next: healthy ones before suspects, validation before checks before steps, early steps first.

    Of a raw chunk rows are only validated: its steps begin when the whole file is.
    """
    ready = _ready(held, now)
    if held.is_raw:
        validated = held.ledger.tracks[0].state
        ready = [i for i in ready if validated[i] == PENDING]
    if not ready:
        return None
    lost = held.ledger.lost
    if not any(lost):
        return _group(held, spans, ready, limit)
    least = min(lost[i] for i in ready)
    if least == 0:
        return _group(held, spans, [i for i in ready if lost[i] == 0], limit)
    if least < ALONE_LOST:
        return _group(held, spans, [i for i in ready if lost[i] < ALONE_LOST], min(limit, SUSPECT_ROWS_MAX))
    return _group(held, spans, ready[:1], 1, is_alone=True)


def _ready(held: Held, now: int) -> list[int]:
    ledger = held.ledger
    if not held.stories:
        in_flight = ledger.in_flight
        return [i for i in ledger.unfinished() if not in_flight[i]] if any(in_flight) else [*ledger.unfinished()]
    ready = []
    for i in ledger.unfinished():
        place = ledger.at[i]
        state = ledger.state(i)
        story = held.told(i, place)
        is_due = story is None or story.due_at is None or story.due_at <= now
        if is_due and (state == PENDING or (state == WAITING and held.option(place, "kind") == "poll")):
            ready.append(i)
    return ready


def _group(held: Held, spans: Sequence[Span], rows: list[int], limit: int, *, is_alone: bool = False) -> Group:
    ledger = held.ledger
    validated = ledger.tracks[0].state
    if PENDING in validated:
        unvalidated = [i for i in rows if validated[i] == PENDING]
        if unvalidated:
            return Group((Segment("validate", 0, 1),), unvalidated[:limit], is_alone)
    places = set(map(ledger.at.__getitem__, rows))
    first = min(places)
    states = ledger.tracks[first].state
    if WAITING in states:
        waiting = [i for i in rows if ledger.at[i] == first and states[i] == WAITING]
        if waiting:
            return Group((Segment("check", first, first + 1),), waiting[:limit], is_alone)
    span = next(span for span in spans if span.first <= first < span.stop)
    if span.is_at_most_once:
        limit = min(limit, ONCE_ROWS_MAX)
    if len(places) > 1 or any(states):
        rows = [i for i in rows if ledger.at[i] < span.stop and ledger.tracks[ledger.at[i]].state[i] == PENDING]
    return Group(span.segments, rows[:limit], is_alone)


def next_due(held: Held) -> int | None:
    """When a postponed or waiting row is due, or None; rows that come due close together count as one moment."""
    dues = sorted(
        story.due_at
        for (row, step), story in held.stories.items()
        if story.due_at is not None and _is_current(held, row - held.first_row, step + 1)
    )
    if not dues:
        return None
    return max(due for due in dues if due <= dues[0] + COALESCE_US)


def _is_current(held: Held, i: int, place: int) -> bool:
    return held.ledger.at[i] == place and not held.ledger.is_terminal(i)
