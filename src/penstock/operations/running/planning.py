"""Which of a chunk's rows run next, and when it is due again: pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from penstock.operations.chunk.ledger import PENDING, WAITING
from penstock.operations.chunk.owned import OwnedChunk
from penstock.operations.chunk.packing import SUSPECT_ROWS_MAX
from penstock.operations.rows.segments import Segment, Span

__all__ = ["Group", "next_due", "next_group"]

ALONE_LOST = 2  # a row that was lost so often runs alone
# If the worker dies, every row of an at-most-once group that was not written is in doubt: so they are few.
ONCE_ROWS_MAX = 10
# Rows that come due within this time of each other are run together, so that a chunk is not claimed once a row.
COALESCE_US = 1_000_000


@dataclass(frozen=True, slots=True)
class Group:
    """Rows that run under one intent; `is_alone` when nothing else may run in this process meanwhile."""

    segments: tuple[Segment, ...]
    rows: Sequence[int]
    is_alone: bool = False


def next_group(owned: OwnedChunk, spans: Sequence[Span], *, now: int, limit: int) -> Group | None:
    """The rows to run next: healthy ones before suspects, validation before checks before steps, early steps first.

    Rows of a raw chunk are only validated: their steps begin when the whole file is validated.
    """
    ready = _ready(owned, now)
    if owned.is_raw:
        validated = owned.ledger.tracks[0].state
        ready = [i for i in ready if validated[i] == PENDING]
    if not ready:
        return None
    lost = owned.ledger.lost
    if not any(lost):
        return _group(owned, spans, ready, limit)
    least = min(lost[i] for i in ready)
    if least == 0:
        return _group(owned, spans, [i for i in ready if lost[i] == 0], limit)
    if least < ALONE_LOST:
        return _group(owned, spans, [i for i in ready if lost[i] < ALONE_LOST], min(limit, SUSPECT_ROWS_MAX))
    return _group(owned, spans, ready[:1], 1, is_alone=True)


def _ready(owned: OwnedChunk, now: int) -> list[int]:
    ledger = owned.ledger
    if not owned.records:
        in_flight = ledger.in_flight
        return [i for i in ledger.unfinished() if not in_flight[i]] if any(in_flight) else [*ledger.unfinished()]
    ready = []
    for i in ledger.unfinished():
        place = ledger.at[i]
        state = ledger.state(i)
        record = owned.record_of(i, place)
        is_due = record is None or record.due_at is None or record.due_at <= now
        if is_due and (state == PENDING or (state == WAITING and owned.option(place, "kind") == "poll")):
            ready.append(i)
    return ready


def _group(owned: OwnedChunk, spans: Sequence[Span], rows: list[int], limit: int, *, is_alone: bool = False) -> Group:
    ledger = owned.ledger
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


def next_due(owned: OwnedChunk) -> int | None:
    """When a postponed or waiting row is due, or None; rows that come due close together count as one moment."""
    ledger = owned.ledger
    dues = sorted(
        record.due_at
        for (row, step), record in owned.records.items()
        if record.due_at is not None
        and ledger.at[row - owned.first_row] == step + 1
        and not ledger.is_terminal(row - owned.first_row)
    )
    if not dues:
        return None
    return max(due for due in dues if due <= dues[0] + COALESCE_US)
