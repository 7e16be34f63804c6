"""Papers that wait for a word from outside, and engines in which time moves when told: what tests of waits share."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from patience import HANG_S
from pydantic import BaseModel
from sqlalchemy import select

from penstock import Context, Pipeline, StepFailed, operation, step
from penstock.clock import ManualClock
from penstock.db.database import Database
from penstock.operations.model import HistoryEntry, Operation
from penstock.operations.operation_ids import number_of
from penstock.operations.running.job import RowsJob
from penstock.operations.tables import chunks, requests, signals
from penstock.settings import Settings
from penstock.testing import Engine, engine

__all__ = [
    "Calls",
    "Paper",
    "Wall",
    "a_moment",
    "approvals",
    "at_wall",
    "chunks_of",
    "clean",
    "failures",
    "history",
    "on_withdraw",
    "papers",
    "requests_of",
    "signals_of",
    "states",
    "two_engines",
    "work_or_wall",
]

HOUR_S = 3600.0
Calls = Counter[tuple[str, int]]
SECOND = 1_000_000


class Paper(BaseModel):
    code: str
    desk: str = "front"


def papers(count: int, *, desk: str = "front") -> list[dict[str, str]]:
    """So many papers, all for one desk."""
    return [{"code": f"p{n}", "desk": desk} for n in range(1, count + 1)]


def approvals(calls: Calls, *, key: str = "paper-{row.code}", timeout: float = 60, retries: int = 0) -> type:
    """Submit a paper, wait for its approval, file it; every call is counted by step and row."""

    @operation("approvals", row_key="code")
    class Approvals(Pipeline[Paper]):
        @step
        async def submit(self, paper: Paper, ctx: Context) -> str:
            calls["submit", ctx.row_number] += 1
            return f"submitted {paper.code}"

        @step.signal(key=key, timeout=timeout, retries=retries)
        async def approval(self, paper: Paper, ctx: Context) -> None:
            calls["approval", ctx.row_number] += 1

        @step
        async def file(self, paper: Paper, ctx: Context) -> Any:
            calls["file", ctx.row_number] += 1
            return ctx.outputs.get("approval")

    return Approvals


def failures(calls: Calls, *, broken: Callable[[Context, str], bool], **options: Any) -> type:
    """Three plain steps of which each fails a row when told to; every call is counted by step and row."""

    @operation("failures", row_key="code", **options)
    class Failures(Pipeline[Paper]):
        def validate_row(self, paper: Paper, meta: None) -> None:
            if paper.code.startswith("x"):
                raise ValueError("no such code")

        @step
        async def first(self, paper: Paper, ctx: Context) -> str:
            return await self.go(paper, ctx)

        @step(barrier=True)
        async def second(self, paper: Paper, ctx: Context) -> str:
            return await self.go(paper, ctx)

        @step(barrier=True)
        async def third(self, paper: Paper, ctx: Context) -> str:
            return await self.go(paper, ctx)

        async def go(self, paper: Paper, ctx: Context) -> str:
            calls[ctx.step_name, ctx.row_number] += 1
            if broken(ctx, paper.code):
                raise StepFailed(f"{ctx.step_name} fails {paper.code} in generation {ctx.generation}")
            return f"{ctx.step_name} {paper.code}"

    return Failures


class Wall:
    """A place where a call stays until the wall is gone."""

    def __init__(self) -> None:
        self.reached, self.gone = asyncio.Event(), asyncio.Event()

    async def stop(self) -> None:
        self.reached.set()
        await self.gone.wait()


async def work_or_wall(wall: Wall, work: Coroutine[Any, Any, Any]) -> bool:
    """Work until it ends or somebody stands at the wall, and say which; the worker's own tasks stay where they are."""
    task = asyncio.create_task(work)
    reached = asyncio.create_task(wall.reached.wait())
    done, _ = await asyncio.wait({task, reached}, timeout=HANG_S, return_when=asyncio.FIRST_COMPLETED)
    assert done, "nothing happened for a long time"
    for waiting in (task, reached):
        waiting.cancel()
    await asyncio.gather(task, reached, return_exceptions=True)
    if reached not in done:
        task.result()
    return reached in done


async def at_wall(wall: Wall, work: Coroutine[Any, Any, Any]) -> None:
    """Work until somebody stands at the wall."""
    assert await work_or_wall(wall, work), "the worker never came to the wall"


def on_withdraw(monkeypatch: pytest.MonkeyPatch) -> asyncio.Event:
    """Set when a worker has heard that no more rows shall begin, and has taken back those that had not."""
    heard, withdraw = asyncio.Event(), RowsJob.withdraw

    def withdraw_aloud(job: RowsJob) -> list[int]:
        heard.set()
        return withdraw(job)

    monkeypatch.setattr(RowsJob, "withdraw", withdraw_aloud)
    return heard


async def a_moment() -> None:
    """Let every task that can go on do so; no time passes."""
    for _ in range(50):
        await asyncio.sleep(0)


@asynccontextmanager
async def two_engines(
    *operations: object, url: str, folder: Path, settings: Settings | None = None
) -> AsyncIterator[tuple[Engine, Engine]]:
    """Two engines on one database and one clock, as in two processes; time moves for one at a time.

    However slow the machine is, none of them writes or looks round by itself, unless the settings say when.
    """
    given = settings or Settings()
    calm = {name: HOUR_S for name in ("flush_s", "control_poll_s") if name not in given.model_fields_set}
    shared: dict[str, Any] = {
        "url": url, "tmp_path": folder, "settings": given.model_copy(update=calm), "clock": ManualClock(),
    }  # fmt: skip
    async with engine(operations, **shared) as one, engine(operations, **shared) as other:
        yield one, other


async def states(e: Engine, made: Operation) -> list[str]:
    """The state of every row, in row order."""
    return [row.state for row in (await e.operations.rows(made.id, limit=1000)).items]


async def history(e: Engine, made: Operation, row: int | None = None) -> list[HistoryEntry]:
    """What happened to rows before their present state."""
    return list((await e.operations.history(made.id, row=row, limit=1000)).items)


async def clean(e: Engine) -> list[str]:
    """What `verify` has to say: nothing, when all is well."""
    return list(map(str, (await e.operations.verify(deep=True)).differences))


async def _records(db: Database, table: Any, made: Operation) -> list[Any]:
    async with db.read() as tx:
        mine = table.c.operation == await number_of(tx, made.id)
        return list(await tx.execute(select(table).where(mine).order_by(table.c.id)))


async def chunks_of(e: Engine, made: Operation) -> list[Any]:
    """The chunks of an operation, as stored."""
    return await _records(e.penstock.db, chunks, made)


async def signals_of(e: Engine, made: Operation) -> list[Any]:
    """The signals of an operation, as stored."""
    return await _records(e.penstock.db, signals, made)


async def requests_of(e: Engine, made: Operation) -> list[Any]:
    """The requests of an operation, as stored."""
    return await _records(e.penstock.db, requests, made)
