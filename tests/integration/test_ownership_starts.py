"""No user code starts without a lease: it is looked at directly before each call, whatever came before the call."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest
from approvals import Calls, Paper, Wall, a_moment, at_wall, clean, papers

from penstock import BatchContext, Context, Pipeline, operation, step
from penstock.settings import Settings
from penstock.testing import Engine, engine

LEASE_S = Settings().lease_s
QUIET = Settings(flush_s=3600, control_poll_s=3600, sync_threads=1)


class Yard:
    """Steps that count their calls; the first call of one of them stops at the wall while the lease runs out."""

    def __init__(self, stop_at: str, kind: Callable[[Yard], type]) -> None:
        self.calls, self.wall, self._stop_at = Calls(), Wall(), stop_at
        self.loop = asyncio.get_running_loop()
        self.kind = kind(self)

    async def call(self, name: str, row: int) -> None:
        self.calls[name, row] += 1
        if name == self._stop_at and sum(count for (of, _), count in self.calls.items() if of == name) == 1:
            await self.wall.stop()

    def call_on_thread(self, name: str, row: int) -> None:
        """The same, on a thread: it waits there."""
        ended = threading.Event()

        async def call() -> None:
            await self.call(name, row)
            ended.set()

        asyncio.run_coroutine_threadsafe(call(), self.loop)
        ended.wait()


def two_steps(yard: Yard) -> type:
    @operation("yard", max_row_concurrency=1)
    class Kind(Pipeline[Paper]):
        @step
        async def first(self, paper: Paper, ctx: Context) -> None:
            await yard.call("first", ctx.row_number)

        @step
        async def second(self, paper: Paper, ctx: Context) -> None:
            await yard.call("second", ctx.row_number)

    return Kind


def two_sync_steps(yard: Yard) -> type:
    @operation("yard", max_row_concurrency=1)
    class Kind(Pipeline[Paper]):
        @step
        def first(self, paper: Paper, ctx: Context) -> None:
            yard.call_on_thread("first", ctx.row_number)

        @step
        def second(self, paper: Paper, ctx: Context) -> None:
            yard.call_on_thread("second", ctx.row_number)

    return Kind


def behind_a_gate(yard: Yard) -> type:
    @operation("yard")
    class Kind(Pipeline[Paper]):
        @step(concurrency=1)
        async def first(self, paper: Paper, ctx: Context) -> None:
            await yard.call("first", ctx.row_number)

    return Kind


def on_threads_behind_a_gate(yard: Yard) -> type:
    @operation("yard")
    class Kind(Pipeline[Paper]):
        @step(concurrency=1)
        def first(self, paper: Paper, ctx: Context) -> None:
            yard.call_on_thread("first", ctx.row_number)

    return Kind


def on_a_busy_thread(yard: Yard) -> type:
    @operation("yard")
    class Kind(Pipeline[Paper]):
        @step(concurrency=2)
        def first(self, paper: Paper, ctx: Context) -> None:
            yard.call_on_thread("first", ctx.row_number)

    return Kind


def behind_a_condition(yard: Yard) -> type:
    @operation("yard", max_row_concurrency=1)
    class Kind(Pipeline[Paper]):
        @step
        async def first(self, paper: Paper, ctx: Context) -> None:
            await yard.call("first", ctx.row_number)

        @first.when
        async def is_wanted(self, paper: Paper, ctx: Context) -> bool:
            await yard.call("when", ctx.row_number)
            return True

    return Kind


def on_threads_behind_a_condition(yard: Yard) -> type:
    @operation("yard", max_row_concurrency=1)
    class Kind(Pipeline[Paper]):
        @step
        def first(self, paper: Paper, ctx: Context) -> None:
            yard.call_on_thread("first", ctx.row_number)

        @first.when
        def is_wanted(self, paper: Paper, ctx: Context) -> bool:
            yard.call_on_thread("when", ctx.row_number)
            return True

    return Kind


def behind_a_key(yard: Yard) -> type:
    @operation("yard", max_row_concurrency=1)
    class Kind(Pipeline[Paper]):
        @step.signal(timeout=60)
        async def first(self, paper: Paper, ctx: Context) -> None:
            await yard.call("first", ctx.row_number)

        @first.key
        async def its_key(self, paper: Paper, ctx: Context) -> str:
            await yard.call("key", ctx.row_number)
            return paper.code

    return Kind


def with_a_key_behind_a_condition(yard: Yard) -> type:
    @operation("yard", max_row_concurrency=1)
    class Kind(Pipeline[Paper]):
        @step.signal(timeout=60)
        async def first(self, paper: Paper, ctx: Context) -> None:
            await yard.call("first", ctx.row_number)

        @first.when
        async def is_wanted(self, paper: Paper, ctx: Context) -> bool:
            await yard.call("when", ctx.row_number)
            return True

        @first.key
        async def its_key(self, paper: Paper, ctx: Context) -> str:
            await yard.call("key", ctx.row_number)
            return paper.code

    return Kind


def batches(yard: Yard) -> type:
    @operation("yard", max_row_concurrency=1)
    class Kind(Pipeline[Paper]):
        @step.batch(size=1)
        async def first(self, rows: list[Paper], ctx: BatchContext) -> None:
            await yard.call("first", ctx.rows[0].row_number)

    return Kind


def batches_behind_a_gate(yard: Yard) -> type:
    @operation("yard")
    class Kind(Pipeline[Paper]):
        @step.batch(size=1, concurrency=1)
        async def first(self, rows: list[Paper], ctx: BatchContext) -> None:
            await yard.call("first", ctx.rows[0].row_number)

    return Kind


def batches_behind_a_condition(yard: Yard) -> type:
    @operation("yard", max_row_concurrency=1)
    class Kind(Pipeline[Paper]):
        @step.batch(size=2)
        async def first(self, rows: list[Paper], ctx: BatchContext) -> None:
            await yard.call("first", ctx.rows[0].row_number)

        @first.when
        async def is_wanted(self, paper: Paper, ctx: Context) -> bool:
            await yard.call("when", ctx.row_number)
            return True

    return Kind


def polls(yard: Yard) -> type:
    @operation("yard", max_row_concurrency=1)
    class Kind(Pipeline[Paper]):
        @step.poll(every=1, timeout=3600)
        async def first(self, paper: Paper, ctx: Context) -> None: ...

        @first.check
        async def is_done(self, paper: Paper, ctx: Context) -> bool:
            await yard.call("check", ctx.row_number)
            return True

    return Kind


def polls_on_threads(yard: Yard) -> type:
    @operation("yard", max_row_concurrency=1)
    class Kind(Pipeline[Paper]):
        @step.poll(every=1, timeout=3600)
        async def first(self, paper: Paper, ctx: Context) -> None: ...

        @first.check
        def is_done(self, paper: Paper, ctx: Context) -> bool:
            yard.call_on_thread("check", ctx.row_number)
            return True

    return Kind


# How user code is reached, where the worker is when its lease runs out, and what must not start any more.
WAYS: dict[str, tuple[Callable[[Yard], type], str]] = {
    "the next step": (two_steps, "first"),
    "the next row": (two_steps, "second"),
    "the next step on a thread": (two_sync_steps, "first"),
    "the next row on a thread": (two_sync_steps, "second"),
    "behind a gate": (behind_a_gate, "first"),
    "on a thread behind a gate": (on_threads_behind_a_gate, "first"),
    "on a thread that was busy": (on_a_busy_thread, "first"),
    "behind a condition": (behind_a_condition, "when"),
    "on a thread behind a condition": (on_threads_behind_a_condition, "when"),
    "behind a key": (behind_a_key, "key"),
    "a key behind a condition": (with_a_key_behind_a_condition, "when"),
    "the next batch": (batches, "first"),
    "the next batch behind a gate": (batches_behind_a_gate, "first"),
    "a batch behind a condition": (batches_behind_a_condition, "when"),
    "the next poll": (polls, "check"),
    "the next poll on a thread": (polls_on_threads, "check"),
}  # fmt: skip


async def until_idle(e: Engine) -> None:
    """Wait until the worker has let go of all it holds, without a beat of its lease."""
    while e.worker.is_busy:
        e.worker.wake.clear()
        await e.worker.wake.wait()


@pytest.mark.covers("I-14")
@pytest.mark.parametrize("way", WAYS)
async def test_nothing_starts_once_the_lease_is_over(database_url: str, tmp_path: Any, way: str):
    kind, stop_at = WAYS[way]
    yard = Yard(stop_at, kind)
    async with engine([yard.kind], url=database_url, tmp_path=tmp_path, settings=QUIET) as e:
        made = await e.create(yard.kind, papers(2))
        await at_wall(yard.wall, e.work_until_idle())
        await a_moment()  # the other row is on its way to the same call
        before = Calls(yard.calls)
        e.clock.advance(LEASE_S)
        yard.wall.gone.set()
        await until_idle(e)
        assert yard.calls == before
        await e.work_until_idle()
        for paper in papers(2) if "key" in way else ():
            await e.penstock.signals.complete(made.id, paper["code"])
        await e.work_until_idle()
        assert (await e.operations.get(made.id)).status == "Completed"
        repeated = {(name, row) for (name, row), count in yard.calls.items() if count > 1}
        assert {name for name, _ in repeated} <= {"when", "key"}, "what had ended was kept"
        assert await clean(e) == []


async def test_nothing_starts_behind_a_rate_once_the_lease_is_over(database_url: str, tmp_path: Any):
    calls, pacing = Calls(), asyncio.Event()

    @operation("paced")
    class Paced(Pipeline[Paper]):
        @step(rate=10)
        async def first(self, paper: Paper, ctx: Context) -> None:
            calls["first", ctx.row_number] += 1
            pacing.set()

    async with engine([Paced], url=database_url, tmp_path=tmp_path, settings=QUIET) as e:
        made = await e.create(Paced, papers(2))
        working = asyncio.create_task(e.work_until_idle())
        await pacing.wait()
        e.clock.advance(LEASE_S)  # the other row waits for its turn
        working.cancel()
        await asyncio.gather(working, return_exceptions=True)
        await until_idle(e)
        assert calls.total() == 1
        await e.work_until_idle()
        assert (await e.operations.get(made.id)).status == "Completed"
        assert set(calls.values()) == {1}
        assert await clean(e) == []
