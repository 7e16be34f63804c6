"""A graph as SVG, drawn in layers: the initial state first, each state below the first that leads to it."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape

from penstock.graphs.flags import StateFlag
from penstock.graphs.model import GraphDocument, StateLine
from penstock.graphs.names import name_key

__all__ = ["to_svg"]

BOX_HEIGHT = 40
CHAR_WIDTH = 8
GAP_X = 60
GAP_Y = 90
MARGIN = 30
LOOP = 34

Point = tuple[float, float]

_STYLE = (
    "text{font:14px sans-serif;text-anchor:middle;dominant-baseline:central}"
    ".event{font-size:12px;fill:#555}.state{fill:#fff;stroke:#456;stroke-width:1.5}.initial{fill:#e8f1fb}"
    ".final{fill:#e9f6ec;stroke-width:3}.error{stroke:#b33}.edge{fill:none;stroke:#789;stroke-width:1.3}"
)


def to_svg(document: GraphDocument) -> str:
    """The drawing, as one standalone document; arrows between the same two states share a line."""
    layers = _layers(document)
    widths = [sum(_width(state) for state in layer) + GAP_X * (len(layer) - 1) for layer in layers]
    width = max(widths) + 2 * (MARGIN + LOOP)
    height = len(layers) * BOX_HEIGHT + (len(layers) - 1) * GAP_Y + 2 * MARGIN
    centres = _centres(layers, widths, width)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" role="img">',
        f"<title>{escape(document.name)}</title><style>{_STYLE}</style>",
        '<defs><marker id="end" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        '<path d="M0 0L8 4L0 8z" fill="#789"/></marker></defs>',
        *_arrows(document, centres),
        *(_box(state, centres[name_key(state.name)]) for state in document.states),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _layers(document: GraphDocument) -> list[list[StateLine]]:
    """States by their distance from the initial one; those nobody reaches come last."""
    exits: dict[str, list[str]] = {}
    for line in document.transitions:
        exits.setdefault(name_key(line.source), []).append(name_key(line.target))
    depth = {name_key(document.initial.name): 0}
    todo = list(depth)
    for key in todo:
        for target in exits.get(key, ()):
            if target not in depth:
                depth[target] = depth[key] + 1
                todo.append(target)
    last = max(depth.values()) + 1
    layers: list[list[StateLine]] = [[] for _ in range(last + 1)]
    for state in document.states:
        layers[depth.get(name_key(state.name), last)].append(state)
    return [layer for layer in layers if layer]


def _centres(layers: list[list[StateLine]], widths: list[float], width: float) -> dict[str, Point]:
    found: dict[str, Point] = {}
    for row, layer in enumerate(layers):
        x, y = (width - widths[row]) / 2, MARGIN + row * (BOX_HEIGHT + GAP_Y) + BOX_HEIGHT / 2
        for state in layer:
            found[name_key(state.name)] = (x + _width(state) / 2, y)
            x += _width(state) + GAP_X
    return found


def _width(state: StateLine) -> float:
    return max(70, len(state.name) * CHAR_WIDTH + 24)


def _box(state: StateLine, centre: Point) -> str:
    kinds = [kind for flag, kind in _KINDS.items() if flag in state.flags]
    x, y, width = centre[0] - _width(state) / 2, centre[1] - BOX_HEIGHT / 2, _width(state)
    return (
        f'<g><rect class="{" ".join(["state", *kinds])}" x="{x:g}" y="{y:g}" width="{width:g}" '
        f'height="{BOX_HEIGHT}" rx="8"/><text x="{centre[0]:g}" y="{centre[1]:g}">{escape(state.name)}</text></g>'
    )


_KINDS = {StateFlag.INITIAL: "initial", StateFlag.FINAL: "final", StateFlag.ERROR: "error"}


def _arrows(document: GraphDocument, centres: dict[str, Point]) -> Iterator[str]:
    labels: dict[tuple[str, str], list[str]] = {}
    for line in document.transitions:
        labels.setdefault((name_key(line.source), name_key(line.target)), []).append(line.event)
    sizes = {name_key(state.name): _width(state) for state in document.states}
    for (source, target), events in labels.items():
        bend = 0 if source == target else 24 if (target, source) in labels else 8
        path, middle = _curve(centres[source], centres[target], sizes[source], bend)
        yield (
            f'<path class="edge" d="{path}" marker-end="url(#end)"/>'
            f'<text class="event" x="{middle[0]:g}" y="{middle[1]:g}">{escape(" / ".join(events))}</text>'
        )


def _curve(start: Point, end: Point, width: float, bend: float) -> tuple[str, Point]:
    """The path from one box to another, and where its label stands."""
    (x1, y1), (x2, y2), half = start, end, BOX_HEIGHT / 2
    if start == end:
        right = x1 + width / 2
        path = f"M{right:g} {y1 - 10:g}C{right + LOOP:g} {y1 - 24:g} {right + LOOP:g} {y1 + 24:g} {right:g} {y1 + 10:g}"
        return path, (right + LOOP, y1)
    down = (y2 > y1) - (y2 < y1)
    if down:
        x1, x2, y1, y2 = x1 + bend * down, x2 + bend * down, y1 + half * down, y2 - half * down
        middle = (y1 + y2) / 2
        return f"M{x1:g} {y1:g}C{x1:g} {middle:g} {x2:g} {middle:g} {x2:g} {y2:g}", ((x1 + x2) / 2, middle)
    top = y1 - half - 26 - bend
    return (
        f"M{x1:g} {y1 - half:g}C{x1:g} {top:g} {x2:g} {top:g} {x2:g} {y2 - half:g}",
        ((x1 + x2) / 2, top + 12),
    )
