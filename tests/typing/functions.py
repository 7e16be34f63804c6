"""An operation that is one plain function, under a strict type checker."""

from __future__ import annotations

from typing import reveal_type

from pydantic import BaseModel

from penstock.pipeline import Context, operation, step


class Person(BaseModel):
    name: str


class Greeting(BaseModel):
    words: str = "Hello"


@operation("greet")
async def greet(row: Person, ctx: Context) -> None:
    reveal_type(ctx.meta)  # expect: None


@operation("greet-kindly", description="Say it with words", max_errors=3)
def greet_kindly(row: Person, ctx: Context[Greeting]) -> str:
    reveal_type(ctx.meta)  # expect: Greeting
    return f"{ctx.meta.words}, {row.name}"


@operation("greet-again")
@step(retries=2)
async def greet_again(row: Person, ctx: Context) -> str:
    return row.name


async def called_directly(row: Person, ctx: Context) -> None:
    await greet(row, ctx)
    await greet_again(row, ctx)
