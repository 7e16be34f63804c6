"""The application that the tests of the command line run."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

from pydantic import BaseModel, Field

from penstock import Backoff, Context, Pipeline, StepFailed, operation, step


class Guest(BaseModel):
    name: str = Field(min_length=1)
    age: int = Field(ge=0)


class Invitation(BaseModel):
    words: str
    times: int = Field(1, ge=1)


@operation("invite", row_key="name")
class Invite(Pipeline[Guest, Invitation]):
    """Invite guests."""

    def __init__(self) -> None:
        self.shaken: set[int] = set()

    @step(retries=1, retry_on=(ConnectionError,), backoff=Backoff.constant(0.01))
    async def find(self, guest: Guest, ctx: Context[Invitation]) -> str:
        if guest.name == "Nobody":
            raise StepFailed("Nobody lives here")
        if guest.name == "Shaky" and ctx.attempt == 1:
            raise ConnectionError("the line broke")
        return f"{guest.name}'s house"

    @step
    def write(self, guest: Guest, ctx: Context[Invitation]) -> None:
        ctx.output_of(Invite.find)


@operation("dawdle", max_row_concurrency=4)
async def dawdle(guest: Guest, ctx: Context) -> None:
    """Guests over 20 wait as long as there is a gate."""
    await asyncio.sleep(0.02)
    while guest.age > 20 and await asyncio.to_thread(Path("gate").exists):  # noqa: ASYNC110  # opened by another process
        await asyncio.sleep(0.02)


@operation("meet")
async def meet(guest: Guest, ctx: Context) -> int:
    """Wait until another process works on these guests too."""
    (Path("met") / str(os.getpid())).touch()
    while len(os.listdir("met")) < 2:  # noqa: ASYNC110  # the other is another process
        await asyncio.sleep(0.02)
    return os.getpid()


@operation("mingle", max_row_concurrency=4)
async def mingle(guest: Guest, ctx: Context) -> None:
    """Tell which process works on these guests, and stay as long as there is a gate."""
    (Path("met") / str(os.getpid())).touch()
    while "gate" in os.listdir():  # noqa: ASYNC110  # opened by another process
        await asyncio.sleep(0.02)
