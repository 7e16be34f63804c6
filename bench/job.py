"""The job that is measured: a CSV of eight typed columns through three steps that do nothing, one row in 100 bad."""

from __future__ import annotations

import csv
from datetime import date
from pathlib import Path

from pydantic import BaseModel, Field

from penstock import Context, Pipeline, operation, step

HEADER = ("id", "name", "email", "amount", "quantity", "country", "signup", "active")
BAD_EVERY = 100


class Row(BaseModel):
    """One line of the file."""

    id: int
    name: str = Field(min_length=1, max_length=80)
    email: str = Field(min_length=3, max_length=120)
    amount: float = Field(ge=0)
    quantity: int = Field(ge=0)
    country: str = Field(min_length=2, max_length=2)
    signup: date
    active: bool


@operation("bench", row_key="id")
class Bench(Pipeline[Row]):
    """Three steps that do nothing."""

    @step
    async def one(self, row: Row, ctx: Context) -> None: ...

    @step
    async def two(self, row: Row, ctx: Context) -> None: ...

    @step
    async def three(self, row: Row, ctx: Context) -> None: ...


def write_file(path: Path, rows: int) -> None:
    """A file with `rows` lines."""
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(HEADER)
        for n in range(1, rows + 1):
            amount = "x" if n % BAD_EVERY == 0 else f"{n * 7919 % 100_000 / 100:.2f}"
            country = ("DE", "FR", "IT", "ES")[n % 4]
            signup = f"20{n % 20 + 10}-{n % 12 + 1:02}-{n % 28 + 1:02}"
            email = f"user{n * 2654435761 % 2**32:08x}@example.com"
            writer.writerow((n, f"Customer {n}", email, amount, n % 50, country, signup, "true" if n % 3 else "false"))
