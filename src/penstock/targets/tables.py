"""Who uses which quota of a remote at the moment."""

from __future__ import annotations

from sqlalchemy import BigInteger, Column

from penstock.db.schema import table
from penstock.db.types import Key

__all__ = ["quota_members"]

quota_members = table(
    "penstock_quota_member",
    Column("quota", Key(64), primary_key=True),  # a digest of the remote and the source
    Column("member", Key(32), primary_key=True),
    Column("lease_until", BigInteger, nullable=False),
    Column("throttled_until", BigInteger, nullable=False),
)
