"""Which signal may end which wait: one rule, in Python and in SQL.

A wait accepts only signals of its own generation: one that was stored before the retry or edit that began it never ends
it. Whether the row still waits and the signal is still free is not part of the rule; each caller checks that.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import ColumnElement, and_, exists, func, or_

from penstock.operations.tables import row_records, signals

__all__ = ["Match", "Signal", "Waiter", "accepts", "has_signal", "is_awaited", "match", "since"]


@dataclass(frozen=True, slots=True)
class Signal:
    """A stored signal: for any row that waits on `key`; with `row`, for that row only."""

    id: int
    key: str
    row: int | None
    accepted_at: int


def accepts(signal: Signal, *, key: str | None, row: int, since: int | None) -> bool:
    """Whether a signal may end the wait of this row of its operation."""
    return signal.key == key and signal.accepted_at >= (since or 0) and signal.row in (None, row)


def _accepts() -> ColumnElement[bool]:
    """The same in SQL, between `signals` and `row_records`."""
    return and_(
        signals.c.operation == row_records.c.operation,
        signals.c.key == row_records.c.signal_key,
        signals.c.accepted_at >= since(),
        or_(signals.c.row.is_(None), signals.c.row == row_records.c.row),
    )


def since() -> ColumnElement[int]:
    """The time from which on a wait accepts signals, in SQL."""
    return func.coalesce(row_records.c.since, 0)


def has_signal(*of_signals: ColumnElement[bool]) -> ColumnElement[bool]:
    """Whether a wait has a free signal that it accepts, among those signals, in SQL."""
    return exists().where(_accepts(), signals.c.consumed_at.is_(None), *of_signals)


def is_awaited(*of_waits: ColumnElement[bool]) -> ColumnElement[bool]:
    """Whether a signal is accepted by a row that waits now, among those waits, in SQL."""
    return exists().where(_accepts(), row_records.c.state == "WaitingForCompletion", *of_waits)


@dataclass(frozen=True, slots=True)
class Waiter:
    """A row that waits on a key, for signals that were stored since its generation began."""

    row: int
    step: int
    chunk: int
    key: str
    since: int

    def accepts(self, signal: Signal) -> bool:
        """Whether this signal may end this wait."""
        return accepts(signal, key=self.key, row=self.row, since=self.since)


@dataclass(frozen=True, slots=True)
class Match:
    """A signal and the row whose wait it ends."""

    signal: Signal
    row: int
    step: int
    chunk: int


def match(free: Sequence[Signal], waiters: Sequence[Waiter]) -> list[Match]:
    """Give free signals to waiting rows: the oldest signal first, each to the lowest row that accepts it."""
    waiting: dict[str, list[Waiter]] = {}
    for waiter in sorted(waiters, key=lambda waiter: waiter.row):
        waiting.setdefault(waiter.key, []).append(waiter)
    matches = []
    for signal in sorted(free, key=lambda signal: signal.id):
        of_key = waiting.get(signal.key, [])
        taker = next((waiter for waiter in of_key if waiter.accepts(signal)), None)
        if taker is None:
            continue
        of_key.remove(taker)
        matches.append(Match(signal, taker.row, taker.step, taker.chunk))
    return matches
