"""What the database layer keeps for itself."""

from __future__ import annotations

from sqlalchemy import BigInteger, Column

from penstock.db.schema import table
from penstock.db.types import Key

__all__ = ["clocks"]

# How far the clock that all processes on a file share is ahead of the time since that boot of the machine.
clocks = table(
    "penstock_clock",
    Column("boot", Key(64), primary_key=True),
    Column("ahead_us", BigInteger, nullable=False),
)
