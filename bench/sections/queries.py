"""Looking at the rows of a large operation."""

from __future__ import annotations

from collections.abc import Iterable

from bench import goals
from bench.figures import Figure, Line, Samples, Section, Verdict
from bench.lab import Contender, Lab
from bench.places import DATABASES

__all__ = ["queries"]


def queries(lab: Lab) -> Section:
    """Milliseconds for a page, by what is asked for."""
    contenders = [
        Contender(database, "bench.lookups:pages", lab.sizes.queried, database, arguments={"times": lab.sizes.queries})
        for database in lab.usual
    ]
    samples = lab.compare(contenders, rounds=1)  # each asks often enough
    asked = list(samples[lab.usual[0]][0]["ms"])
    lines = [Line(name, dict(_cells(samples, name))) for name in asked]
    verdicts = [_slowest(samples, database, asked) for database in lab.usual]
    note = (
        f"Pages of 100 rows of an operation with {lab.sizes.queried:,} rows, one in a hundred failed and one invalid; "
        f"up to {lab.sizes.queries:,} queries of each kind at random places, one after the other."
    )
    return Section("queries", "Looking at rows", note, lines, verdicts, samples)


def _cells(samples: Samples, name: str) -> Iterable[tuple[str, Figure | str]]:
    for database in samples:
        yield f"{DATABASES[database]} p50 ms", _figure(samples, database, name, 0)
        yield f"{DATABASES[database]} p99 ms", _figure(samples, database, name, 1)


def _slowest(samples: Samples, database: str, asked: Iterable[str]) -> Verdict:
    found = {name: _figure(samples, database, name, 1) for name in asked}
    slowest = max(found, key=lambda name: found[name].value)
    return Verdict(goals.PAGE, found[slowest], f"ms, {DATABASES[database]}, {slowest}")


def _figure(samples: Samples, database: str, name: str, place: int) -> Figure:
    return Figure.of(one["ms"][name][place] for one in samples[database])
