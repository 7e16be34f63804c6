"""Idempotency keys."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from penstock.db.schema import table_options
from penstock.db.types import Bytes, Key

revision = "0006"
down_revision = "0005"


def upgrade() -> None:
    op.create_table(
        "penstock_idempotency_key",
        sa.Column("id", Key(64), nullable=False),
        sa.Column("scope", Key(64), nullable=False),
        sa.Column("key", Key(255), nullable=False),
        sa.Column("label", Key(255), nullable=False),
        sa.Column("fingerprint", Key(64), nullable=False),
        sa.Column("state", Key(32), nullable=False),
        sa.Column("owner", Key(32), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("lease_until", sa.BigInteger(), nullable=False),
        sa.Column("expires_at", sa.BigInteger(), nullable=False),
        sa.Column("finished_at", sa.BigInteger()),
        sa.Column("answer", Bytes),
        sa.PrimaryKeyConstraint("id"),
        sa.CheckConstraint(
            "state IN ('InProgress', 'Completed', 'Indeterminate')",
            name=op.f("ck_penstock_idempotency_key_state_known"),
        ),
        sa.CheckConstraint(
            "(state = 'Completed') = (finished_at IS NOT NULL)", name=op.f("ck_penstock_idempotency_key_finished")
        ),
        if_not_exists=True,
        **table_options(is_numbered=False),
    )
    # Nobody uses the table yet, so its indexes need not be built beside others.
    for column, name in (("expires_at", "expires"), ("scope", "scope")):
        op.create_index(f"ix_penstock_idempotency_key_{name}", "penstock_idempotency_key", [column], if_not_exists=True)
