"""A chart of rates as SVG: a dot for each contender on a logarithmic scale, with the range of its repetitions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from xml.sax.saxutils import escape

from bench.figures import Line

__all__ = ["chart"]

WIDTH, LEFT, RIGHT = 990, 480, 90
TOP, ROW, BOTTOM = 58, 24, 28
STYLE = """
text { font: 13px system-ui, sans-serif; fill: #24292f } .quiet { fill: #6e7781; font-size: 12px; font-weight: 400 }
.title { font-weight: 600; font-size: 15px } text.ours { font-weight: 600 } .grid { stroke: #d0d7de }
.dot.other { fill: #8c959f; stroke: #8c959f } .dot.ours { fill: #0969da; stroke: #0969da }
@media (prefers-color-scheme: dark) {
text { fill: #e6edf3 } .quiet { fill: #8d96a0 } .grid { stroke: #30363d } .dot.ours { fill: #4493f8; stroke: #4493f8 } }
"""


def chart(title: str, lines: Sequence[Line]) -> str:
    """The lines that have a rate, fastest first."""
    shown = sorted((line for line in lines if line.rate), key=lambda line: -_rate(line))
    scale = _Scale.around([value for line in shown if line.rate for value in (line.rate.low, line.rate.high)])
    height = TOP + ROW * len(shown) + BOTTOM
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img">',
        f"<title>{escape(title)}</title><style>{STYLE}</style>",
        f'<text class="title" x="8" y="22">{escape(title)}</text>',
        '<text class="quiet" x="8" y="42">in brackets: what is committed together</text>',
        *(_gridline(scale, power, height) for power in range(scale.first, scale.last + 1)),
        *(_dot(scale, line, TOP + ROW * (place + 0.5)) for place, line in enumerate(shown)),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


class _Scale:
    """From rates to places; a power of ten is always the same distance."""

    def __init__(self, first: int, last: int) -> None:
        self.first, self.last = first, last

    @classmethod
    def around(cls, values: Sequence[float]) -> _Scale:
        first, last = math.floor(math.log10(min(values))), math.ceil(math.log10(max(values)))
        return cls(first, max(last, first + 1))

    def x(self, value: float) -> float:
        share = (math.log10(value) - self.first) / (self.last - self.first)
        return LEFT + share * (WIDTH - LEFT - RIGHT)


def _gridline(scale: _Scale, power: int, height: int) -> str:
    x, foot = scale.x(10**power), height - BOTTOM
    return (
        f'<line class="grid" x1="{x:.1f}" y1="{TOP}" x2="{x:.1f}" y2="{foot}"/>'
        f'<text class="quiet" x="{x:.1f}" y="{foot + 18}" text-anchor="middle">{10**power:,}</text>'
    )


def _dot(scale: _Scale, line: Line, y: float) -> str:
    assert line.rate is not None
    kind = "ours" if line.label.startswith("Penstock") else "other"
    low, middle, high = (scale.x(value) for value in (line.rate.low, line.rate.value, line.rate.high))
    label = escape(line.label) + (f' <tspan class="quiet">({escape(line.durable)})</tspan>' if line.durable else "")
    return (
        f'<text class="{kind}" x="{LEFT - 14}" y="{y + 4:.1f}" text-anchor="end">{label}</text>'
        f'<line class="dot {kind}" x1="{low:.1f}" y1="{y:.1f}" x2="{high:.1f}" y2="{y:.1f}" stroke-width="2"/>'
        f'<circle class="dot {kind}" cx="{middle:.1f}" cy="{y:.1f}" r="5"/>'
        f'<text x="{high + 10:.1f}" y="{y + 4:.1f}">{line.rate.value:,.0f}</text>'
    )


def _rate(line: Line) -> float:
    return line.rate.value if line.rate else 0.0
