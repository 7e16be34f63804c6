"""The operations that are tortured: every kind of step, each telling the witness when it starts and ends.

What a row must come to is a pure function of its data, so the oracle needs no other record of what was meant.
"""

from __future__ import annotations

import asyncio
import random
import time
import zlib
from collections.abc import Callable
from typing import Any

from pydantic import BaseModel, Field

from penstock import BatchContext, Context, Done, Pipeline, StepFailed, operation, step

from .journal import What

__all__ = [
    "BARRIERS",
    "ONCE",
    "POLL_TIMEOUT_S",
    "SIGNAL_TIMEOUT_S",
    "STEPS",
    "Brittle",
    "Ordeal",
    "Parcel",
    "csv_of",
    "is_stubborn",
    "is_wanted",
    "labour",
    "make_rows",
    "note",
    "set_witness",
    "worth",
]

SIGNAL_TIMEOUT_S = 4.0
POLL_TIMEOUT_S = 8.0
CALL_ERRORS = 3  # a row's calls fail so many times less one at most, within the step's retries
PACE_S = 0.01

STEPS = ("receive", "weigh", "enrich", "post", "pay", "call", "ship", "approve", "finish")
# Steps that begin a span: their attempt is on disk before they start. Other operations' steps are among them.
BARRIERS = frozenset({*STEPS, "store", "revise", "use"}) - {"weigh"}
ONCE = frozenset({"pay"})

Witness = Callable[[What, Context[Any]], None]
_witness: Witness = lambda what, ctx: None  # noqa: E731


def set_witness(witness: Witness) -> None:
    """Who is told what the steps of this process do."""
    global _witness  # noqa: PLW0603
    _witness = witness


def note(what: What, ctx: Context[Any]) -> None:
    """Tell the witness."""
    _witness(what, ctx)


class Parcel(BaseModel):
    id: int
    qty: int = Field(ge=0)
    gate: str
    note: str = ""
    tag: str = ""


def worth(step: str, parcel: Parcel) -> int:
    """What a step returns for a row."""
    return zlib.crc32(f"{step}:{parcel.id}:{parcel.qty}".encode())


def is_wanted(parcel: Parcel) -> bool:
    """Whether the row is enriched; the others skip that step."""
    return parcel.qty % 5 != 0


def is_stubborn(parcel: Parcel) -> bool:
    """Whether the row fails once for good, until somebody retries or edits it."""
    return parcel.qty % 11 == 7


def expected(step: str, parcel: Parcel) -> int | None:
    """The output a later step must find."""
    return None if step == "enrich" and not is_wanted(parcel) else worth(step, parcel)


async def labour(what: str, parcel: Parcel) -> int:
    """A moment's work, and what it is worth."""
    await asyncio.sleep(PACE_S * random.random())
    return worth(what, parcel)


@operation("ordeal", row_key="id", max_row_concurrency=6, max_retry_attempts=0)
class Ordeal(Pipeline[Parcel]):
    """Everything a pipeline can contain."""

    async def validate_row(self, parcel: Parcel, meta: None, /) -> None:
        await asyncio.sleep(PACE_S / 4)

    @step
    async def receive(self, parcel: Parcel, ctx: Context) -> int:
        note("start", ctx)
        output = await labour("receive", parcel)
        note("end", ctx)
        return output

    @step
    def weigh(self, parcel: Parcel, ctx: Context) -> int:
        note("start", ctx)
        time.sleep(PACE_S / 10)
        note("end", ctx)
        return worth("weigh", parcel)

    @step(barrier=True)
    async def enrich(self, parcel: Parcel, ctx: Context) -> int:
        note("start", ctx)
        output = await labour("enrich", parcel)
        note("end", ctx)
        if is_stubborn(parcel) and ctx.generation == 0:
            raise StepFailed("stubborn")
        return output

    @enrich.when
    async def has_something_to_enrich(self, parcel: Parcel, ctx: Context) -> bool:
        return is_wanted(parcel)

    @step.batch(size=3)
    async def post(self, parcels: list[Parcel], ctx: BatchContext) -> list[int]:
        for row in ctx.rows:
            note("start", row)
        await asyncio.sleep(PACE_S)
        for row in ctx.rows:
            note("end", row)
        return [worth("post", parcel) for parcel in parcels]

    @step(delivery="at_most_once")
    async def pay(self, parcel: Parcel, ctx: Context) -> int:
        note("start", ctx)
        output = await labour("pay", parcel)
        note("end", ctx)
        return output

    @step(retries=CALL_ERRORS, backoff=0.05)
    async def call(self, parcel: Parcel, ctx: Context) -> int:
        note("start", ctx)
        output = await labour("call", parcel)
        note("end", ctx)
        if ctx.attempt <= parcel.id % CALL_ERRORS:
            raise OSError(f"attempt {ctx.attempt}")
        return output

    @step.poll(every=0.1, timeout=POLL_TIMEOUT_S)
    async def ship(self, parcel: Parcel, ctx: Context) -> None:
        note("start", ctx)
        await labour("ship", parcel)
        note("end", ctx)

    @ship.check
    async def has_arrived(self, parcel: Parcel, ctx: Context) -> bool | Done[int]:
        note("check", ctx)
        return Done(worth("ship", parcel)) if random.random() < 0.5 else False

    @step.signal(key="{row.gate}", timeout=SIGNAL_TIMEOUT_S)
    async def approve(self, parcel: Parcel, ctx: Context) -> None:
        note("start", ctx)
        await labour("approve", parcel)
        note("end", ctx)

    @step
    async def finish(self, parcel: Parcel, ctx: Context) -> int:
        note("start", ctx)
        found = {name: ctx.outputs.get(name) for name in STEPS[:7]}
        wanted = {name: expected(name, parcel) for name in STEPS[:7]}
        note("end", ctx)
        if found != wanted:
            raise StepFailed(f"earlier outputs are {found}, expected {wanted}")
        return worth("finish", parcel)


@operation("brittle", row_key="id", max_errors=2)
class Brittle(Pipeline[Parcel]):
    """Breaks when more than two rows fail."""

    @step
    async def receive(self, parcel: Parcel, ctx: Context) -> int:
        note("start", ctx)
        output = await labour("receive", parcel)
        note("end", ctx)
        if is_stubborn(parcel) and ctx.generation == 0:
            raise StepFailed("stubborn")
        return output


def make_rows(rng: random.Random, count: int, *, invalid: float = 0.05, shared: float = 0.2) -> list[dict[str, Any]]:
    """Rows of a file; some are invalid, some wait at a gate that they share with others."""
    rows = []
    for number in range(1, count + 1):
        gate = f"shared-{number % 2}" if rng.random() < shared else f"gate-{number}"
        qty = -1 if rng.random() < invalid else rng.randrange(1000)
        rows.append({"id": number, "qty": qty, "gate": gate})
    return rows


def csv_of(rows: list[dict[str, Any]]) -> bytes:
    """The file of these rows."""
    lines = [",".join(rows[0]), *(",".join(map(str, row.values())) for row in rows)]
    return "".join(f"{line}\n" for line in lines).encode()
