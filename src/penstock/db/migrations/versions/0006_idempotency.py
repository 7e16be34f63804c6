"""Idempotency keys."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from penstock.db.changes import create_index
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
    create_index("ix_penstock_idempotency_key_expires", "penstock_idempotency_key", ["expires_at"])
    create_index("ix_penstock_idempotency_key_scope", "penstock_idempotency_key", ["scope"])
