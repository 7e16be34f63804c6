"""Subscriptions to events, and deliveries."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from penstock.db.schema import table_options
from penstock.db.types import Json, Key, LongText

revision = "0010"
down_revision = "0009"


def upgrade() -> None:
    op.create_table(
        "penstock_subscription",
        sa.Column("id", Key(120), nullable=False),
        sa.Column("tenant", Key(64), nullable=False),
        sa.Column("channel", Key(12), nullable=False),
        sa.Column("url", LongText, nullable=False),
        sa.Column("encrypted", LongText),
        sa.Column("types", Json, nullable=False),
        sa.Column("operation", Key(200)),
        sa.Column("subject", Key(64)),
        sa.Column("state", Key(12), nullable=False),
        sa.Column("reason", LongText),
        sa.Column("since", sa.BigInteger(), nullable=False),
        sa.Column("not_before", sa.BigInteger()),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("created_by", Key(200), nullable=False),
        sa.Column("modified_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
        sa.CheckConstraint("state IN ('Active', 'Disabled')", name=op.f("ck_penstock_subscription_state_known")),
        if_not_exists=True,
        **table_options(is_numbered=False),
    )
    op.create_table(
        "penstock_delivery",
        sa.Column("number", sa.BigInteger(), autoincrement=True, nullable=False),
        sa.Column("id", Key(36), nullable=False),
        sa.Column("tenant", Key(64), nullable=False),
        sa.Column("subscription", Key(120), nullable=False),
        sa.Column("event_id", Key(120), nullable=False),
        sa.Column("type", Key(200), nullable=False),
        sa.Column("subject", Key(64), nullable=False),
        sa.Column("body", Json, nullable=False),
        sa.Column("state", Key(12), nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("attempts_max", sa.Integer(), nullable=False),
        sa.Column("due_at", sa.BigInteger()),
        sa.Column("claim", Key(36)),
        sa.Column("log", Json),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("modified_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("number"),
        sa.UniqueConstraint("id", name=op.f("uq_penstock_delivery_id")),
        sa.UniqueConstraint("subscription", "event_id", name=op.f("uq_penstock_delivery_event")),
        sa.CheckConstraint(
            "state IN ('Pending', 'Delivered', 'Processed', 'Failed', 'Cancelled')",
            name=op.f("ck_penstock_delivery_state_known"),
        ),
        sa.CheckConstraint(
            "(state IN ('Pending', 'Delivered')) = (due_at IS NOT NULL)",
            name=op.f("ck_penstock_delivery_due_while_open"),
        ),
        if_not_exists=True,
        **table_options(is_numbered=True),
    )
    # Nobody uses the tables yet, so their indexes need not be built beside others.
    for table, name, columns in (
        ("penstock_subscription", "state", ["state", "since"]),
        ("penstock_subscription", "subject", ["subject"]),
        ("penstock_delivery", "due", ["due_at"]),
        ("penstock_delivery", "order", ["subscription", "subject", "number"]),
        ("penstock_delivery", "subject", ["subject"]),
        ("penstock_delivery", "state", ["tenant", "state", "number"]),
        ("penstock_delivery", "modified", ["modified_at"]),
    ):
        op.create_index(f"ix_{table}_{name}", table, columns, if_not_exists=True)
