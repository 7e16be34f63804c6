"""Sections as text for a terminal and as Markdown for the documents."""

from __future__ import annotations

from collections.abc import Sequence

from bench.figures import Figure, Section, Verdict

__all__ = ["cell", "markdown", "text", "verdict_text"]


def text(section: Section) -> str:
    """For a terminal: a table, then what was to be reached."""
    rows = _rows(section)
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    table = ["  ".join(_padded(row, widths)) for row in rows]
    verdicts = [f"  [{'x' if v.is_reached else ' '}] {verdict_text(v)}" for v in section.verdicts]
    return "\n".join([f"\n== {section.title}", *table, *verdicts])


def markdown(section: Section) -> str:
    """For a document."""
    head, *rows = _rows(section)
    lines = [f"### {section.title}", "", section.note, "", _row(head), _row(["---", *["--:"] * (len(head) - 1)])]
    lines += [_row(row) for row in rows]
    if section.verdicts:
        lines += [
            "",
            *(f"- {'reached' if v.is_reached else 'not reached'}: {verdict_text(v)}" for v in section.verdicts),
        ]
    return "\n".join(lines) + "\n"


def verdict_text(verdict: Verdict) -> str:
    """The goal, and what was found."""
    found = verdict.found
    spread = "" if found.low == found.high else f" ({cell(found.low)} to {cell(found.high)})"
    return f"{verdict.goal.text}: {cell(found)}{spread} {verdict.unit}".rstrip()


def cell(value: Figure | float | str | None) -> str:
    """A number with as many digits as mean something."""
    match value:
        case None:
            return ""
        case str():
            return value
        case Figure():
            return cell(value.value)
        case _ if value >= 100:
            return f"{value:,.0f}"
        case _ if value >= 10:
            return f"{value:.1f}"
        case _:
            return f"{value:.2f}" if value >= 0.1 else f"{value:.3f}"


def _rows(section: Section) -> list[list[str]]:
    has_durable = len({line.durable for line in section.lines}) > 1
    tail = ["committed together"] if has_durable else []
    rows = [["", *section.columns, *tail]]
    for line in section.lines:
        rows.append([line.label, *(cell(line.cells.get(title)) for title in section.columns)])
        rows[-1] += [line.durable] if has_durable else []
    return rows


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _padded(row: Sequence[str], widths: Sequence[int]) -> list[str]:
    first, *rest = zip(row, widths, strict=True)
    return [first[0].ljust(first[1]), *(value.rjust(width) for value, width in rest)]
