"""How many rows have which verdict, and when an operation has too many errors to go on. Pure."""

from __future__ import annotations

from dataclasses import dataclass, fields

from penstock.pipeline import OperationOptions

__all__ = ["Counts", "Tally", "breach", "breach_while_running"]


@dataclass(frozen=True, slots=True)
class Counts:
    """How many rows have which verdict; an operation's counters are the sums over its chunks."""

    succeeded: int = 0
    invalid: int = 0
    failed: int = 0
    timed_out: int = 0
    cancelled: int = 0
    waiting: int = 0

    def columns(self) -> dict[str, int]:
        """The counts by name, as they are stored."""
        return {name: getattr(self, name) for name in _COUNTERS}

    def __add__(self, other: Counts) -> Counts:
        return Counts(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))

    @property
    def unsuccessful(self) -> int:
        """The rows that count as failed."""
        return self.invalid + self.failed + self.timed_out


_COUNTERS = tuple(Counts.__dataclass_fields__)


RATE_ROWS_MIN = 100  # with fewer rows a rate says little


@dataclass(frozen=True, slots=True)
class Tally:
    """The rows of an operation that runs, as far as its error limits are concerned."""

    rows: int
    invalid: int
    failed: int  # or timed out
    begun: int  # valid rows of chunks that were begun
    failed_of_begun: int


def breach(options: OperationOptions, *, failed: int, judged: int) -> str | None:
    """Why a file must be refused while its rows are validated, or None."""
    if reason := _too_many(options, failed):
        return reason
    if options.max_error_rate is not None and judged >= RATE_ROWS_MIN and failed / judged > options.max_error_rate:
        return f"{failed} of {judged} rows failed ({failed / judged:.1%}), {_limit(options.max_error_rate)}"
    return None


def breach_while_running(options: OperationOptions, tally: Tally) -> str | None:
    """Why an operation that runs must stop, or None.

    Rows fail before others succeed, so a rate over settled rows alone would be too high. Rows under way count as not
    failed, and rows not begun are expected to go like those that were.
    """
    if reason := _too_many(options, tally.invalid + tally.failed):
        return reason
    valid = tally.rows - tally.invalid
    has_enough = tally.begun >= RATE_ROWS_MIN or (tally.begun == valid and tally.rows >= RATE_ROWS_MIN)
    if options.max_error_rate is None or not (tally.begun and has_enough):
        return None
    rate = (tally.invalid + valid * tally.failed_of_begun / tally.begun) / tally.rows
    if rate <= options.max_error_rate:
        return None
    invalid = f" and {tally.invalid} of {tally.rows} are invalid" if tally.invalid else ""
    found = f"{tally.failed_of_begun} of {tally.begun} rows begun have failed{invalid}"
    return f"{found} ({rate:.1%}), {_limit(options.max_error_rate)}"


def _too_many(options: OperationOptions, failed: int) -> str | None:
    if options.max_errors is None or failed <= options.max_errors:
        return None
    return f"{failed} rows failed, max_errors is {options.max_errors}"


def _limit(rate: float) -> str:
    return f"max_error_rate is {rate:.1%}"
