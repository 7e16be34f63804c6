"""Quotas of remotes that processes have in common."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from penstock.db.schema import table_options
from penstock.db.types import Key

revision = "0014"
down_revision = "0013"


def upgrade() -> None:
    op.create_table(
        "penstock_quota_member",
        sa.Column("quota", Key(64), nullable=False),
        sa.Column("member", Key(32), nullable=False),
        sa.Column("lease_until", sa.BigInteger(), nullable=False),
        sa.Column("throttled_until", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("quota", "member"),
        if_not_exists=True,
        **table_options(is_numbered=False),
    )
