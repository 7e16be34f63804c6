"""Spans around the calls of steps, where OpenTelemetry is set up in the process; elsewhere nothing is added to a call.

Each row has a trace of its own, whose id is made of the operation's id and the row's number. So whichever process runs
its next step, before a wait or days after it, adds to the same trace, and nothing has to be stored or sent along.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any
from zlib import crc32

if TYPE_CHECKING:
    from opentelemetry.context import Context as TraceContext
    from opentelemetry.trace import Span, SpanContext, Tracer

    from penstock.pipeline.context import Context
    from penstock.pipeline.definition import BoundStep, Call, StepPlan

__all__ = ["is_traced", "row_trace", "traced", "tracer"]

LINKS_MAX = 128  # to the rows of a batch; more are not kept by default
UNSEEN = nullcontext()


def tracer() -> Tracer | None:
    """What makes spans; None where OpenTelemetry is not installed, or nobody has set it up to export any."""
    try:
        from opentelemetry import trace
    except ImportError:
        return None
    provider = trace.get_tracer_provider()
    if isinstance(provider, trace.ProxyTracerProvider | trace.NoOpTracerProvider):
        return None
    return provider.get_tracer("penstock")


def traced(bound: BoundStep, plan: StepPlan, ratio: float) -> BoundStep:
    """A step with a span around each of its calls, for this part of all rows; as it is where nothing is traced."""
    spans = tracer() if ratio > 0 else None
    if spans is None:
        return bound
    call = _around(spans, bound.call, plan.name, ratio, is_async=plan.is_async, is_batch=plan.kind == "batch")
    check = bound.check
    if check is not None:
        check = _around(spans, check, f"{plan.name} check", ratio, is_async=bound.check_is_async)
    return replace(bound, call=call, check=check)


def _around(spans: Tracer, call: Call, name: str, ratio: float, *, is_async: bool, is_batch: bool = False) -> Call:
    def span(ctx: Any) -> AbstractContextManager[Any]:
        if is_batch:
            return _batch_span(spans, name, ctx)
        return _row_span(spans, name, ctx) if is_traced(ctx.operation_id, ctx.row_number, ratio) else UNSEEN

    async def asynchronous(row: Any, ctx: Any) -> Any:
        with span(ctx):
            return await call(row, ctx)

    def synchronous(row: Any, ctx: Any) -> Any:
        with span(ctx):
            return call(row, ctx)

    return asynchronous if is_async else synchronous


def _row_span(spans: Tracer, name: str, ctx: Context[Any]) -> AbstractContextManager[Span]:
    attributes = {**_attributes(ctx), "penstock.row": ctx.row_number, "penstock.generation": ctx.generation}
    parent = _as_parent(row_trace(ctx.operation_id, ctx.row_number))
    return _span(spans, name, context=parent, attributes=attributes)


def _batch_span(spans: Tracer, name: str, ctx: Any) -> AbstractContextManager[Span]:
    from opentelemetry.trace import Link

    links = [Link(row_trace(ctx.operation_id, row.row_number)) for row in ctx.rows[:LINKS_MAX]]
    attributes = {**_attributes(ctx), "penstock.rows": len(ctx.rows)}
    return _span(spans, name, links=links, attributes=attributes)


@contextmanager
def _span(spans: Tracer, name: str, **options: Any) -> Iterator[Span]:
    """A span that names the kind of an error; its text may repeat what is in the row, and stays with us."""
    from opentelemetry.trace import StatusCode

    options |= {"record_exception": False, "set_status_on_exception": False}
    with spans.start_as_current_span(name, **options) as span:
        try:
            yield span
        except Exception as error:
            span.set_status(StatusCode.ERROR, type(error).__name__)
            raise


def _attributes(ctx: Any) -> dict[str, str | int]:
    return {
        "penstock.operation": ctx.operation_name,
        "penstock.operation_id": ctx.operation_id,
        "penstock.attempt": ctx.attempt,
    }


def is_traced(operation: str, row: int, ratio: float) -> bool:
    """Whether a row is among those that are traced: the same in every process."""
    return ratio >= 1 or crc32(b"%d" % row, _seed(operation)) < ratio * 2**32


def row_trace(operation: str, row: int) -> SpanContext:
    """The trace of a row, and the span that all its spans are below."""
    from opentelemetry.trace import SpanContext, TraceFlags

    digest = _digest(operation, row)
    return SpanContext(
        int.from_bytes(digest[:16]) or 1,
        int.from_bytes(digest[16:24]) or 1,
        is_remote=True,
        trace_flags=TraceFlags(TraceFlags.SAMPLED),
    )


@lru_cache(1024)
def _seed(operation: str) -> int:
    return crc32(operation.encode())


def _digest(operation: str, row: int) -> bytes:
    return hashlib.blake2b(f"{operation}:{row}".encode(), digest_size=24).digest()


def _as_parent(context: SpanContext) -> TraceContext:
    from opentelemetry.trace import NonRecordingSpan, set_span_in_context

    return set_span_in_context(NonRecordingSpan(context))
