"""Lifecycles: definitions, versions, instances, their log, deliveries and timers."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from penstock.db.schema import table_options
from penstock.db.types import Bytes, Json, Key, LongText

revision = "0008"
down_revision = "0007"


def upgrade() -> None:
    _create_category()
    _create_definition()
    _create_version()
    _create_state()
    _create_event()
    _create_transition()
    _create_instance()
    _create_log()
    _create_checkpoint()
    _create_consumer()
    _create_delivery()
    _create_timer()


def _create_category() -> None:
    op.create_table(
        "penstock_lifecycle_category",
        sa.Column("id", sa.BigInteger(), autoincrement=True, nullable=False),
        sa.Column("tenant", Key(64), nullable=False),
        sa.Column("name", Key(200), nullable=False),
        sa.Column("name_key", Key(300), nullable=False),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("tenant", "name_key", name=op.f("uq_penstock_lifecycle_category_name")),
        if_not_exists=True,
        **table_options(is_numbered=True),
    )


def _create_definition() -> None:
    op.create_table(
        "penstock_lifecycle_definition",
        sa.Column("id", sa.BigInteger(), autoincrement=True, nullable=False),
        sa.Column("tenant", Key(64), nullable=False),
        sa.Column("name", Key(200), nullable=False),
        sa.Column("name_key", Key(300), nullable=False),
        sa.Column("environment", sa.Integer(), nullable=False),
        sa.Column("description", LongText),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("modified_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("tenant", "name_key", "environment", name=op.f("uq_penstock_lifecycle_definition_name")),
        if_not_exists=True,
        **table_options(is_numbered=True),
    )


def _create_version() -> None:
    op.create_table(
        "penstock_lifecycle_version",
        sa.Column("id", sa.BigInteger(), autoincrement=True, nullable=False),
        sa.Column("tenant", Key(64), nullable=False),
        sa.Column("definition", sa.BigInteger(), nullable=False),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("label", Key(40)),
        sa.Column("status", Key(12), nullable=False),
        sa.Column("edits", sa.Integer(), nullable=False),
        sa.Column("digest", Key(64), nullable=False),
        sa.Column("document", Bytes, nullable=False),
        sa.Column("created_by", Key(200), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("published_at", sa.BigInteger()),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("tenant", "definition", "number", name=op.f("uq_penstock_lifecycle_version_number")),
        sa.CheckConstraint("status IN ('Draft', 'Published')", name=op.f("ck_penstock_lifecycle_version_status_known")),
        if_not_exists=True,
        **table_options(is_numbered=True),
    )


def _create_state() -> None:
    op.create_table(
        "penstock_lifecycle_state",
        sa.Column("id", sa.BigInteger(), autoincrement=True, nullable=False),
        sa.Column("tenant", Key(64), nullable=False),
        sa.Column("version", sa.BigInteger(), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("name", Key(200), nullable=False),
        sa.Column("name_key", Key(300), nullable=False),
        sa.Column("flags", sa.Integer(), nullable=False),
        sa.Column("category", sa.BigInteger()),
        sa.Column("timeout_us", sa.BigInteger()),
        sa.Column("timeout_event", Key(200)),
        sa.Column("timeout_repeats", sa.SmallInteger()),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("tenant", "version", "name_key", name=op.f("uq_penstock_lifecycle_state_name")),
        if_not_exists=True,
        **table_options(is_numbered=True),
    )


def _create_event() -> None:
    op.create_table(
        "penstock_lifecycle_event",
        sa.Column("id", sa.BigInteger(), autoincrement=True, nullable=False),
        sa.Column("tenant", Key(64), nullable=False),
        sa.Column("version", sa.BigInteger(), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("name", Key(200), nullable=False),
        sa.Column("name_key", Key(300), nullable=False),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("tenant", "version", "name_key", name=op.f("uq_penstock_lifecycle_event_name")),
        if_not_exists=True,
        **table_options(is_numbered=True),
    )


def _create_transition() -> None:
    op.create_table(
        "penstock_lifecycle_transition",
        sa.Column("id", sa.BigInteger(), autoincrement=True, nullable=False),
        sa.Column("tenant", Key(64), nullable=False),
        sa.Column("version", sa.BigInteger(), nullable=False),
        sa.Column("position", sa.Integer(), nullable=False),
        sa.Column("source", sa.BigInteger(), nullable=False),
        sa.Column("event", sa.BigInteger(), nullable=False),
        sa.Column("target", sa.BigInteger(), nullable=False),
        sa.Column("guard", Key(200)),
        sa.Column("condition", Json),
        sa.Column("flags", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("tenant", "version", "source", "event", name=op.f("uq_penstock_lifecycle_transition_pair")),
        if_not_exists=True,
        **table_options(is_numbered=True),
    )


def _create_instance() -> None:
    op.create_table(
        "penstock_lifecycle_instance",
        sa.Column("id", sa.BigInteger(), autoincrement=True, nullable=False),
        sa.Column("tenant", Key(64), nullable=False),
        sa.Column("guid", Key(36), nullable=False),
        sa.Column("version", sa.BigInteger(), nullable=False),
        sa.Column("state", sa.BigInteger(), nullable=False),
        sa.Column("last_event", sa.BigInteger()),
        sa.Column("flags", sa.Integer(), nullable=False),
        sa.Column("reference", Key(200)),
        sa.Column("revision", sa.BigInteger(), nullable=False),
        sa.Column("data", Json),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("modified_at", sa.BigInteger(), nullable=False),
        sa.Column("entered_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("tenant", "guid", name=op.f("uq_penstock_lifecycle_instance_guid")),
        sa.UniqueConstraint("tenant", "version", "reference", name=op.f("uq_penstock_lifecycle_instance_reference")),
        if_not_exists=True,
        **table_options(is_numbered=True),
    )
    op.create_index(
        "ix_penstock_lifecycle_instance_event",
        "penstock_lifecycle_instance",
        ["tenant", "last_event", "id"],
        if_not_exists=True,
    )
    op.create_index(
        "ix_penstock_lifecycle_instance_external",
        "penstock_lifecycle_instance",
        ["tenant", "reference"],
        if_not_exists=True,
    )
    op.create_index(
        "ix_penstock_lifecycle_instance_state",
        "penstock_lifecycle_instance",
        ["tenant", "state", "id"],
        if_not_exists=True,
    )
    op.create_index(
        "ix_penstock_lifecycle_instance_version",
        "penstock_lifecycle_instance",
        ["tenant", "version", "id"],
        if_not_exists=True,
    )


def _create_log() -> None:
    op.create_table(
        "penstock_lifecycle_log",
        sa.Column("tenant", Key(64), nullable=False),
        sa.Column("instance", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("sequence", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("kind", Key(16), nullable=False),
        sa.Column("version", sa.BigInteger(), nullable=False),
        sa.Column("source", sa.BigInteger()),
        sa.Column("event", sa.BigInteger()),
        sa.Column("target", sa.BigInteger(), nullable=False),
        sa.Column("instance_flags", sa.Integer(), nullable=False),
        sa.Column("flags", sa.Integer(), nullable=False),
        sa.Column("actor", Key(200), nullable=False),
        sa.Column("cause", LongText),
        sa.Column("correlation", Key(200)),
        sa.Column("request_key", Key(200)),
        sa.Column("metadata", Json),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("tenant", "instance", "sequence"),
        sa.UniqueConstraint("tenant", "instance", "request_key", name=op.f("uq_penstock_lifecycle_log_request")),
        if_not_exists=True,
        **table_options(is_numbered=False),
    )
    op.create_index(
        "ix_penstock_lifecycle_log_at",
        "penstock_lifecycle_log",
        ["tenant", "at", "instance", "sequence"],
        if_not_exists=True,
    )
    op.create_index(
        "ix_penstock_lifecycle_log_pair",
        "penstock_lifecycle_log",
        ["tenant", "source", "target", "at", "instance", "sequence"],
        if_not_exists=True,
    )


def _create_checkpoint() -> None:
    op.create_table(
        "penstock_lifecycle_checkpoint",
        sa.Column("tenant", Key(64), nullable=False),
        sa.Column("instance", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("sequence", sa.BigInteger(), nullable=False),
        sa.Column("version", sa.BigInteger(), nullable=False),
        sa.Column("state", sa.BigInteger(), nullable=False),
        sa.Column("instance_flags", sa.Integer(), nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("tenant", "instance"),
        if_not_exists=True,
        **table_options(is_numbered=False),
    )


def _create_consumer() -> None:
    op.create_table(
        "penstock_lifecycle_consumer",
        sa.Column("tenant", Key(64), nullable=False),
        sa.Column("name", Key(100), nullable=False),
        sa.Column("definition", sa.BigInteger()),
        sa.Column("attempts_max", sa.Integer(), nullable=False),
        sa.Column("retry_after_us", sa.BigInteger(), nullable=False),
        sa.Column("retry_after_us_max", sa.BigInteger(), nullable=False),
        sa.Column("suspends", sa.SmallInteger(), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("tenant", "name"),
        if_not_exists=True,
        **table_options(is_numbered=False),
    )


def _create_delivery() -> None:
    op.create_table(
        "penstock_lifecycle_delivery",
        sa.Column("id", sa.BigInteger(), autoincrement=True, nullable=False),
        sa.Column("tenant", Key(64), nullable=False),
        sa.Column("message_id", Key(200), nullable=False),
        sa.Column("consumer", Key(100), nullable=False),
        sa.Column("instance", sa.BigInteger(), nullable=False),
        sa.Column("sequence", sa.BigInteger(), nullable=False),
        sa.Column("state", Key(12), nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("attempts_max", sa.Integer(), nullable=False),
        sa.Column("due_at", sa.BigInteger()),
        sa.Column("claim", Key(36)),
        sa.Column("error", LongText),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("modified_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("tenant", "message_id", name=op.f("uq_penstock_lifecycle_delivery_message")),
        sa.UniqueConstraint(
            "tenant", "instance", "sequence", "consumer", name=op.f("uq_penstock_lifecycle_delivery_entry")
        ),
        sa.CheckConstraint(
            "state IN ('Pending', 'Delivered', 'Processed', 'Failed', 'Cancelled')",
            name=op.f("ck_penstock_lifecycle_delivery_state_known"),
        ),
        if_not_exists=True,
        **table_options(is_numbered=True),
    )
    op.create_index(
        "ix_penstock_lifecycle_delivery_claim", "penstock_lifecycle_delivery", ["tenant", "claim"], if_not_exists=True
    )
    op.create_index(
        "ix_penstock_lifecycle_delivery_due",
        "penstock_lifecycle_delivery",
        ["tenant", "consumer", "due_at"],
        if_not_exists=True,
    )
    op.create_index(
        "ix_penstock_lifecycle_delivery_state",
        "penstock_lifecycle_delivery",
        ["tenant", "state", "id"],
        if_not_exists=True,
    )


def _create_timer() -> None:
    op.create_table(
        "penstock_lifecycle_timer",
        sa.Column("tenant", Key(64), nullable=False),
        sa.Column("instance", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("sequence", sa.BigInteger(), nullable=False),
        sa.Column("due_at", sa.BigInteger(), nullable=False),
        sa.Column("firings", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("tenant", "instance"),
        if_not_exists=True,
        **table_options(is_numbered=False),
    )
    op.create_index(
        "ix_penstock_lifecycle_timer_due", "penstock_lifecycle_timer", ["tenant", "due_at"], if_not_exists=True
    )
