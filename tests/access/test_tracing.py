"""Traces follow a row from step to step, across waits, retries and processes; without a collector nothing is traced."""

from __future__ import annotations

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from pydantic import BaseModel

from penstock import BatchContext, Context, Pipeline, operation, step
from penstock.pipeline import definition_of, tracing
from penstock.settings import Settings
from penstock.testing import engine

pytestmark = pytest.mark.databases("sqlite")


class Paper(BaseModel):
    name: str


current: list[int] = []


@operation("papers", row_key="name")
class Papers(Pipeline[Paper, None]):
    @step(retries=1)
    def read(self, paper: Paper, ctx: Context[None]) -> None:
        current.append(trace.get_current_span().get_span_context().trace_id)
        if paper.name == "torn" and ctx.attempt == 1:
            raise OSError("torn")

    @step.signal(key="paper-{row.name}", timeout=600)
    async def approve(self, paper: Paper, ctx: Context[None]) -> None:
        """Somebody is asked."""

    @step.batch(size=10)
    async def store(self, papers: list[Paper], ctx: BatchContext[None]) -> None:
        """All at once."""


@pytest.fixture
def spans(monkeypatch):
    kept = InMemorySpanExporter()
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(kept))
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: provider)
    return kept


async def run(e):
    made = await e.create("papers", [{"name": "a"}, {"name": "torn"}])
    await e.work_until_idle()
    await e.advance(60)
    await e.work_until_idle()
    await e.restart()  # the rest is another worker's
    for name in ("a", "torn"):
        await e.penstock.signals.complete(made.id, f"paper-{name}")
    await e.work_until_idle()
    return made


async def test_all_spans_of_a_row_are_of_one_trace_whoever_runs_them(database_url, tmp_path, spans):
    settings = Settings(trace_ratio=1)
    async with engine([Papers], url=database_url, tmp_path=tmp_path, settings=settings) as e:
        made = await run(e)
    found = spans.get_finished_spans()
    by_row = {
        row: [(span.name, span.attributes["penstock.attempt"], span.status.is_ok) for span in found
              if span.context.trace_id == tracing.row_trace(made.id, row).trace_id]
        for row in (1, 2)
    }  # fmt: skip
    assert by_row[1] == [("read", 1, True), ("approve", 1, True)]
    assert by_row[2] == [("read", 1, False), ("read", 2, True), ("approve", 1, True)]
    (batch,) = [span for span in found if span.name == "store"]
    assert {link.context.trace_id for link in batch.links} == {
        tracing.row_trace(made.id, row).trace_id for row in (1, 2)
    }
    assert tracing.row_trace(made.id, 1).trace_id in current
    assert [span.status.description for span in found if not span.status.is_ok] == ["OSError"]  # not what it says
    assert not any(span.events for span in found)


async def test_rows_that_are_not_among_the_traced_have_no_spans(database_url, tmp_path, spans):
    settings = Settings(trace_ratio=0)
    async with engine([Papers], url=database_url, tmp_path=tmp_path, settings=settings) as e:
        await run(e)
    assert spans.get_finished_spans() == ()


def test_without_a_collector_a_step_is_called_as_it_is():
    (plan, *_), pipeline = definition_of(Papers).steps, Papers()
    bound = plan.bind(pipeline)
    assert tracing.tracer() is None
    assert tracing.traced(bound, plan, 1.0) is bound


def test_which_rows_are_traced_is_the_same_everywhere_and_about_as_many_as_wanted():
    chosen = [row for row in range(10_000) if tracing.is_traced("op", row, 0.1)]
    assert 800 < len(chosen) < 1200
    assert chosen == [row for row in range(10_000) if tracing.is_traced("op", row, 0.1)]
