"""The idempotency keys that are in use. A key without a row is Absent."""

from __future__ import annotations

from sqlalchemy import BigInteger, CheckConstraint, Column, Index, Integer

from penstock.db.schema import table
from penstock.db.types import Bytes, Key
from penstock.idempotency.model import KEY_CHARACTERS_MAX, LABEL_CHARACTERS_MAX
from penstock.idempotency.states import IDEMPOTENCY_KEY

__all__ = ["idempotency_keys"]

STORED = [state for state in IDEMPOTENCY_KEY.states if state != IDEMPOTENCY_KEY.initial]

idempotency_keys = table(
    "penstock_idempotency_key",
    Column("id", Key(64), primary_key=True),
    Column("scope", Key(64), nullable=False),
    Column("key", Key(KEY_CHARACTERS_MAX), nullable=False),
    Column("label", Key(LABEL_CHARACTERS_MAX), nullable=False),
    Column("fingerprint", Key(64), nullable=False),
    Column("state", Key(32), nullable=False),
    Column("owner", Key(32), nullable=False),  # made anew for each claim, so it also tells claims apart
    Column("attempt", Integer, nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Column("lease_until", BigInteger, nullable=False),
    Column("expires_at", BigInteger, nullable=False),
    Column("finished_at", BigInteger),
    Column("answer", Bytes),  # null in a Completed key: it was erased
    CheckConstraint(f"state IN ({', '.join(map(repr, STORED))})", name="state_known"),
    CheckConstraint("(state = 'Completed') = (finished_at IS NOT NULL)", name="finished"),
    Index("ix_penstock_idempotency_key_expires", "expires_at"),
    Index("ix_penstock_idempotency_key_scope", "scope"),
)
