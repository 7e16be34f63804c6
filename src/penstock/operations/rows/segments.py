"""How a pipeline is divided: spans between barriers, segments within a span.

One intent on disk covers a span, and its outcomes are flushed together. A segment is a run of steps that are
executed alike: awaited on the loop, run on threads many rows to a hop, or called in batches.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Literal

from penstock.pipeline import StepPlan
from penstock.pipeline.signatures import is_async

__all__ = ["Segment", "Span", "cut_spans"]

Manner = Literal["await", "thread", "batch", "check", "validate"]


@dataclass(frozen=True, slots=True)
class Segment:
    """Steps `first` up to, not including, `stop`, counted as in the ledger (validation is 0)."""

    manner: Manner
    first: int
    stop: int


@dataclass(frozen=True, slots=True)
class Span:
    """Consecutive steps under one intent."""

    first: int
    stop: int
    segments: tuple[Segment, ...]
    is_at_most_once: bool


def cut_spans(steps: Sequence[StepPlan]) -> tuple[Span, ...]:
    """The spans of a pipeline, in order."""
    cuts: list[list[StepPlan]] = []
    for step in steps:
        if not cuts or begins_span(step) or stands_alone(cuts[-1][-1]):
            cuts.append([])
        cuts[-1].append(step)
    return tuple(_span(group) for group in cuts)


def stands_alone(step: StepPlan) -> bool:
    """Whether a step has an intent of its own: nothing before or after it shares its span."""
    return step.kind != "plain" or step.options.delivery == "at_most_once"


def begins_span(step: StepPlan) -> bool:
    """Whether everything before this step is on disk when it starts."""
    return stands_alone(step) or step.options.barrier


def manner_of(step: StepPlan) -> Manner:
    """How a step is executed. A sync step that needs a gate or a timeout is awaited, one thread hop a row."""
    if step.kind == "batch":
        return "batch"
    options = step.options
    is_gated = options.timeout is not None or options.concurrency is not None or options.rate is not None
    return "await" if step.is_async or is_gated or step.kind != "plain" or is_async(step.functions.when) else "thread"


def _span(group: Sequence[StepPlan]) -> Span:
    segments = []
    for manner, run in groupby(group, manner_of):
        steps = list(run)
        segments.append(Segment(manner, steps[0].index + 1, steps[-1].index + 2))
    return Span(
        group[0].index + 1,
        group[-1].index + 2,
        tuple(segments),
        group[0].options.delivery == "at_most_once",
    )
