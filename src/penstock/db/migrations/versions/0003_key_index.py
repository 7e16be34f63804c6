"""An index of the keys in rows' records: one row of a large operation is found without passing all that failed."""

from __future__ import annotations

from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    op.create_index("ix_penstock_row_record_key", "penstock_row_record", ["row_key", "operation"], if_not_exists=True)
