"""Access: API keys, the tenants of operations, and the audit log."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from penstock.db.changes import add_column, create_index
from penstock.db.schema import table_options
from penstock.db.types import Json, Key

revision = "0013"
down_revision = "0012"


def upgrade() -> None:
    _create_api_key()
    _create_audit()
    add_column("penstock_operation", sa.Column("tenant", Key(64)))
    create_index("ix_penstock_operation_tenant", "penstock_operation", ["tenant", "number"])


def _create_api_key() -> None:
    op.create_table(
        "penstock_api_key",
        sa.Column("id", Key(12), nullable=False),
        sa.Column("digest", Key(64), nullable=False),
        sa.Column("name", Key(200), nullable=False),
        sa.Column("role", Key(16), nullable=False),
        sa.Column("operations", Json),
        sa.Column("tenant", Key(64), nullable=False),
        sa.Column("created_by", Key(200), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("expires_at", sa.BigInteger()),
        sa.Column("revoked_at", sa.BigInteger()),
        sa.Column("revoked_by", Key(200)),
        sa.Column("last_used_at", sa.BigInteger()),
        sa.PrimaryKeyConstraint("id"),
        sa.CheckConstraint("role IN ('read', 'operate', 'admin')", name=op.f("ck_penstock_api_key_role_known")),
        sa.CheckConstraint("(revoked_at IS NULL) = (revoked_by IS NULL)", name=op.f("ck_penstock_api_key_revoked")),
        if_not_exists=True,
        **table_options(is_numbered=False),
    )
    op.create_index("ix_penstock_api_key_created", "penstock_api_key", ["created_at", "id"], if_not_exists=True)


def _create_audit() -> None:
    op.create_table(
        "penstock_audit_entry",
        sa.Column("tenant", Key(64), nullable=False),
        sa.Column("sequence", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.Column("actor", Key(200), nullable=False),
        sa.Column("action", Key(64), nullable=False),
        sa.Column("subject", Key(64), nullable=False),
        sa.Column("details", Json),
        sa.Column("salt", Key(32)),
        sa.Column("details_digest", Key(64)),
        sa.Column("digest", Key(64), nullable=False),
        sa.PrimaryKeyConstraint("tenant", "sequence"),
        if_not_exists=True,
        **table_options(is_numbered=False),
    )
    op.create_index(
        "ix_penstock_audit_entry_subject",
        "penstock_audit_entry",
        ["tenant", "subject", "sequence"],
        if_not_exists=True,
    )
    op.create_table(
        "penstock_audit_chain",
        sa.Column("tenant", Key(64), nullable=False),
        sa.Column("sequence", sa.BigInteger(), nullable=False),
        sa.Column("digest", Key(64), nullable=False),
        sa.PrimaryKeyConstraint("tenant"),
        if_not_exists=True,
        **table_options(is_numbered=False),
    )
