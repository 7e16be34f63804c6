"""Outputs for which the ledger of a chunk has no room are kept in the records of their steps."""

from __future__ import annotations

import sqlalchemy as sa

from penstock.db.changes import add_column
from penstock.db.types import Bytes

revision = "0015"
down_revision = "0014"


def upgrade() -> None:
    add_column("penstock_row_record", sa.Column("output", Bytes))
