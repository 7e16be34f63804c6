"""Operations that each invite one sort of trouble, beside the ordeal, which has every kind of step.

Here too a row's verdict is a pure function of its data and its generation.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from typing import Any, Self

from penstock import Context, Pipeline, StepFailed, operation, step

from .ordeal import PACE_S, SIGNAL_TIMEOUT_S, Brittle, Ordeal, Parcel, is_stubborn, labour, note

__all__ = [
    "BARRED",
    "OPERATIONS",
    "Approval",
    "Connected",
    "Inspection",
    "Local",
    "Revision",
    "fails_until",
    "inspection_rows",
    "is_barred",
    "let_lifespans_fail",
    "revision_rows",
]

INSPECT_S, REFUSE_S = 0.04, 0.12  # refusing takes longer, so that more is done to chunks that are refused
CHECK_S = (0.0, 0.0, 0.1, 1.0)
BARRED = "barred"  # the gate of rows that are not let in


def is_barred(name: str, parcel: Parcel) -> bool:
    """Whether an operation's own validation refuses the row."""
    return name == "inspection" and parcel.gate == BARRED


def fails_until(name: str, parcel: Parcel) -> int:
    """The generation from which on the row no longer fails by itself."""
    if name == "revision":
        return parcel.qty
    return int(name in ("ordeal", "brittle") and is_stubborn(parcel))


@operation("inspection", row_key="id", max_row_concurrency=6)
class Inspection(Pipeline[Parcel]):
    """Validation takes its time and refuses whole chunks, so much that is done to it finds it validating."""

    async def validate_row(self, parcel: Parcel, meta: None, /) -> None:
        is_refused = is_barred("inspection", parcel)
        await asyncio.sleep((REFUSE_S if is_refused else INSPECT_S) * random.random())
        if is_refused:
            raise ValueError("not let in")

    @step
    async def store(self, parcel: Parcel, ctx: Context) -> int:
        note("start", ctx)
        output = await labour("store", parcel)
        note("end", ctx)
        return output


@operation("approval", row_key="id", max_retry_attempts=0)
class Approval(Pipeline[Parcel]):
    """Every row waits for a signal, and for nothing else."""

    @step.signal(key="{row.gate}", timeout=SIGNAL_TIMEOUT_S)
    async def approve(self, parcel: Parcel, ctx: Context) -> None:
        note("start", ctx)
        note("end", ctx)


_failing: Mapping[str, float] = {}  # by operation, how often its lifespan fails in this process


def let_lifespans_fail(chances: Mapping[str, float]) -> None:
    """How often the lifespan of each of these operations fails in this process."""
    global _failing  # noqa: PLW0603
    _failing = chances


async def _connect(name: str) -> None:
    await asyncio.sleep(PACE_S * random.random())
    if random.random() < _failing.get(name, 0.0):
        raise ConnectionError(f"nobody answers here for {name}")


@operation("connected", row_key="id")
class Connected(Pipeline[Parcel]):
    """Its lifespan fails now and then in some processes."""

    @classmethod
    @asynccontextmanager
    async def lifespan(cls) -> AsyncGenerator[Self]:
        await _connect("connected")
        yield cls()

    @step
    async def use(self, parcel: Parcel, ctx: Context) -> int:
        note("start", ctx)
        output = await labour("use", parcel)
        note("end", ctx)
        return output


@operation("local", row_key="id")
class Local(Pipeline[Parcel]):
    """Needs something that some processes never have: their lifespan fails each time."""

    @classmethod
    @asynccontextmanager
    async def lifespan(cls) -> AsyncGenerator[Self]:
        await _connect("local")
        yield cls()

    @step
    async def use(self, parcel: Parcel, ctx: Context) -> int:
        note("start", ctx)
        output = await labour("use", parcel)
        note("end", ctx)
        return output


@operation("revision", row_key="id", max_retry_attempts=0)
class Revision(Pipeline[Parcel]):
    """Rows fail for several generations; checking them takes now and then so long that others come between."""

    async def validate_row(self, parcel: Parcel, meta: None, /) -> None:
        await asyncio.sleep(random.choice(CHECK_S) * random.random())

    @step
    async def revise(self, parcel: Parcel, ctx: Context) -> int:
        note("start", ctx)
        output = await labour("revise", parcel)
        note("end", ctx)
        if ctx.generation < parcel.qty:
            raise StepFailed("stubborn")
        return output


OPERATIONS = (Ordeal, Brittle, Inspection, Approval, Connected, Local, Revision)


def revision_rows(rng: random.Random) -> list[dict[str, Any]]:
    """A few rows that fail a few times each."""
    few = range(1, rng.randint(2, 6))
    return [{"id": i, "qty": rng.randint(1, 6), "gate": "open", "note": "-", "tag": "-"} for i in few]


def inspection_rows(rng: random.Random, chunk_rows: int, chunks_max: int) -> list[dict[str, Any]]:
    """Chunk by chunk: all refused, all let in, or some of each."""
    rows: list[dict[str, Any]] = []
    for _ in range(rng.randint(3, max(3, chunks_max))):
        barred = rng.choice((1.0, 1.0, 0.0, 0.5))
        for _ in range(chunk_rows):
            gate = BARRED if rng.random() < barred else "open"
            rows.append({"id": len(rows) + 1, "qty": rng.randrange(1000), "gate": gate})
    return rows
