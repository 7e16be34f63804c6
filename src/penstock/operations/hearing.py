"""Which signal may end which wait: one rule, written for records in memory and for records in the database.

A wait hears only its own generation: what was accepted before the retry or edit that began it never ends it. Whether
the row still waits and the signal is still free is another question, which each caller asks where it looks.
"""

from __future__ import annotations

from typing import Protocol

from sqlalchemy import ColumnElement, and_, exists, func, or_

from penstock.operations.tables import row_records, signals

__all__ = ["Message", "has_signal", "hears", "is_heard", "since"]


class Message(Protocol):
    """What of a signal decides who hears it; one that names a row is for that row only."""

    @property
    def key(self) -> str: ...
    @property
    def row(self) -> int | None: ...
    @property
    def accepted_at(self) -> int: ...


def hears(signal: Message, *, key: str | None, row: int, since: int | None) -> bool:
    """Whether a signal may end the wait of this row of its operation."""
    return signal.key == key and signal.accepted_at >= (since or 0) and signal.row in (None, row)


def _hears() -> ColumnElement[bool]:
    """The same in SQL, between `signals` and `row_records`."""
    return and_(
        signals.c.operation == row_records.c.operation,
        signals.c.key == row_records.c.signal_key,
        signals.c.accepted_at >= since(),
        or_(signals.c.row.is_(None), signals.c.row == row_records.c.row),
    )


def since() -> ColumnElement[int]:
    """From when on a wait hears, in SQL."""
    return func.coalesce(row_records.c.since, 0)


def has_signal(*of_signals: ColumnElement[bool]) -> ColumnElement[bool]:
    """Waits for which a free signal lies ready, of those signals."""
    return exists().where(_hears(), signals.c.consumed_at.is_(None), *of_signals)


def is_heard(*of_waits: ColumnElement[bool]) -> ColumnElement[bool]:
    """Signals that a row hears which waits now, of those waits."""
    return exists().where(_hears(), row_records.c.state == "WaitingForCompletion", *of_waits)
