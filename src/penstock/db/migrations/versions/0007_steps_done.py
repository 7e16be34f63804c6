"""How many steps the rows of a chunk have behind them, for progress."""

from __future__ import annotations

import sqlalchemy as sa

from penstock.db.changes import add_column

revision = "0007"
down_revision = "0006"


def upgrade() -> None:
    add_column("penstock_chunk", sa.Column("steps_done", sa.BigInteger()))
