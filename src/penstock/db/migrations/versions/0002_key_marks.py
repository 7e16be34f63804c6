"""Marks of the rows' keys beside their data; chunks that are there already have none."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from penstock.db.changes import add_column, patiently
from penstock.db.types import Bytes

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    database = op.get_bind().dialect.name
    if database == "sqlite":
        _rebuild()
        return
    add_column("penstock_chunk_rows", sa.Column("key_marks", Bytes))
    if database == "postgresql":
        # A search passes the marks of all chunks; apart from the row, they would be fetched piece by piece.
        patiently(lambda: op.execute("ALTER TABLE penstock_chunk_rows ALTER COLUMN key_marks SET STORAGE MAIN"))


def _rebuild() -> None:
    """SQLite reads all that stands before a column, and a new one would stand behind the data."""
    op.rename_table("penstock_chunk_rows", "penstock_chunk_rows_before")
    op.create_table(
        "penstock_chunk_rows",
        sa.Column("chunk", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("key_marks", Bytes),
        sa.Column("data", Bytes, nullable=False),
        sa.PrimaryKeyConstraint("chunk"),
        sqlite_strict=True,
    )
    op.execute("INSERT INTO penstock_chunk_rows (chunk, data) SELECT chunk, data FROM penstock_chunk_rows_before")
    op.drop_table("penstock_chunk_rows_before")
