"""A state machine as a picture, made on the server: states in layers, arrows with their events. Pure.

Colours come from the stylesheet. Names are text, never markup.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise

from markupsafe import Markup

from penstock.dashboard.words import number
from penstock.machine import Machine
from penstock.printable import cut

__all__ = ["machine_picture"]

CHAR, BOX, GAP_X, GAP_Y, MARGIN = 7.6, 40, 64, 88, 26
NAME_CHARS = 28
SIDE = 36  # between the lanes of arrows that lead back up
Point = tuple[float, float]


@dataclass(frozen=True, slots=True)
class _Box:
    x: float  # of its middle
    y: float
    width: float


def machine_picture(
    machine: Machine,
    *,
    counts: Mapping[str, int] | None = None,
    errors: Collection[str] = (),
    here: str | None = None,
) -> Markup:
    """The machine; with how many are in each state, and the state that somebody is in, where that is known."""
    layers = _layers(machine)
    widths = [sum(map(_width, layer)) + GAP_X * (len(layer) - 1) for layer in layers]
    inner = max(widths)
    boxes = _placed(layers, widths, inner)
    arrows, lanes = _arrows(machine, boxes, inner)
    width = inner + 2 * MARGIN + lanes * SIDE + (90 if lanes else 0)
    height = len(layers) * BOX + (len(layers) - 1) * GAP_Y + 2 * MARGIN + GAP_Y / 2
    kinds = {state: _kinds(machine, state, errors, here) for state in machine.states}
    drawn = [_box(state, boxes[state], kinds[state], (counts or {}).get(state)) for state in machine.states]
    said = "; ".join(f"{line.source} goes to {line.target} by {line.event}" for line in machine.transitions)
    tip = Markup(
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" '
        'orient="auto-start-reverse"><path class="tip" d="M0 0L8 4L0 8z"/></marker></defs>'
    )
    return Markup(
        '<svg class="diagram" viewBox="0 0 {:.0f} {:.0f}" width="{:.0f}" height="{:.0f}" role="img" aria-label="{}">'
        "{}{}{}</svg>"
    ).format(
        width, height, width, height, f"{machine.name}: {said}", tip, Markup("").join(arrows), Markup("").join(drawn)
    )


def _kinds(machine: Machine, state: str, errors: Collection[str], here: str | None) -> list[str]:
    claims = {
        "initial": state == machine.initial,
        "final": machine.is_settled(state),
        "error": state in errors,
        "here": state == here,
    }
    return [kind for kind, is_so in claims.items() if is_so]


def _layers(machine: Machine) -> list[list[str]]:
    """States by their distance from the initial one, each layer in the order of those that lead to it."""
    depth = {machine.initial: 0}
    todo = [machine.initial]
    for state in todo:
        for line in machine.transitions:
            if line.source == state and line.target not in depth:
                depth[line.target] = depth[state] + 1
                todo.append(line.target)
    last = max(depth.values()) + 1
    layers: list[list[str]] = [[] for _ in range(last + 1)]
    for state in machine.states:
        layers[depth.get(state, last)].append(state)
    layers = [layer for layer in layers if layer]
    for above, layer in pairwise(layers):
        place = {state: position / max(1, len(above) - 1) for position, state in enumerate(above)}
        wanted = {
            state: _mean(
                place[line.source] for line in machine.transitions if line.target == state and line.source in place
            )
            for state in layer
        }
        layer.sort(key=wanted.__getitem__)
    return layers


def _mean(values: Iterator[float]) -> float:
    found = list(values)
    return sum(found) / len(found) if found else 0.5


def _placed(layers: list[list[str]], widths: list[float], inner: float) -> dict[str, _Box]:
    found: dict[str, _Box] = {}
    for row, layer in enumerate(layers):
        x, y = MARGIN + (inner - widths[row]) / 2, MARGIN + row * (BOX + GAP_Y) + BOX / 2
        for state in layer:
            width = _width(state)
            found[state] = _Box(x + width / 2, y, width)
            x += width + GAP_X
    return found


def _width(state: str) -> float:
    return max(84.0, len(cut(state, NAME_CHARS)) * CHAR + 26)


def _box(state: str, at: _Box, kinds: list[str], count: int | None) -> Markup:
    name_y = at.y if count is None else at.y - 7
    below = (
        Markup('<text class="instances" x="{:.1f}" y="{:.1f}">{}</text>').format(at.x, at.y + 10, number(count))
        if count is not None
        else ""
    )
    return Markup(
        '<g><title>{}</title><rect class="{}" x="{:.1f}" y="{:.1f}" width="{:.1f}" height="{}" rx="8"/>'
        '<text x="{:.1f}" y="{:.1f}">{}</text>{}</g>'
    ).format(
        state, " ".join(["state", *kinds]), at.x - at.width / 2, at.y - BOX / 2, at.width, BOX, at.x, name_y,
        cut(state, NAME_CHARS), below,
    )  # fmt: skip


def _arrows(machine: Machine, boxes: Mapping[str, _Box], inner: float) -> tuple[list[Markup], int]:
    """The arrows, one for each pair of states; and how many lanes those that lead back up take on the right."""
    events: dict[tuple[str, str], list[str]] = {}
    for line in machine.transitions:
        events.setdefault((line.source, line.target), []).append(line.event)
    leaving = _ports(events, boxes, 0)
    coming = _ports(events, boxes, 1)
    drawn, lanes = [], 0
    for (source, target), names in events.items():
        a, b, pair = boxes[source], boxes[target], (source, target)
        label = " / ".join(names) if len(names) < 4 else f"{names[0]} and {len(names) - 1} more"
        if b.y > a.y:
            path, place = _down((leaving[pair], a.y + BOX / 2), (coming[pair], b.y - BOX / 2))
        elif b.y == a.y and a is not b:
            path, place = _level(a, b)
        else:
            lanes += 1
            path, place = _up(a, b, MARGIN + inner + lanes * SIDE, lanes)
        drawn.append(
            Markup(
                '<path class="edge" d="{}" marker-end="url(#tip)"/><text class="event" x="{:.1f}" y="{:.1f}">{}'
                "<title>{}</title></text>"
            ).format(path, *place, cut(label, 40), " / ".join(names))
        )
    return drawn, lanes


def _ports(
    events: Mapping[tuple[str, str], object], boxes: Mapping[str, _Box], end: int
) -> dict[tuple[str, str], float]:
    """Where on a box's edge each arrow that leads down begins (0) or ends (1): side by side, in order."""
    found: dict[tuple[str, str], float] = {}
    for state, box in boxes.items():
        mine = [pair for pair in events if pair[end] == state and boxes[pair[1]].y > boxes[pair[0]].y]
        mine.sort(key=lambda pair: boxes[pair[1 - end]].x)
        for place, pair in enumerate(mine, 1):
            found[pair] = box.x - box.width / 2 + box.width * place / (len(mine) + 1)
    return found


