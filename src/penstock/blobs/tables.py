"""The records of blobs. Instants are microseconds since 1970 on the database's clock."""

from __future__ import annotations

from sqlalchemy import BigInteger, CheckConstraint, Column, Index, SmallInteger

from penstock.blobs.states import BLOB
from penstock.db.schema import table
from penstock.db.types import Key, LongText

__all__ = ["OWNER_CHARS", "TENANT_CHARS", "holds", "references", "rows"]

TENANT_CHARS = 64
OWNER_CHARS = 200

rows = table(
    "penstock_blob",
    Column("id", Key(36), primary_key=True),
    Column("tenant", Key(TENANT_CHARS), nullable=False),
    Column("state", Key(32), nullable=False),
    Column("revision", BigInteger, nullable=False),
    Column("file_name", Key(255), nullable=False),
    Column("content_type", Key(100), nullable=False),
    Column("bytes_max", BigInteger),
    Column("expected_bytes", BigInteger),
    Column("expected_sha256", Key(64)),
    Column("size_bytes", BigInteger),
    Column("sha256", Key(64)),
    Column("storage_key", Key(255)),
    Column("storage_version", Key(200)),
    Column("has_bytes", SmallInteger, nullable=False),
    Column("is_temporary", SmallInteger, nullable=False),
    Column("created_by", Key(200), nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Column("expires_at", BigInteger),
    Column("lease_until", BigInteger),
    Column("validated_at", BigInteger),
    Column("rejected_at", BigInteger),
    Column("rejection_code", Key(40)),
    Column("rejection_reason", LongText),
    Column("deleted_at", BigInteger),
    Column("deletion_reason", LongText),
    CheckConstraint(f"state IN ({', '.join(map(repr, BLOB.states))})", name="state_known"),
    CheckConstraint("state <> 'Valid' OR (storage_key IS NOT NULL AND sha256 IS NOT NULL)", name="valid_is_stored"),
    CheckConstraint("(state = 'Deleted') = (deleted_at IS NOT NULL)", name="deleted_at_known"),
    CheckConstraint("(deleted_at IS NULL) = (deletion_reason IS NULL)", name="deletion_explained"),
    Index("ix_penstock_blob_tenant", "tenant", "id"),
    Index("ix_penstock_blob_state", "tenant", "state", "id"),
    Index("ix_penstock_blob_expires", "expires_at"),
    Index("ix_penstock_blob_bytes", "state", "has_bytes"),
)

references = table(
    "penstock_blob_reference",
    Column("blob", Key(36), primary_key=True),
    Column("owner", Key(OWNER_CHARS), primary_key=True),
    Column("since", BigInteger, nullable=False),
    Index("ix_penstock_blob_reference_owner", "owner"),
)

holds = table(
    "penstock_blob_hold",
    Column("blob", Key(36), primary_key=True),
    Column("name", Key(100), primary_key=True),
    Column("reason", LongText, nullable=False),
    Column("placed_by", Key(200), nullable=False),
    Column("placed_at", BigInteger, nullable=False),
)
