"""The figures of a campaign, and how they are told."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from .faults import (
    CLIENT_POINTS,
    LIFECYCLE_CLIENT_POINTS,
    LIFECYCLE_WORKER_POINTS,
    UNKILLED,
    WORKER_POINTS,
    both_sides,
)
from .journal import Cut, Hit, Line

__all__ = ["Tally"]


LIFECYCLE_POINTS = (*LIFECYCLE_WORKER_POINTS, *LIFECYCLE_CLIENT_POINTS)


@dataclass
class Tally:
    """What a campaign came to so far."""

    kills: int = 0
    freezes: int = 0
    stops: int = 0
    restarts: int = 0
    operations: int = 0
    rows: int = 0
    starts: int = 0
    signals: int = 0
    cuts: Counter[str] = field(default_factory=Counter)
    pauses: int = 0
    edits: int = 0
    retries: int = 0
    repeats: int = 0
    proofs: int = 0
    lifecycle_entries: int = 0
    late_starts: int = 0
    verdicts: Counter[str] = field(default_factory=Counter)
    hits: Counter[str] = field(default_factory=Counter)
    deaths: Counter[str] = field(default_factory=Counter)
    gave_up: Counter[str] = field(default_factory=Counter)  # processes that ended by themselves, by their last words
    takeovers_s: list[float] = field(default_factory=list)
    cancels_s: list[float] = field(default_factory=list)
    shutdowns_s: list[float] = field(default_factory=list)
    restarts_s: list[float] = field(default_factory=list)

    def count(self, lines: Sequence[Line]) -> None:
        """Add the points that were passed, those at which a process died, and the COMMITs that were meddled with."""
        for line in lines:
            match line:
                case Hit(point=point, kills=kills):
                    self.hits[point] += 1
                    self.deaths[point] += kills
                case Cut(how=how):
                    self.cuts[how] += 1

    @property
    def unreached(self) -> list[str]:
        """Points that no process passed."""
        return [point for point in self._known if not self.hits[point]]

    @property
    def unknown(self) -> list[str]:
        """Points that were passed and are in no list of ours."""
        known = {*self._known, *both_sides(tuple(UNKILLED))}
        return sorted(point for point in self.hits if point not in known)

    @property
    def _known(self) -> list[str]:
        return both_sides(tuple(sorted({*WORKER_POINTS, *CLIENT_POINTS, *LIFECYCLE_POINTS} - UNKILLED)))

    def table(self) -> Iterator[str]:
        """Hits and deaths of each point, before and after its COMMIT."""
        yield f"{'point':<20}{'passed':>9}{'died before':>13}{'died after':>12}"
        for name in sorted({point.partition(":")[0] for point in (*self._known, *self.hits)}):
            before, after = f"{name}:before", f"{name}:after"
            never = "" if self.hits[before] and self.hits[after] else "   never passed"
            yield f"{name:<20}{self.hits[before]:>9}{self.deaths[before]:>13}{self.deaths[after]:>12}{never}"

    def figures(self) -> Iterator[str]:
        """Times, and what the rows came to."""
        yield f"takeover of a dead worker's chunk: {_spread(self.takeovers_s)}"
        yield f"last start after a cancel was acknowledged: {_spread(self.cancels_s)}"
        yield f"graceful stop: {_spread(self.shutdowns_s)}"
        if self.restarts_s:
            yield f"database away: {_spread(self.restarts_s)}"
        if self.cuts:
            yield f"cut commits: {', '.join(f'{many} {how}' for how, many in sorted(self.cuts.items()))}"
        for words, many in self.gave_up.most_common():
            yield f"gave up: {words} ({many})"
        yield f"verdicts: {', '.join(f'{name} {many}' for name, many in sorted(self.verdicts.items()))}"

    def summary(self) -> str:
        """One line."""
        done = {
            f"kills ({self.deaths.total()} at points)": self.kills,
            "freezes": self.freezes,
            "graceful stops": self.stops,
            "server kills": self.restarts,
            "cut commits": self.cuts.total(),
            "pauses": self.pauses,
            "edits": self.edits,
            "retries": self.retries,
            "signals": self.signals,
            "repeats": self.repeats,
            "operations": self.operations,
            "rows": self.rows,
            "step starts": self.starts,
            "late starts": self.late_starts,
            "proofs": self.proofs,
            "lifecycle entries": self.lifecycle_entries,
        }
        return ", ".join(f"{many} {what}" for what, many in done.items())


def _spread(values: Sequence[float]) -> str:
    if not values:
        return "none seen"
    ordered = sorted(values)
    p50, p99 = ordered[len(ordered) // 2], ordered[min(len(ordered) - 1, int(len(ordered) * 0.99))]
    return f"p50 {p50:.2f} s, p99 {p99:.2f} s, max {ordered[-1]:.2f} s ({len(ordered)} seen)"