def _down(start: Point, end: Point) -> tuple[str, Point]:
    (x1, y1), (x2, y2) = start, end
    bend = (y2 - y1) / 2
    path = f"M{x1:.1f} {y1:.1f}C{x1:.1f} {y1 + bend:.1f} {x2:.1f} {y2 - bend:.1f} {x2:.1f} {y2:.1f}"
    # Nearer to where it leads: arrows that leave one box come apart there.
    part = 0.62
    return path, (x1 + (x2 - x1) * part, y1 + (y2 - y1) * part)


def _level(a: _Box, b: _Box) -> tuple[str, Point]:
    """To a state of the same layer: above the boxes to the right, below them to the left, higher the farther."""
    way = 1 if b.x > a.x else -1
    edge = a.y - way * BOX / 2
    x1, x2 = a.x + way * a.width / 4, b.x - way * b.width / 4
    top = edge - way * min(GAP_Y * 0.8, 14 + abs(x2 - x1) / 12)
    path = f"M{x1:.1f} {edge:.1f}C{x1:.1f} {top:.1f} {x2:.1f} {top:.1f} {x2:.1f} {edge:.1f}"
    return path, ((x1 + x2) / 2, edge + (top - edge) * 0.75)


def _up(a: _Box, b: _Box, lane: float, rank: int) -> tuple[str, Point]:
    """To the right, along a lane of its own, and back in; labels of neighbouring lanes stand at different heights."""
    x1, y1, x2, y2 = a.x + a.width / 2, a.y + 6, b.x + b.width / 2, b.y - 6
    if a is b:
        y1, y2 = a.y + 10, a.y - 10
    path = f"M{x1:.1f} {y1:.1f}C{lane:.1f} {y1:.1f} {lane:.1f} {y2:.1f} {x2:.1f} {y2:.1f}"
    t = (0.5, 0.34, 0.66)[rank % 3]
    x = (1 - t) ** 3 * x1 + 3 * t * (1 - t) * lane + t**3 * x2
    y = ((1 - t) ** 3 + 3 * t * (1 - t) ** 2) * y1 + (t**3 + 3 * t * t * (1 - t)) * y2
    return path, (x, y)
