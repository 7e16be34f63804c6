"""Blobs, and which of them is the file of an operation."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from penstock.db.changes import add_column
from penstock.db.schema import table_options
from penstock.db.types import Key, LongText

revision = "0009"
down_revision = "0008"


def upgrade() -> None:
    add_column("penstock_operation", sa.Column("blob", Key(36)))
    add_column("penstock_operation", sa.Column("file_version", Key(200)))
    _create_blob()
    op.create_table(
        "penstock_blob_reference",
        sa.Column("blob", Key(36), nullable=False),
        sa.Column("owner", Key(200), nullable=False),
        sa.Column("since", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("blob", "owner"),
        if_not_exists=True,
        **table_options(is_numbered=False),
    )
    op.create_index("ix_penstock_blob_reference_owner", "penstock_blob_reference", ["owner"], if_not_exists=True)
    op.create_table(
        "penstock_blob_hold",
        sa.Column("blob", Key(36), nullable=False),
        sa.Column("name", Key(100), nullable=False),
        sa.Column("reason", LongText, nullable=False),
        sa.Column("placed_by", Key(200), nullable=False),
        sa.Column("placed_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("blob", "name"),
        if_not_exists=True,
        **table_options(is_numbered=False),
    )


def _create_blob() -> None:
    op.create_table(
        "penstock_blob",
        sa.Column("id", Key(36), nullable=False),
        sa.Column("tenant", Key(64), nullable=False),
        sa.Column("state", Key(32), nullable=False),
        sa.Column("revision", sa.BigInteger(), nullable=False),
        sa.Column("file_name", Key(255), nullable=False),
        sa.Column("content_type", Key(100), nullable=False),
        sa.Column("bytes_max", sa.BigInteger()),
        sa.Column("expected_bytes", sa.BigInteger()),
        sa.Column("expected_sha256", Key(64)),
        sa.Column("size_bytes", sa.BigInteger()),
        sa.Column("sha256", Key(64)),
        sa.Column("storage_key", Key(255)),
        sa.Column("storage_version", Key(200)),
        sa.Column("has_bytes", sa.SmallInteger(), nullable=False),
        sa.Column("is_temporary", sa.SmallInteger(), nullable=False),
        sa.Column("created_by", Key(200), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("expires_at", sa.BigInteger()),
        sa.Column("lease_until", sa.BigInteger()),
        sa.Column("validated_at", sa.BigInteger()),
        sa.Column("rejected_at", sa.BigInteger()),
        sa.Column("rejection_code", Key(40)),
        sa.Column("rejection_reason", LongText),
        sa.Column("deleted_at", sa.BigInteger()),
        sa.Column("deletion_reason", LongText),
        sa.PrimaryKeyConstraint("id"),
        sa.CheckConstraint(
            "state IN ('Pending', 'Uploading', 'Rejected', 'Valid', 'Deleted')",
            name=op.f("ck_penstock_blob_state_known"),
        ),
        sa.CheckConstraint(
            "state <> 'Valid' OR (storage_key IS NOT NULL AND sha256 IS NOT NULL)",
            name=op.f("ck_penstock_blob_valid_is_stored"),
        ),
        sa.CheckConstraint(
            "(state = 'Deleted') = (deleted_at IS NOT NULL)", name=op.f("ck_penstock_blob_deleted_at_known")
        ),
        sa.CheckConstraint(
            "(deleted_at IS NULL) = (deletion_reason IS NULL)", name=op.f("ck_penstock_blob_deletion_explained")
        ),
        if_not_exists=True,
        **table_options(is_numbered=False),
    )
    # Nobody uses the table yet, so its indexes need not be built beside others.
    for name, columns in (
        ("tenant", ["tenant", "id"]),
        ("state", ["tenant", "state", "id"]),
        ("expires", ["expires_at"]),
        ("bytes", ["state", "has_bytes"]),
    ):
        op.create_index(f"ix_penstock_blob_{name}", "penstock_blob", columns, if_not_exists=True)
