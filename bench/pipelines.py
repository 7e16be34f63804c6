"""The same job as Penstock operations, each with steps of another kind."""

from __future__ import annotations

import asyncio
import time
from datetime import timedelta

from pydantic import BaseModel

from bench.job import Row
from penstock import BatchContext, Context, Pipeline, StepFailed, operation, step

__all__ = ["PIPELINES", "SLEEP_S", "Batches", "Failing", "Outputs", "Plain", "Share", "Sleeping", "Sync", "Waiting"]

SLEEP_S = 0.01


@operation("plain", row_key="id")
class Plain(Pipeline[Row]):
    """Three steps that do nothing."""

    @step
    async def one(self, row: Row, ctx: Context) -> None: ...

    @step
    async def two(self, row: Row, ctx: Context) -> None: ...

    @step
    async def three(self, row: Row, ctx: Context) -> None: ...


class Share(BaseModel):
    """How many rows of each hundred fail."""

    percent: int


@operation("failing", row_key="id")
class Failing(Pipeline[Row, Share]):
    """Some rows fail at the second step, until they are retried."""

    @step
    async def one(self, row: Row, ctx: Context[Share]) -> None: ...

    @step
    async def two(self, row: Row, ctx: Context[Share]) -> None:
        if ctx.generation == 0 and row.id % 100 <= ctx.meta.percent:
            raise StepFailed("the other side refuses this row")

    @step
    async def three(self, row: Row, ctx: Context[Share]) -> None: ...


@operation("outputs", row_key="id")
class Outputs(Pipeline[Row]):
    """Every step returns something that is kept."""

    @step
    async def one(self, row: Row, ctx: Context) -> str:
        return f"customer-{row.id}"

    @step
    async def two(self, row: Row, ctx: Context) -> dict[str, int]:
        return {"account": row.id, "units": row.quantity}

    @step
    async def three(self, row: Row, ctx: Context) -> int:
        return row.id


@operation("sleeping", row_key="id", max_row_concurrency=100)
class Sleeping(Pipeline[Row]):
    """Every step waits for something, as calls over a network do."""

    @step
    async def one(self, row: Row, ctx: Context) -> None:
        await asyncio.sleep(SLEEP_S)

    @step
    async def two(self, row: Row, ctx: Context) -> None:
        await asyncio.sleep(SLEEP_S)

    @step
    async def three(self, row: Row, ctx: Context) -> None:
        await asyncio.sleep(SLEEP_S)


@operation("sync", row_key="id")
class Sync(Pipeline[Row]):
    """Plain functions, which run on threads."""

    @step
    def one(self, row: Row, ctx: Context) -> None: ...

    @step
    def two(self, row: Row, ctx: Context) -> None: ...

    @step
    def three(self, row: Row, ctx: Context) -> None: ...


@operation("batches", row_key="id", max_row_concurrency=1000)
class Batches(Pipeline[Row]):
    """A hundred rows to a call."""

    @step.batch(size=100)
    async def one(self, rows: list[Row], ctx: BatchContext) -> None: ...

    @step.batch(size=100)
    async def two(self, rows: list[Row], ctx: BatchContext) -> None: ...

    @step.batch(size=100)
    async def three(self, rows: list[Row], ctx: BatchContext) -> None: ...


@operation("waiting", row_key="id", max_row_concurrency=1000)
class Waiting(Pipeline[Row]):
    """Every row waits for a signal; the step after it says when it began, on the clock all processes share."""

    @step.signal(key="row-{row.id}", timeout=timedelta(hours=1))
    async def ask(self, row: Row, ctx: Context) -> None: ...

    @step
    async def answered(self, row: Row, ctx: Context) -> int:
        return time.monotonic_ns()


PIPELINES = {p.__name__: p for p in (Plain, Failing, Outputs, Sleeping, Sync, Batches, Waiting)}
