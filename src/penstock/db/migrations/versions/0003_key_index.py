"""An index of the keys in rows' records: one row of a large operation is found without passing all that failed."""

from __future__ import annotations

from penstock.db.changes import create_index

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    create_index("ix_penstock_row_record_key", "penstock_row_record", ["row_key", "operation"])
