"""Several workers on one database and one clock, as in as many processes, and a witness of every call they make."""

from __future__ import annotations

import asyncio
import random
import secrets
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from patience import HANG_S
from pydantic import BaseModel
from sqlalchemy import select

from penstock import Context, Penstock, Pipeline, operation, step
from penstock.clock import Entropy, ManualClock
from penstock.operations.model import Operation
from penstock.operations.operation_ids import number_of
from penstock.operations.tables import limit_shares
from penstock.settings import Settings
from penstock.testing import Engine

__all__ = ["CALM", "Item", "Witness", "engines", "items", "limited", "shares_of", "until"]

# None of them writes or looks round by itself, however slow the machine is; a share is asked for again after a second.
CALM = Settings(chunk_rows=2, flush_s=3600, control_poll_s=1, shutdown_s=0)


class Item(BaseModel):
    id: int


def items(count: int) -> list[dict[str, Any]]:
    return [{"id": number} for number in range(1, count + 1)]


class Witness:
    """Holds every call until it is let go, and remembers the most that were ever inside at once."""

    def __init__(self, *, is_open: bool = False) -> None:
        self.calls: list[int] = []
        self.inside: list[tuple[int, asyncio.Event]] = []
        self.most = 0
        self.is_open = is_open
        self.change = asyncio.Event()

    async def __call__(self, row: int) -> None:
        self.calls.append(row)
        left = (row, asyncio.Event())
        self.inside.append(left)
        self.most = max(self.most, len(self.inside))
        self.change.set()
        try:
            if not self.is_open:
                await left[1].wait()
            else:
                await asyncio.sleep(0)
        finally:
            self.inside.remove(left)
            self.change.set()

    def let_go(self, number: int = 1) -> None:
        """Let the calls that are inside longest end."""
        for _, left in self.inside[:number]:
            left.set()

    def open(self) -> None:
        """Let all end, now and later."""
        self.is_open = True
        self.let_go(len(self.inside))

    @property
    def rows(self) -> list[int]:
        """The rows whose calls are inside."""
        return [row for row, _ in self.inside]


def limited(witness: Witness, name: str = "limited", **options: Any) -> type:
    """An operation with one step that has limits."""

    @operation(name, max_row_concurrency=8)
    class Limited(Pipeline[Item]):
        @step(**options)
        async def call(self, row: Item, ctx: Context) -> None:
            await witness(row.id)

    return Limited


async def until(holds: Callable[[], bool]) -> None:
    """Wait until it is so; the machine may be slow."""
    async with asyncio.timeout(HANG_S):
        while not holds():  # noqa: ASYNC110
            await asyncio.sleep(0.001)


@asynccontextmanager
async def engines(
    *kinds: Sequence[object], url: str, folder: Path, settings: Settings = CALM, numbers: Sequence[int] | None = None
) -> AsyncIterator[list[Engine]]:
    """An engine for each list of operations; the ids of their workers sort in this order, or as `numbers` do."""
    clock = ManualClock()
    places = {"database_url": url, "storage_url": str(folder / "files")}
    async with AsyncExitStack() as stack:
        made = []
        for place, operations in enumerate(kinds):
            entropy = Entropy(bits=_Bits(place if numbers is None else numbers[place]), jitter=random.Random(0))
            opened = Penstock.open(
                operations=operations, settings=settings.model_copy(update=places), clock=clock, entropy=entropy
            )
            penstock = await stack.enter_async_context(opened)
            made.append(await stack.enter_async_context(Engine(penstock, clock)))
        yield made


class _Bits:
    """Random bits, but for those of workers' ids: they begin as told."""

    def __init__(self, number: int) -> None:
        self._next = number << 32

    def __call__(self, size: int) -> int:
        if size != 64:
            return secrets.randbits(size)
        self._next += 1
        return self._next


async def shares_of(e: Engine, made: Operation) -> dict[str, dict[str, int]]:
    """The units that are on record, by worker, in the order of joining."""
    async with e.penstock.db.read() as tx:
        mine = limit_shares.c.operation == await number_of(tx, made.id)
        found = await tx.execute(select(limit_shares).where(mine).order_by(limit_shares.c.joined_at))
        return {row.worker: row.units for row in found}
