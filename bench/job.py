"""The job that is measured: a CSV of eight typed columns, one row in 100 bad, through three steps that do nothing.

Nothing here imports Penstock: all who take part read the same file into the same model.
"""

from __future__ import annotations

from datetime import date
from pathlib import Path

from pydantic import BaseModel, Field

__all__ = ["BAD_EVERY", "HEADER", "STEPS", "Row", "bad_rows", "write_file"]

HEADER = ("id", "name", "email", "amount", "quantity", "country", "signup", "active")
COUNTRIES = ("DE", "FR", "IT", "ES")
BAD_EVERY = 100
STEPS = 3


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


def bad_rows(rows: int) -> int:
    """How many of the first `rows` lines do not validate."""
    return rows // BAD_EVERY


def write_file(path: Path, rows: int) -> None:
    """A file with `rows` lines."""
    with path.open("w", newline="") as file:
        file.write(",".join(HEADER) + "\r\n")
        file.writelines(map(_line, range(1, rows + 1)))


def _line(n: int) -> str:
    amount = "x" if n % BAD_EVERY == 0 else f"{n * 7919 % 100_000 / 100:.2f}"
    email = f"user{n * 2654435761 % 2**32:08x}@example.com"
    signup = f"20{n % 20 + 10}-{n % 12 + 1:02}-{n % 28 + 1:02}"
    active = "true" if n % 3 else "false"
    return f"{n},Customer {n},{email},{amount},{n % 50},{COUNTRIES[n % 4]},{signup},{active}\r\n"
