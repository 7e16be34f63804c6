"""Step records: what is stored of a step that did not simply succeed, or whose output the ledger has no room for."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from penstock.operations.messages import error_group

__all__ = ["ROW_KEY_MAX", "SIGNAL_KEY_MAX", "StepRecord"]

ROW_KEY_MAX = 200  # characters of a row's key that a record holds
SIGNAL_KEY_MAX = 500


@dataclass(slots=True)
class StepRecord:
    """The record of one step of one row; the fields are the table's columns."""

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
    output: bytes | None = None  # as JSON, where the ledger has no room for it

    def columns(self) -> dict[str, Any]:
        """The record as it is stored."""
        return {name: getattr(self, name) for name in _COLUMNS}

    def set_error(self, error_type: str | None, message: str | None) -> None:
        """Set what went wrong; None when nothing did."""
        self.error_type, self.message = error_type, message
        self.error_group = None if message is None else error_group(message)

    def history_line(self, event: str, at: int, data: Any = None) -> dict[str, Any]:
        """What is said of the step in the row's history."""
        own = {name: getattr(self, name) for name in _IN_HISTORY}
        return {**own, "event": event, "data": data, "at": at}


_COLUMNS = tuple(column.name for column in fields(StepRecord))
_IN_HISTORY = ("operation", "row", "step", "generation", "attempt", "error_type", "message")
