"""The application that worker processes run in tests: slow rows, rows that wait, rows that fail for a while."""

from __future__ import annotations

import asyncio
import math
from pathlib import Path
from typing import Any

from pydantic import BaseModel, Field

from penstock import Context, Pipeline, StepFailed, operation, step


class Citizen(BaseModel):
    name: str = Field(min_length=1)
    age: int = Field(ge=0)


@operation("stroll", max_row_concurrency=4)
async def stroll(citizen: Citizen, ctx: Context) -> None:
    """Who is older than the gate says waits there; without a gate, nobody does."""
    await asyncio.sleep(0.02)
    while citizen.age > await asyncio.to_thread(age_at_gate):  # noqa: ASYNC110  # opened by another process
        await asyncio.sleep(0.02)


def age_at_gate() -> float:
    try:
        return float(Path("gate").read_text() or 0)
    except FileNotFoundError:
        return math.inf


@operation("linger", max_row_concurrency=1)
async def linger(citizen: Citizen, ctx: Context) -> None:
    """Stay for ever."""
    await asyncio.to_thread(Path("lingering").touch)
    await asyncio.Event().wait()


@operation("permit", row_key="name")
class Permit(Pipeline[Citizen]):
    @step
    async def apply(self, citizen: Citizen, ctx: Context) -> None: ...

    @step.signal(key="permit-{row.name}", timeout=600)
    async def approval(self, citizen: Citizen, ctx: Context) -> None: ...

    @step
    async def frame(self, citizen: Citizen, ctx: Context) -> Any:
        return ctx.outputs.get("approval")


@operation("travel", row_key="name")
class Travel(Pipeline[Citizen]):
    """A train that is asked for some times, and for those over 20 a visa that somebody sends."""

    def __init__(self) -> None:
        self.asked = 0

    @step.poll(every=0.3, timeout=600)
    async def train(self, citizen: Citizen, ctx: Context) -> None: ...

    @train.check
    async def has_come(self, citizen: Citizen, ctx: Context) -> bool:
        self.asked += 1
        return self.asked > 3

    @step.signal(key="visa-{row.name}", timeout=600)
    async def visa(self, citizen: Citizen, ctx: Context) -> None: ...

    @visa.when
    def is_grown_up(self, citizen: Citizen, ctx: Context) -> bool:
        return citizen.age > 20


@operation("visit", row_key="name")
def visit(citizen: Citizen, ctx: Context) -> None:
    if Path("flood").exists():
        raise StepFailed("the bridge is under water")
