"""What was found: figures with their spread, tables of them, and goals that were reached or not."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

__all__ = ["Figure", "Goal", "Line", "Samples", "Section", "Verdict", "percentile"]

Samples = Mapping[str, Sequence[Mapping[str, Any]]]


@dataclass(frozen=True)
class Figure:
    """The median of a number's repetitions, with the lowest and the highest."""

    value: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Iterable[float]) -> Figure:
        """Sum up the repetitions."""
        found = list(values)
        return cls(statistics.median(found), min(found), max(found))

    @property
    def spread(self) -> float:
        """(highest - lowest) / median."""
        return (self.high - self.low) / self.value if self.value else 0.0


@dataclass(frozen=True)
class Goal:
    """What a figure ought to be: at least `bound`, or at most."""

    text: str
    bound: float
    is_minimum: bool = True

    def reached_by(self, figure: Figure) -> bool:
        """By the median; the spread is shown beside it."""
        return figure.value >= self.bound if self.is_minimum else figure.value <= self.bound


@dataclass(frozen=True)
class Verdict:
    """A goal, what was found, and whether that is enough."""

    goal: Goal
    found: Figure
    unit: str = ""

    @property
    def is_reached(self) -> bool:
        """Whether the goal is reached."""
        return self.goal.reached_by(self.found)


@dataclass(frozen=True)
class Line:
    """One contender: its name, what it makes durable together, and its figures by column.

    `rate` is what a chart shows, if it shows this line.
    """

    label: str
    cells: dict[str, Figure | str]
    durable: str = ""
    rate: Figure | None = None


@dataclass(frozen=True)
class Section:
    """A table with its verdicts; `samples` holds every single measurement."""

    name: str
    title: str
    note: str
    lines: list[Line]
    verdicts: list[Verdict] = field(default_factory=list)
    samples: Samples = field(default_factory=dict)

    @property
    def columns(self) -> list[str]:
        """The titles of the columns, in order of appearance."""
        return list(dict.fromkeys(title for line in self.lines for title in line.cells))


def percentile(values: Iterable[float], percent: float) -> float:
    """The value that `percent` of the values do not exceed."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * percent / 100))]
