"""The records of access. Instants are microseconds since 1970 on the database's clock."""

from __future__ import annotations

from sqlalchemy import BigInteger, CheckConstraint, Column, Index

from penstock.access.key_text import ID_CHARS
from penstock.access.model import NAME_CHARS, ROLES, TENANT_CHARS
from penstock.db.schema import table
from penstock.db.types import Json, Key

__all__ = ["api_keys"]

api_keys = table(
    "penstock_api_key",
    Column("id", Key(ID_CHARS), primary_key=True),  # the part of the key by which it is found
    Column("digest", Key(64), nullable=False),
    Column("name", Key(NAME_CHARS), nullable=False),
    Column("role", Key(16), nullable=False),
    Column("operations", Json),  # names, folded; null for all
    Column("tenant", Key(TENANT_CHARS), nullable=False),
    Column("created_by", Key(NAME_CHARS), nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Column("expires_at", BigInteger),
    Column("revoked_at", BigInteger),
    Column("revoked_by", Key(NAME_CHARS)),
    Column("last_used_at", BigInteger),  # to within some minutes
    CheckConstraint("role IN ({})".format(", ".join(f"'{role}'" for role in ROLES)), name="role_known"),
    CheckConstraint("(revoked_at IS NULL) = (revoked_by IS NULL)", name="revoked"),
    Index("ix_penstock_api_key_created", "created_at", "id"),
)
