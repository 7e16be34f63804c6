"""Limits that workers share, a clock that processes share, events numbered as they are read, and what holds work up."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from penstock.db.schema import table_options
from penstock.db.types import Json, Key, LongText

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    op.create_table(
        "penstock_limit_share",
        sa.Column("operation", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("worker", Key(40), nullable=False),
        sa.Column("joined_at", sa.BigInteger(), nullable=False),
        sa.Column("units", Json, nullable=False),
        sa.PrimaryKeyConstraint("operation", "worker"),
        if_not_exists=True,
        **table_options(is_numbered=False),
    )
    op.create_table(
        "penstock_clock",
        sa.Column("boot", Key(64), nullable=False),
        sa.Column("ahead_us", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("boot"),
        if_not_exists=True,
        **table_options(is_numbered=False),
    )
    op.create_table(
        "penstock_counter",
        sa.Column("name", Key(40), nullable=False),
        sa.Column("value", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("name"),
        if_not_exists=True,
        **table_options(is_numbered=False),
    )
    _add_column("penstock_operation", sa.Column("trouble", LongText))
    _add_column("penstock_transition", sa.Column("position", sa.BigInteger()))
    op.execute("UPDATE penstock_transition SET position = sequence WHERE position IS NULL")
    op.create_index("ix_penstock_transition_position", "penstock_transition", ["position"], if_not_exists=True)


def _add_column(table: str, column: sa.Column[object]) -> None:
    # SQLite has no IF NOT EXISTS for columns; there, an upgrade is one transaction.
    is_sqlite = op.get_bind().dialect.name == "sqlite"
    op.add_column(table, column, if_not_exists=None if is_sqlite else True)
