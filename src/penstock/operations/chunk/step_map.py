"""Where the steps of a pipeline are in a changed one, and a chunk's ledger as the changed one has it. Pure.

Places are the ledger's: validation is 0, the steps are 1..n, and a row that has run them all is at n + 1.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from penstock.operations.chunk.ledger import PENDING, Ledger

__all__ = ["Places", "StepMap"]


@dataclass(slots=True)
class Places:
    """How many rows are at each place of a pipeline: with an attempt behind them there, and without."""

    begun: Counter[int] = field(default_factory=Counter)
    unbegun: Counter[int] = field(default_factory=Counter)
    in_flight: int = 0

    def add(self, ledger: Ledger) -> None:
        """Count the rows of one more chunk."""
        self.in_flight += ledger.in_flight.count(1)
        for place in range(1, ledger.steps + 2):
            here = ledger.at.count(place)
            if here and place <= ledger.steps:
                track = ledger.tracks[place]
                rows = (i for i, at in enumerate(ledger.at) if at == place)
                begun = sum(1 for i in rows if track.state[i] != PENDING or track.attempt[i])
                self.begun[place] += begun
                here -= begun
            self.unbegun[place] += here


@dataclass(frozen=True, slots=True)
class StepMap:
    """The steps before and after a change by name, and for each one before its place after; None if it has none."""

    before: tuple[str, ...]
    after: tuple[str, ...]
    new_places: tuple[int | None, ...]  # by place; that of validation is 0

    @classmethod
    def of(cls, before: Sequence[str], after: Sequence[str], renamed: dict[str, str]) -> StepMap:
        """The map that keeps each step under its name, but for those that were renamed."""
        by_name = {name: place for place, name in enumerate(after, 1)}
        return cls(tuple(before), tuple(after), (0, *(by_name.get(renamed.get(name, name)) for name in before)))

    def place_of(self, place: int, *, is_begun: bool) -> int | None:
        """Where a row at this place goes on; None if it would lose or repeat a step there."""
        done = {self.new_places[each] for each in range(1, place)}
        after = len(done) + 1
        if done != set(range(1, after)):  # one was removed, or another stands between them
            return None
        if place > len(self.before):
            return after if after > len(self.after) else None
        return None if is_begun and self.new_places[place] != after else after

    def faults(self, places: Places) -> Iterator[str]:
        """Each reason why rows could not go on with the changed pipeline."""
        if places.in_flight:
            yield f"{_rows(places.in_flight)} in flight with a worker that is gone: let a worker take over first"
        for is_begun, counts in ((True, places.begun), (False, places.unbegun)):
            for place, rows in sorted(counts.items()):
                if rows and self.place_of(place, is_begun=is_begun) is None:
                    yield self._fault(place, rows, is_begun=is_begun)

    def _fault(self, place: int, rows: int, *, is_begun: bool) -> str:
        is_over = place > len(self.before)
        behind = self.new_places[1 : place + is_begun]
        gone = [name for name, after in zip(self.before, behind, strict=False) if after is None]
        kept = {after for after in behind if after is not None}
        highest = len(self.after) if is_over else max(kept, default=0)
        missed = [name for after, name in enumerate(self.after[:highest], 1) if after not in kept]
        where = "at the end" if is_over else f"{'at' if is_begun else 'before'} {self.before[place - 1]!r}"
        reasons = [f"lose what {name!r} did" for name in gone] + [f"never run {name!r}" for name in missed]
        otherwise = "repeat or skip a step, because the steps behind them are in another order"
        return f"{_rows(rows)} {where} would {' and '.join(reasons) or otherwise}"

    def moved(self, ledger: Ledger) -> Ledger:
        """The ledger of the same rows in the changed pipeline; call this only when there are no faults."""
        made = Ledger(ledger.rows, len(self.after), ledger.base)
        made.lost, made.generation = ledger.lost, ledger.generation
        for place, track in enumerate(ledger.tracks):
            new_place = self.new_places[place]
            if new_place is not None:
                made.tracks[new_place] = track
        after = [0] * (ledger.steps + 2)
        for place in range(1, ledger.steps + 2):
            at = self.place_of(place, is_begun=False)
            after[place] = place if at is None else at  # where it is None, no row is
        made.at = ledger.at.translate(bytes(after) + bytes(256 - len(after)))
        return made


def _rows(number: int) -> str:
    return f"{number:,} row" if number == 1 else f"{number:,} rows"
