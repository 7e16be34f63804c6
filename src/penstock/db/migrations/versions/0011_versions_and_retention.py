"""The code that workers have, and what is kept of operations for how long."""

from __future__ import annotations

import sqlalchemy as sa

from penstock.db.changes import add_column
from penstock.db.types import Json, LongText

revision = "0011"
down_revision = "0010"


def upgrade() -> None:
    add_column("penstock_worker", sa.Column("code", Json))
    add_column("penstock_operation", sa.Column("keep", Json))
    add_column("penstock_operation", sa.Column("pruned", Json))
    add_column("penstock_operation", sa.Column("hold", LongText))
