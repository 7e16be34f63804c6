"""Limits that workers share, a clock that processes share, events numbered as they are read, and what holds work up."""

from __future__ import annotations

from functools import partial

import sqlalchemy as sa
from alembic import op

from penstock.db.changes import add_column, create_index, patiently
from penstock.db.schema import table_options
from penstock.db.types import Json, Key, LongText

revision = "0004"
down_revision = "0003"

PART_ROWS = 10_000


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
    add_column("penstock_operation", sa.Column("trouble", LongText))
    add_column("penstock_transition", sa.Column("position", sa.BigInteger()))
    _number_transitions()
    create_index("ix_penstock_transition_position", "penstock_transition", ["position"])


def _number_transitions() -> None:
    """In parts, so that no transaction is long; what is added meanwhile gets its number when it is first read."""
    bounds = sa.text("SELECT MIN(sequence), MAX(sequence) FROM penstock_transition WHERE position IS NULL")
    part = sa.text(
        "UPDATE penstock_transition SET position = sequence"
        " WHERE position IS NULL AND sequence BETWEEN :first AND :last"
    )
    least, most = op.get_bind().execute(bounds).one()
    for first in range(least or 0, (most or -1) + 1, PART_ROWS):
        patiently(partial(op.get_bind().execute, part, {"first": first, "last": first + PART_ROWS - 1}))
