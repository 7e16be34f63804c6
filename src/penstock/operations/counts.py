"""How many rows have which verdict. Pure."""

from __future__ import annotations

from dataclasses import dataclass, fields

__all__ = ["Counts"]


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

    @property
    def processed(self) -> int:
        """The rows with a verdict of success or failure."""
        return self.succeeded + self.unsuccessful


_COUNTERS = tuple(Counts.__dataclass_fields__)
