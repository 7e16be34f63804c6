"""An operation in which every kind of row occurs, run to its end: what the tests of queries and `verify` look at."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from pydantic import BaseModel, Field
from sqlalchemy import select, update

from penstock import Context, Penstock, Pipeline, RowInvalid, StepFailed, operation, step
from penstock.operations.chunk.ledger import Ledger
from penstock.operations.model import Operation
from penstock.operations.tables import chunks
from penstock.settings import Settings

__all__ = ["COURSE", "INVALID_ROWS", "Parcel", "Parcels", "Tariff", "parcels_csv", "replant", "run", "shop"]

INVALID_ROWS = (3, 37)
COURSE = {
    "Invalid": [3, 37],
    "Failed": [14],
    "TimedOut": [26],
    "Completed": [n for n in range(1, 41) if n not in (3, 14, 26, 37)],
}


class Parcel(BaseModel):
    code: str
    weight: float = Field(le=1000)


class Tariff(BaseModel):
    weight_max: float = 500


async def within_tariff(parcel: Parcel, tariff: Tariff) -> None:
    if parcel.weight > tariff.weight_max:
        raise RowInvalid(f"is over {tariff.weight_max:g}", field="weight")


@operation("parcels", row_key="code", validators=[within_tariff])
class Parcels(Pipeline[Parcel, Tariff]):
    """Weigh parcels and print their labels."""

    def validate_metadata(self, tariff: Tariff, /) -> None:
        if tariff.weight_max <= 0:
            raise ValueError("weight_max must be positive")

    @step
    def weigh(self, parcel: Parcel, ctx: Context[Tariff]) -> dict[str, float]:
        if parcel.weight < 0:
            raise StepFailed(f"weight {parcel.weight:g} is negative")
        return {"grams": parcel.weight * 1000}

    @step(name="Print label", retries=1, backoff=0.001, timeout=0.05)
    async def print_label(self, parcel: Parcel, ctx: Context[Tariff]) -> None:
        if parcel.code.startswith("R") and ctx.attempt == 1:
            raise RuntimeError("the printer is jammed")
        if parcel.code.startswith("T"):
            await asyncio.Event().wait()


def parcels_csv(rows: int = 40) -> bytes:
    """Rows 3 and 37 are invalid, 14 fails, 26 times out and 25 succeeds on its second attempt."""
    lines = {3: "P3,heavy", 14: "P14,-1", 25: "R25,25", 26: "T26,26", 37: "P37,900"}
    return ("code,weight\n" + "".join(lines.get(n, f"P{n},{n}") + "\n" for n in range(1, rows + 1))).encode()


@asynccontextmanager
async def shop(url: str, folder: Path, *operations: object) -> AsyncIterator[Penstock]:
    """An engine with chunks of ten rows."""
    settings = Settings(chunk_rows=10, database_url=url, storage_url=str(folder / "files"), lease_s=3600)
    async with Penstock.open(operations=operations or [Parcels], settings=settings) as penstock:
        yield penstock


async def run(penstock: Penstock, file: bytes | None = None, kind: object = Parcels, **given: Any) -> Operation:
    """Run a file to its end; the parcels' own unless another is given."""
    given = {"file_name": "parcels.csv", **given}
    made = await penstock.operations.create(kind, file=parcels_csv() if file is None else file, **given)
    return await penstock.run_until_done(made.id)


async def replant(penstock: Penstock, first_row: int, change: Callable[[Ledger], None], **values: Any) -> None:
    """Change a stored chunk by hand: its ledger, and whatever columns are given."""
    mine = chunks.c.first_row == first_row

    async def write(tx: Any) -> None:
        found = (await tx.execute(select(chunks.c.ledger, chunks.c.row_count).where(mine))).one()
        ledger = Ledger.decode(found.ledger, rows=found.row_count, steps=2, base=0)
        change(ledger)
        await tx.execute(update(chunks).where(mine).values(ledger=ledger.encode(), **values))

    await penstock.db.transaction(write)
