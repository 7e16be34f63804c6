"""Whether more rows cost more than their number: speed, memory and disk from ten thousand rows up."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from bench import goals
from bench.figures import Figure, Samples, Section, Verdict
from bench.lab import Lab, ratio
from bench.places import DATABASES
from bench.sections.tables import ours, rate_lines

__all__ = ["scaling"]

TITLE = "More rows"
NOTE = (
    "The same job with files of different size, each in a fresh process. Rates are compared with those of the second "
    "size; the first shows what starting costs. Bytes are those of the database; the file itself is kept beside it."
)
ROUNDS_MAX = 2


def scaling(lab: Lab) -> Section:
    """Speed, memory and disk by number of rows."""
    ladders = {
        database: [ours(f"{DATABASES[database]}, {rows:,} rows", rows, database) for rows in lab.sizes.scaling]
        for database in lab.usual
    }
    contenders = [one for ladder in ladders.values() for one in ladder]
    base = {one.label: ladder[1].label for ladder in ladders.values() for one in ladder}
    samples = lab.compare(contenders, rounds=min(ROUNDS_MAX, lab.sizes.again))
    lines = rate_lines(contenders, samples, {"of second": lambda label: ratio(samples, label, to=base[label])})
    verdicts = list(_verdicts(samples, [(ladder[-1].label, ladder[1].label) for ladder in ladders.values()]))
    return Section("scaling", TITLE, NOTE, lines, verdicts, samples)


def _verdicts(samples: Samples, ends: Sequence[tuple[str, str]]) -> Iterator[Verdict]:
    for largest, base in ends:
        yield Verdict(goals.FLAT, ratio(samples, largest, to=base), largest)
        yield Verdict(goals.MEMORY, Figure.of(one["peak_mb"] for one in samples[largest]), f"MB, {largest}")
        yield Verdict(goals.DISK, Figure.of(one["bytes_per_row"] for one in samples[largest]), f"bytes, {largest}")
