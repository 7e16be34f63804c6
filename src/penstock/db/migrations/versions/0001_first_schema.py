"""The first schema."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op

from penstock.db.types import Bytes, Json, Key, LongText

revision = "0001"
down_revision = None

# Frozen here: a migration says for ever what it said when it was released.
OPTIONS: dict[str, Any] = {
    "sqlite_strict": True,
    "mariadb_engine": "InnoDB",
    "mariadb_row_format": "DYNAMIC",
    "mariadb_default_charset": "utf8mb4",
    "mariadb_collate": "utf8mb4_nopad_bin",
    "if_not_exists": True,  # MariaDB commits each statement: after a kill, the rest is done again
}


def upgrade() -> None:
    _create_penstock_chunk()
    _create_penstock_chunk_rows()
    _create_penstock_history()
    _create_penstock_operation()
    _create_penstock_request()
    _create_penstock_row_record()
    _create_penstock_signal()
    _create_penstock_transition()
    _create_penstock_worker()


def _create_penstock_chunk() -> None:
    op.create_table(
        "penstock_chunk",
        sa.Column("id", sa.BigInteger(), autoincrement=True, nullable=False),
        sa.Column("operation", sa.BigInteger(), nullable=False),
        sa.Column("first_row", sa.BigInteger(), nullable=False),
        sa.Column("row_count", sa.Integer(), nullable=False),
        sa.Column("source_offset", sa.BigInteger(), nullable=False),
        sa.Column("is_raw", sa.SmallInteger(), nullable=False),
        sa.Column("is_open", sa.SmallInteger(), nullable=False),
        sa.Column("owner", Key(40)),
        sa.Column("fence", sa.BigInteger(), nullable=False),
        sa.Column("version", sa.BigInteger(), nullable=False),
        sa.Column("due_at", sa.BigInteger(), nullable=False),
        sa.Column("mail", sa.BigInteger(), nullable=False),
        sa.Column("succeeded", sa.Integer(), nullable=False),
        sa.Column("invalid", sa.Integer(), nullable=False),
        sa.Column("failed", sa.Integer(), nullable=False),
        sa.Column("timed_out", sa.Integer(), nullable=False),
        sa.Column("cancelled", sa.Integer(), nullable=False),
        sa.Column("waiting", sa.Integer(), nullable=False),
        sa.Column("ledger", Bytes, nullable=False),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("operation", "first_row", name=op.f("uq_penstock_chunk_first_row")),
        sqlite_autoincrement=True,
        **OPTIONS,
    )
    op.create_index("ix_penstock_chunk_open", "penstock_chunk", ["is_open", "due_at"], if_not_exists=True)
    op.create_index("ix_penstock_chunk_owner", "penstock_chunk", ["owner"], if_not_exists=True)


def _create_penstock_chunk_rows() -> None:
    op.create_table(
        "penstock_chunk_rows",
        sa.Column("chunk", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("data", Bytes, nullable=False),
        sa.PrimaryKeyConstraint("chunk"),
        **OPTIONS,
    )


def _create_penstock_history() -> None:
    op.create_table(
        "penstock_history",
        sa.Column("id", sa.BigInteger(), autoincrement=True, nullable=False),
        sa.Column("operation", sa.BigInteger(), nullable=False),
        sa.Column("row", sa.BigInteger(), nullable=False),
        sa.Column("step", sa.SmallInteger(), nullable=False),
        sa.Column("generation", sa.Integer(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("event", Key(32), nullable=False),
        sa.Column("error_type", Key(20)),
        sa.Column("message", LongText),
        sa.Column("data", Json),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
        sqlite_autoincrement=True,
        **OPTIONS,
    )
    op.create_index("ix_penstock_history_row", "penstock_history", ["operation", "row", "id"], if_not_exists=True)


def _create_penstock_operation() -> None:
    op.create_table(
        "penstock_operation",
        sa.Column("number", sa.BigInteger(), autoincrement=True, nullable=False),
        sa.Column("id", Key(36), nullable=False),
        sa.Column("name", Key(200), nullable=False),
        sa.Column("state", Key(32), nullable=False),
        sa.Column("previous_state", Key(32)),
        sa.Column("revision", sa.BigInteger(), nullable=False),
        sa.Column("reading", Key(16), nullable=False),
        sa.Column("open_chunks", sa.Integer(), nullable=False),
        sa.Column("raw_chunks", sa.Integer(), nullable=False),
        sa.Column("generation", sa.Integer(), nullable=False),
        sa.Column("retry_count", sa.Integer(), nullable=False),
        sa.Column("stop_outcome", Key(32)),
        sa.Column("error", LongText),
        sa.Column("owner", Key(40)),
        sa.Column("fence", sa.BigInteger(), nullable=False),
        sa.Column("position", Key(64)),
        sa.Column("crashes", sa.Integer(), nullable=False),
        sa.Column("suspect_row", sa.BigInteger()),
        sa.Column("suspect_until", sa.BigInteger()),
        sa.Column("rows_read", sa.BigInteger(), nullable=False),
        sa.Column("total_rows", sa.BigInteger(), nullable=False),
        sa.Column("columns", Json),
        sa.Column("file_name", Key(255), nullable=False),
        sa.Column("file_format", Key(32), nullable=False),
        sa.Column("file_key", Key(255), nullable=False),
        sa.Column("file_bytes", sa.BigInteger(), nullable=False),
        sa.Column("file_sha256", Key(64), nullable=False),
        sa.Column("metadata", Json),
        sa.Column("plan", Json, nullable=False),
        sa.Column("created_by", Key(200), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("started_at", sa.BigInteger()),
        sa.Column("finished_at", sa.BigInteger()),
        sa.PrimaryKeyConstraint("number"),
        sa.CheckConstraint("open_chunks >= 0", name=op.f("ck_penstock_operation_open_chunks_counted")),
        sa.CheckConstraint(
            "reading IN ('open', 'complete', 'abandoned')", name=op.f("ck_penstock_operation_reading_known")
        ),
        sa.CheckConstraint(
            "state IN ('Pending', 'Validating', 'Cancelled', 'Running', 'Failed', 'Stopping', 'Paused', "
            "'Completed', 'CompletedWithErrors', 'Retrying')",
            name=op.f("ck_penstock_operation_state_known"),
        ),
        sa.UniqueConstraint("id", name=op.f("uq_penstock_operation_id")),
        sqlite_autoincrement=True,
        **OPTIONS,
    )
    op.create_index("ix_penstock_operation_name", "penstock_operation", ["name", "number"], if_not_exists=True)
    op.create_index("ix_penstock_operation_state", "penstock_operation", ["state", "number"], if_not_exists=True)


def _create_penstock_request() -> None:
    op.create_table(
        "penstock_request",
        sa.Column("id", sa.BigInteger(), autoincrement=True, nullable=False),
        sa.Column("token", Key(36), nullable=False),
        sa.Column("operation", sa.BigInteger(), nullable=False),
        sa.Column("chunk", sa.BigInteger(), nullable=False),
        sa.Column("row", sa.BigInteger()),
        sa.Column("kind", Key(8), nullable=False),
        sa.Column("generation", sa.Integer(), nullable=False),
        sa.Column("confirms_doubt", sa.SmallInteger(), nullable=False),
        sa.Column("data", Json),
        sa.Column("actor", Key(200), nullable=False),
        sa.Column("accepted_at", sa.BigInteger(), nullable=False),
        sa.Column("outcome", LongText),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("operation", "row", "generation", name=op.f("uq_penstock_request_row")),
        sqlite_autoincrement=True,
        **OPTIONS,
    )
    op.create_index("ix_penstock_request_chunk", "penstock_request", ["chunk", "id"], if_not_exists=True)
    op.create_index("ix_penstock_request_token", "penstock_request", ["token"], if_not_exists=True)


def _create_penstock_row_record() -> None:
    op.create_table(
        "penstock_row_record",
        sa.Column("chunk", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("row", sa.BigInteger(), autoincrement=False, nullable=False),
        sa.Column("step", sa.SmallInteger(), autoincrement=False, nullable=False),
        sa.Column("operation", sa.BigInteger(), nullable=False),
        sa.Column("state", Key(32), nullable=False),
        sa.Column("generation", sa.Integer(), nullable=False),
        sa.Column("attempt", sa.Integer(), nullable=False),
        sa.Column("errors", sa.Integer(), nullable=False),
        sa.Column("row_key", Key(200)),
        sa.Column("signal_key", Key(500)),
        sa.Column("since", sa.BigInteger()),
        sa.Column("put_off_since", sa.BigInteger()),
        sa.Column("due_at", sa.BigInteger()),
        sa.Column("deadline", sa.BigInteger()),
        sa.Column("error_type", Key(20)),
        sa.Column("error_group", Key(32)),
        sa.Column("message", LongText),
        sa.Column("faults", Json),
        sa.Column("data", Json),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("chunk", "row", "step"),
        sa.CheckConstraint(
            "state IN ('Pending', 'Running', 'Skipped', 'Cancelled', 'Completed', 'Failed', 'TimedOut', "
            "'WaitingForCompletion')",
            name=op.f("ck_penstock_row_record_state_known"),
        ),
        **OPTIONS,
    )
    op.create_index(
        "ix_penstock_row_record_error",
        "penstock_row_record",
        ["operation", "error_type", "error_group"],
        if_not_exists=True,
    )
    op.create_index(
        "ix_penstock_row_record_signal", "penstock_row_record", ["operation", "signal_key"], if_not_exists=True
    )


def _create_penstock_signal() -> None:
    op.create_table(
        "penstock_signal",
        sa.Column("id", sa.BigInteger(), autoincrement=True, nullable=False),
        sa.Column("token", Key(36), nullable=False),
        sa.Column("operation", sa.BigInteger(), nullable=False),
        sa.Column("key", Key(500), nullable=False),
        sa.Column("row", sa.BigInteger()),
        sa.Column("outcome", Key(8), nullable=False),
        sa.Column("payload", Json),
        sa.Column("message", LongText),
        sa.Column("actor", Key(200), nullable=False),
        sa.Column("accepted_at", sa.BigInteger(), nullable=False),
        sa.Column("dedupe_id", Key(200)),
        sa.Column("consumed_row", sa.BigInteger()),
        sa.Column("consumed_step", sa.SmallInteger()),
        sa.Column("consumed_generation", sa.Integer()),
        sa.Column("consumed_at", sa.BigInteger()),
        sa.PrimaryKeyConstraint("id"),
        sa.UniqueConstraint("token", name=op.f("uq_penstock_signal_token")),
        sa.UniqueConstraint("operation", "dedupe_id", name=op.f("uq_penstock_signal_dedupe")),
        sa.UniqueConstraint(
            "operation",
            "consumed_row",
            "consumed_step",
            "consumed_generation",
            name=op.f("uq_penstock_signal_consumed"),
        ),
        sqlite_autoincrement=True,
        **OPTIONS,
    )
    op.create_index("ix_penstock_signal_key", "penstock_signal", ["operation", "key", "id"], if_not_exists=True)


def _create_penstock_transition() -> None:
    op.create_table(
        "penstock_transition",
        sa.Column("sequence", sa.BigInteger(), autoincrement=True, nullable=False),
        sa.Column("machine", Key(40), nullable=False),
        sa.Column("subject", Key(64), nullable=False),
        sa.Column("source", Key(40)),
        sa.Column("event", Key(40), nullable=False),
        sa.Column("target", Key(40), nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.Column("actor", Key(200), nullable=False),
        sa.Column("cause", LongText),
        sa.Column("details", Json),
        sa.PrimaryKeyConstraint("sequence"),
        sqlite_autoincrement=True,
        **OPTIONS,
    )
    op.create_index(
        "ix_penstock_transition_subject", "penstock_transition", ["machine", "subject", "sequence"], if_not_exists=True
    )


def _create_penstock_worker() -> None:
    op.create_table(
        "penstock_worker",
        sa.Column("id", Key(40), nullable=False),
        sa.Column("lease_until", sa.BigInteger(), nullable=False),
        sa.Column("started_at", sa.BigInteger(), nullable=False),
        sa.Column("host", Key(255), nullable=False),
        sa.Column("process", sa.Integer(), nullable=False),
        sa.PrimaryKeyConstraint("id"),
        **OPTIONS,
    )
