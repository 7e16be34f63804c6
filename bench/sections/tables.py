"""Lines that many sections have: how fast, compared to whom, with how much memory and disk."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from bench.figures import Figure, Line, Samples
from bench.lab import Contender, rate

__all__ = ["OURS", "ours", "rate_lines"]

OURS = "up to 4,000 rows, all steps"


def ours(label: str, rows: int, database: str, **arguments: object) -> Contender:
    """Penstock running the job."""
    return Contender(label, "bench.ours:run", rows, database, arguments=arguments, durable=OURS)


def rate_lines(
    contenders: Sequence[Contender], samples: Samples, comparisons: Mapping[str, Callable[[str], Figure]]
) -> list[Line]:
    """A line for each contender; `comparisons` are more columns, by title, made from its label."""
    lines = []
    for one in contenders:
        found, mine = rate(samples, one.label), samples[one.label]
        cells: dict[str, Figure | str] = {
            "rows": f"{one.rows:,}",
            "rows/s": found,
            "spread": f"{found.spread:.0%}" if len(mine) > 1 else "",
            **{title: compare(one.label) for title, compare in comparisons.items()},
            "peak MB": Figure.of(sample["peak_mb"] for sample in mine),
        }
        if one.database is not None:
            cells["bytes/row"] = Figure.of(sample["bytes_per_row"] for sample in mine)
        lines.append(Line(one.label, cells, one.durable, found))
    return lines
