"""Where the findings go: numbers for programs, and the page about speed for readers."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.chart import chart
from bench.figures import Line, Section
from bench.machine import Machine
from bench.show import markdown
from bench.sizes import Sizes

__all__ = ["PAGE", "write_numbers", "write_page"]

PAGE = Path(__file__).parents[1] / "docs" / "explanation" / "speed.md"
BETWEEN = re.compile(r"(?<=<!-- measured -->\n).*?(?=<!-- end -->)", re.DOTALL)
CHARTED = ("main", "peers")
CHART_TITLE = "Rows per second, validated and driven through three steps (logarithmic)"


def write_numbers(path: Path, sections: Sequence[Section], machine: Machine, sizes: Sizes) -> None:
    """Every figure, every verdict and every single measurement, as JSON."""
    path.parent.mkdir(parents=True, exist_ok=True)
    document = {
        "machine": dataclasses.asdict(machine),
        "sizes": dataclasses.asdict(sizes),
        "sections": [_numbers(section) for section in sections],
    }
    path.write_text(json.dumps(document, indent=1) + "\n")


def write_page(sections: Sequence[Section], machine: Machine, sizes: Sizes, page: Path) -> None:
    """Put what was measured between the marks of the page, and the chart beside it."""
    text = page.read_text()
    if not BETWEEN.search(text):
        raise ValueError(f"{page} has no place for figures: a line <!-- measured --> and below it a line <!-- end -->")
    how = "once, with few rows: indicative only" if sizes.repeat == 1 else f"{sizes.repeat} times"
    opening = f"Measured {how}. The machine: {machine}."
    body = "\n".join(["", opening, "", *(markdown(section) for section in sections)])
    page.write_text(BETWEEN.sub(lambda _: body + "\n", text))
    lines = charted(sections)
    if lines:
        page.with_suffix(".svg").write_text(chart(CHART_TITLE, lines))


def charted(sections: Sequence[Section]) -> list[Line]:
    """The lines worth a chart, each contender once."""
    lines = [line for section in sections if section.name in CHARTED for line in section.lines]
    return list({line.label: line for line in reversed(lines)}.values())


def _numbers(section: Section) -> dict[str, Any]:
    found = dataclasses.asdict(section)
    for verdict, told in zip(section.verdicts, found["verdicts"], strict=True):
        told["is_reached"] = verdict.is_reached
    return found
