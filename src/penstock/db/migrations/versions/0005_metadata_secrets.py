"""Secrets of metadata, encrypted."""

from __future__ import annotations

import sqlalchemy as sa

from penstock.db.changes import add_column
from penstock.db.types import LongText

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    add_column("penstock_operation", sa.Column("encrypted_metadata", LongText))
