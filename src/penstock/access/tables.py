"""The records of access. Instants are microseconds since 1970 on the database's clock."""

from __future__ import annotations

from sqlalchemy import BigInteger, CheckConstraint, Column, Index

from penstock.access.key_text import ID_CHARS
from penstock.access.model import NAME_CHARS, ROLES, TENANT_CHARS
from penstock.db.schema import table
from penstock.db.types import Json, Key

__all__ = ["SUBJECT_CHARS", "api_keys", "audit_chains", "audit_entries"]

SUBJECT_CHARS = 64

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

# What people and programs did. Each entry's digest covers the one before it, so none can be changed, removed or moved.
audit_entries = table(
    "penstock_audit_entry",
    Column("tenant", Key(TENANT_CHARS), primary_key=True),
    Column("sequence", BigInteger, primary_key=True, autoincrement=False),  # 1, 2, … within the tenant
    Column("at", BigInteger, nullable=False),
    Column("actor", Key(NAME_CHARS), nullable=False),
    Column("action", Key(64), nullable=False),
    Column("subject", Key(SUBJECT_CHARS), nullable=False),  # a long one is shortened
    Column("details", Json),  # null when there are none, or once they were erased
    Column("salt", Key(32)),  # goes with them, so that nobody can guess what they were
    Column("details_digest", Key(64)),
    Column("digest", Key(64), nullable=False),
    Index("ix_penstock_audit_entry_subject", "tenant", "subject", "sequence"),
)

# The end of each tenant's chain; locked by whoever adds to it, after everything else.
audit_chains = table(
    "penstock_audit_chain",
    Column("tenant", Key(TENANT_CHARS), primary_key=True),
    Column("sequence", BigInteger, nullable=False),
    Column("digest", Key(64), nullable=False),
)
