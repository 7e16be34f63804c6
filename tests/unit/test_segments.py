"""How a pipeline is cut: spans between barriers, segments of one manner within a span."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from penstock import BatchContext, Context, Pipeline, operation, step
from penstock.operations.rows.segments import Span, cut_spans
from penstock.pipeline import StepPlan, definition_of


class Item(BaseModel):
    id: int


@operation("every-kind")
class EveryKind(Pipeline[Item]):
    @step
    async def awaited(self, row: Item, ctx: Context) -> None: ...

    @step
    def threaded(self, row: Item, ctx: Context) -> None: ...

    @step(timeout=1)
    def timed(self, row: Item, ctx: Context) -> None: ...

    @step
    def asked(self, row: Item, ctx: Context) -> None: ...

    @asked.when
    async def is_wanted(self, row: Item, ctx: Context) -> bool:
        return True

    @step(barrier=True)
    async def after_barrier(self, row: Item, ctx: Context) -> None: ...

    @step(delivery="at_most_once")
    async def once(self, row: Item, ctx: Context) -> None: ...

    @step.batch(size=2)
    async def batched(self, rows: list[Item], ctx: BatchContext) -> None: ...

    @step.signal(key="k-{row.id}", timeout=1)
    async def signalled(self, row: Item, ctx: Context) -> None: ...

    @step.poll(every=1, timeout=2)
    async def polled(self, row: Item, ctx: Context) -> None: ...

    @polled.check
    async def is_done(self, row: Item, ctx: Context) -> bool:
        return True


STEPS = {plan.attribute: plan for plan in definition_of(EveryKind).steps}
KINDS = tuple(STEPS)
ALONE = {"once", "batched", "signalled", "polled"}


def pipeline(*names: str) -> list[StepPlan]:
    from dataclasses import replace

    return [replace(STEPS[name], index=index) for index, name in enumerate(names)]


def shape(spans: tuple[Span, ...]) -> list[list[tuple[str, int, int]]]:
    return [[(s.manner, s.first, s.stop) for s in span.segments] for span in spans]


def test_plain_steps_share_one_span_and_steps_of_one_manner_a_segment():
    spans = cut_spans(pipeline("awaited", "awaited", "threaded", "threaded", "awaited"))
    assert shape(spans) == [[("await", 1, 3), ("thread", 3, 5), ("await", 5, 6)]]


def test_a_barrier_begins_a_span_that_goes_on_behind_it():
    spans = cut_spans(pipeline("awaited", "after_barrier", "awaited"))
    assert shape(spans) == [[("await", 1, 2)], [("await", 2, 4)]]


@pytest.mark.parametrize("name", sorted(ALONE))
def test_a_step_that_must_not_share_an_intent_stands_alone(name: str):
    spans = cut_spans(pipeline("awaited", name, "awaited"))
    assert [(span.first, span.stop) for span in spans] == [(1, 2), (2, 3), (3, 4)]
    assert [span.is_at_most_once for span in spans] == [False, name == "once", False]


@pytest.mark.parametrize("name", ["timed", "asked"])
def test_a_sync_step_that_needs_the_loop_is_awaited(name: str):
    assert shape(cut_spans(pipeline(name))) == [[("await", 1, 2)]]


def test_batches_have_their_own_manner():
    assert shape(cut_spans(pipeline("batched"))) == [[("batch", 1, 2)]]


@given(st.lists(st.sampled_from(KINDS), min_size=1, max_size=12))
def test_spans_and_segments_cover_every_step_once_and_in_order(names: list[str]):
    spans = cut_spans(pipeline(*names))
    places = list(range(1, len(names) + 1))
    assert [p for span in spans for p in range(span.first, span.stop)] == places
    assert [p for span in spans for s in span.segments for p in range(s.first, s.stop)] == places


@given(st.lists(st.sampled_from(KINDS), min_size=1, max_size=12))
def test_what_must_stand_alone_always_does_and_barriers_begin_spans(names: list[str]):
    for span in cut_spans(pipeline(*names)):
        inside = names[span.first - 1 : span.stop - 1]
        assert len(inside) == 1 or not ALONE.intersection(inside)
        assert "after_barrier" not in inside[1:]
