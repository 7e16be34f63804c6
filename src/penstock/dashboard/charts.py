"""Pictures of an operation, made on the server as SVG: colours come from the stylesheet. Pure.

Everything that is not a number is escaped: names of steps are text, never markup.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime, timedelta

from markupsafe import Markup

from penstock.dashboard.words import number, utc
from penstock.operations.model import Flow, StepFlow, Throughput
from penstock.printable import cut, per_second

__all__ = ["bar", "flow_picture", "throughput_picture"]

COLUMN, GUTTER, BAND_TOP, BAND = 168, 34, 46, 84
NAME_CHARS = 20
WIDTH, HEIGHT, AXIS = 640, 130, 22
LINE = 17

_STUCK = (
    ("failed", "failed", "bad"),
    ("timed_out", "timed out", "bad"),
    ("waiting", "waiting", "wait"),
    ("running", "running", "run"),
    ("pending", "pending", "idle"),
    ("cancelled", "cancelled", "idle"),
)


def bar(parts: list[tuple[str, float]], whole: float, label: str) -> Markup:
    """A bar with a part for each (tone, amount); what is left of the whole stays empty."""
    drawn, x = [], 0.0
    for tone, amount in parts:
        width = min(100 - x, amount * 100 / whole) if whole else 0
        if width > 0:
            drawn.append(
                Markup('<rect class="fill-{}" x="{:.3f}" y="0" width="{:.3f}" height="8"/>').format(tone, x, width)
            )
            x += width
    return Markup(
        '<svg class="bar" viewBox="0 0 100 8" preserveAspectRatio="none" role="img" aria-label="{}">{}</svg>'
    ).format(label, Markup("").join(drawn))


def flow_picture(flow: Flow) -> Markup:
    """Rows on their way through the steps: a band as wide as the rows that are through, and what is left behind."""
    width = len(flow.steps) * (COLUMN + GUTTER) + 90
    lines = max((sum(bool(getattr(step, name)) for name, _, _ in _STUCK) for step in flow.steps), default=0)
    height = BAND_TOP + BAND + 14 + max(1, lines) * LINE
    parts = [*_bands(flow), *(part for place, step in enumerate(flow.steps) for part in _column(place, step))]
    through = flow.steps[-1].passed if flow.steps else 0
    end = len(flow.steps) * (COLUMN + GUTTER)
    parts.append(_text(end + 8, 16, "done", "flow-name"))
    parts.append(_text(end + 8, 36, number(through), "flow-count tone-ok"))
    return Markup(
        '<svg class="flow" viewBox="0 0 {} {}" width="{}" height="{}" role="img" aria-label="{}">{}</svg>'
    ).format(width, height, width, height, _flow_sentence(flow), Markup("").join(parts))


def _flow_sentence(flow: Flow) -> str:
    steps = "; ".join(
        f"{step.name}: {number(step.passed)} through"
        + "".join(f", {number(getattr(step, name))} {label}" for name, label, _ in _STUCK if getattr(step, name))
        for step in flow.steps
    )
    return f"{number(flow.rows)} rows. {steps}"


def _bands(flow: Flow) -> Iterator[Markup]:
    """From each step to the next a band whose height is the share of rows that went on."""
    share, top = 1.0, float(BAND_TOP)
    for place, step in enumerate(flow.steps):
        x = place * (COLUMN + GUTTER)
        after = step.passed / flow.rows if flow.rows else 0.0
        yield _band(x, x + COLUMN, top, share, "flow-in")
        y = top + after * BAND
        for name, _, tone in _STUCK:
            rows = getattr(step, name)
            if rows:
                tall = rows / max(1, flow.rows) * BAND
                yield Markup('<rect class="fill-{}" x="{:.1f}" y="{:.2f}" width="6" height="{:.2f}"/>').format(
                    tone, x + COLUMN - 6, y, max(tall, 1.5)
                )
                y += tall
        if after:
            yield _band(x + COLUMN, x + COLUMN + GUTTER, top, after, "flow-out")
        share = after


def _band(x1: float, x2: float, top: float, share: float, kind: str) -> Markup:
    tall = max(share * BAND, 1.5 if share else 0)
    return Markup('<rect class="{}" x="{:.1f}" y="{:.1f}" width="{:.1f}" height="{:.2f}"/>').format(
        kind, x1, top, x2 - x1, tall
    )


def _column(place: int, step: StepFlow) -> Iterator[Markup]:
    x = place * (COLUMN + GUTTER)
    yield _text(x, 16, cut(step.name, NAME_CHARS), "flow-name", title=step.name)
    yield _text(x, 36, f"{number(step.passed)} through", "flow-count")
    y = BAND_TOP + BAND + 16
    for name, label, tone in _STUCK:
        rows = getattr(step, name)
        if rows:
            yield _text(x, y, f"{number(rows)} {label}", f"flow-stuck tone-{tone}")
            y += LINE


def _text(x: float, y: float, text: str, kind: str, *, title: str = "") -> Markup:
    hint = Markup("<title>{}</title>").format(title) if title else ""
    return Markup('<text class="{}" x="{:.1f}" y="{:.1f}">{}{}</text>').format(kind, x, y, hint, text)


def throughput_picture(found: Throughput) -> Markup:
    """Rows a second over time, as an area."""
    rates = [rows / found.span_s for rows in found.rows]
    peak = max(rates) or 1.0
    step = WIDTH / len(rates)
    high = HEIGHT - AXIS - 16

    def y(rate: float) -> float:
        return 16 + high * (1 - rate / peak)

    # A step for each span of time: nothing is known of what happened within it.
    points = [(place * step, y(rate)) for place, rate in enumerate(rates)]
    line = "".join(f"L{x:.1f} {at:.1f}H{x + step:.1f}" for x, at in points)
    base = HEIGHT - AXIS
    end = found.start + timedelta(seconds=found.span_s * len(rates))
    label = f"Rows a second from {utc(found.start)} to {utc(end)}: at most {per_second(peak)}"
    return Markup(
        '<svg class="throughput" viewBox="0 0 {w} {h}" role="img" aria-label="{label}">'
        '<path class="area" d="M0 {base}{line}V{base}Z"/><path class="edge" d="M0 {y0:.1f}{line}"/>'
        '<path class="axis" d="M0 {base}H{w}"/><path class="grid" d="M0 16H{w}"/>'
        '<text class="label" x="2" y="11">{peak}</text>'
        '<text class="label" x="0" y="{below}">{start}</text>'
        '<text class="label end" x="{w}" y="{below}">{end}</text></svg>'
    ).format(
        w=WIDTH,
        h=HEIGHT,
        label=label,
        base=base,
        line=line,
        y0=points[0][1],
        peak=f"{per_second(peak)} at most",
        below=HEIGHT - 6,
        start=_clock(found.start, found),
        end=_clock(end, found),
    )


def _clock(at: datetime, found: Throughput) -> str:
    is_long = found.span_s * len(found.rows) > 86_400
    return at.strftime("%d %b %H:%M UTC" if is_long else "%H:%M:%S UTC")
