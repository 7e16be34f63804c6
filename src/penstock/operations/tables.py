"""The records of operations. Instants are microseconds since 1970 on the database's clock.

No foreign key points to `operation`: a child row would lock it after its chunk and deadlock with the rule that
the operation comes first. Inside, an operation is known by its `number`; `id` is what users see.
"""

from __future__ import annotations

from sqlalchemy import BigInteger, CheckConstraint, Column, Index, Integer, SmallInteger, UniqueConstraint

from penstock.db.schema import Serial, table
from penstock.db.types import Bytes, Json, Key, LongText
from penstock.machine import Machine
from penstock.operations.counts import Counts
from penstock.operations.states import OPERATION, ROW_STEP

__all__ = [
    "REMOVED",
    "chunk_rows",
    "chunks",
    "history",
    "limit_shares",
    "operations",
    "requests",
    "row_records",
    "signals",
    "workers",
]

REMOVED = "Removed"  # the `stop_outcome` of an operation whose removal has begun


def _one_of(column: str, machine: Machine) -> CheckConstraint:
    names = ", ".join(f"'{state}'" for state in machine.states)
    return CheckConstraint(f"{column} IN ({names})", name=f"{column}_known")


workers = table(
    "penstock_worker",
    Column("id", Key(40), primary_key=True),
    Column("lease_until", BigInteger, nullable=False),
    Column("started_at", BigInteger, nullable=False),
    Column("host", Key(255), nullable=False),
    Column("process", Integer, nullable=False),
    Column("code", Json),  # of each operation it has the code of: version and steps; null if it does not say
)

operations = table(
    "penstock_operation",
    Column("number", Serial, primary_key=True, autoincrement=True),
    Column("id", Key(36), nullable=False, unique=True),
    Column("name", Key(200), nullable=False),
    Column("state", Key(32), nullable=False),
    Column("previous_state", Key(32)),
    Column("revision", BigInteger, nullable=False, default=0),
    Column("reading", Key(16), nullable=False),  # open, complete, abandoned
    Column("open_chunks", Integer, nullable=False),
    Column("raw_chunks", Integer, nullable=False, default=0),
    Column("generation", Integer, nullable=False, default=0),
    Column("retry_count", Integer, nullable=False, default=0),
    Column("stop_outcome", Key(32)),  # Cancelled or Failed; Removed once its removal has begun
    Column("error", LongText),
    Column("owner", Key(40)),
    Column("fence", BigInteger, nullable=False, default=0),
    Column("position", Key(64)),
    Column("crashes", Integer, nullable=False, default=0),  # readers that died over the suspect rows
    Column("suspect_row", BigInteger),  # the first of the rows that are being checked, where readers have died
    Column("suspect_until", BigInteger),  # behind this row no reader has died
    Column("rows_read", BigInteger, nullable=False, default=0),
    Column("total_rows", BigInteger, nullable=False, default=0),
    Column("columns", Json),
    Column("file_name", Key(255), nullable=False),
    Column("file_format", Key(32), nullable=False),
    Column("file_key", Key(255), nullable=False),
    Column("file_bytes", BigInteger, nullable=False),
    Column("file_sha256", Key(64), nullable=False),
    Column("metadata", Json),  # as it is shown: secrets are masked
    Column("plan", Json, nullable=False),
    Column("created_by", Key(200), nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Column("started_at", BigInteger),
    Column("finished_at", BigInteger),
    Column("trouble", LongText),  # why the worker that tried last could not go on; others may
    Column("encrypted_metadata", LongText),  # the whole of it, if there are secrets in it
    Column("tenant", Key(64)),  # null for the one without a name
    Column("keep", Json),  # how long what is kept of it, in seconds, where it has a policy of its own
    Column("pruned", Json),  # what was removed of it
    Column("hold", LongText),  # why nothing of it is removed
    Column("blob", Key(36)),  # its file; null when it was stored before there were blobs
    Column("file_version", Key(200)),  # what the storage said of these very bytes
    _one_of("state", OPERATION),
    CheckConstraint("reading IN ('open', 'complete', 'abandoned')", name="reading_known"),
    CheckConstraint("open_chunks >= 0", name="open_chunks_counted"),
    Index("ix_penstock_operation_state", "state", "number"),
    Index("ix_penstock_operation_name", "name", "number"),
    Index("ix_penstock_operation_tenant", "tenant", "number"),
)

chunks = table(
    "penstock_chunk",
    Column("id", Serial, primary_key=True, autoincrement=True),
    Column("operation", BigInteger, nullable=False),
    Column("first_row", BigInteger, nullable=False),
    Column("row_count", Integer, nullable=False),
    Column("source_offset", BigInteger, nullable=False),  # where its rows begin in the file
    Column("is_raw", SmallInteger, nullable=False, default=0),
    Column("is_open", SmallInteger, nullable=False),
    Column("owner", Key(40)),
    Column("fence", BigInteger, nullable=False, default=0),
    Column("version", BigInteger, nullable=False, default=0),
    Column("due_at", BigInteger, nullable=False),
    # Workers of earlier releases, which may run beside this one, know the column by its first name.
    Column("mail", BigInteger, key="message_count", nullable=False, default=0),
    *(Column(name, Integer, nullable=False, default=0) for name in Counts.__dataclass_fields__),
    Column("ledger", Bytes, nullable=False),
    # For progress alone, of a chunk that is open; null before the first write.
    Column("steps_done", BigInteger),
    UniqueConstraint("operation", "first_row", name="uq_penstock_chunk_first_row"),
    Index("ix_penstock_chunk_open", "is_open", "due_at"),
    Index("ix_penstock_chunk_owner", "owner"),
)

# Apart from the chunk, so that no flush, wake or claim rewrites the rows.
chunk_rows = table(
    "penstock_chunk_rows",
    Column("chunk", BigInteger, primary_key=True, autoincrement=False),
    # Before the data: SQLite reads all columns before the one it needs. Null when the rows have no key.
    Column("key_marks", Bytes),
    Column("data", Bytes, nullable=False),
)

row_records = table(
    "penstock_row_record",
    Column("chunk", BigInteger, primary_key=True, autoincrement=False),
    Column("row", BigInteger, primary_key=True, autoincrement=False),
    Column("step", SmallInteger, primary_key=True, autoincrement=False),  # -1 is validation
    Column("operation", BigInteger, nullable=False),
    Column("state", Key(32), nullable=False),
    Column("generation", Integer, nullable=False, default=0),
    Column("attempt", Integer, nullable=False, default=0),
    Column("errors", Integer, nullable=False, default=0),  # attempts that spent a retry; of a wait, checks that raised
    Column("row_key", Key(200)),
    Column("signal_key", Key(500)),
    Column("since", BigInteger),  # when the retry or edit that began this generation was accepted
    Column("put_off_since", BigInteger),  # when RetryLater was first raised
    Column("due_at", BigInteger),
    Column("deadline", BigInteger),
    Column("error_type", Key(20)),
    Column("error_group", Key(32)),
    Column("message", LongText),
    Column("faults", Json),
    Column("data", Json),  # of an edited row
    Column("at", BigInteger, nullable=False),  # when this state was reached
    Column("output", Bytes),  # of a step, where the ledger of its chunk has no room for it
    _one_of("state", ROW_STEP),
    Index("ix_penstock_row_record_signal", "operation", "signal_key"),
    Index("ix_penstock_row_record_error", "operation", "error_type", "error_group"),
    # The key first: a planner that knows nothing yet must not take it for an index of the operation's records.
    Index("ix_penstock_row_record_key", "row_key", "operation"),
)

history = table(
    "penstock_history",
    Column("id", Serial, primary_key=True, autoincrement=True),
    Column("operation", BigInteger, nullable=False),
    Column("row", BigInteger, nullable=False),
    Column("step", SmallInteger, nullable=False),
    Column("generation", Integer, nullable=False),
    Column("attempt", Integer, nullable=False),
    Column("event", Key(32), nullable=False),
    Column("error_type", Key(20)),
    Column("message", LongText),
    Column("data", Json),
    Column("at", BigInteger, nullable=False),
    Index("ix_penstock_history_row", "operation", "row", "id"),
)

# Signals for waiting rows. A signal is accepted when it is stored here.
signals = table(
    "penstock_signal",
    Column("id", Serial, primary_key=True, autoincrement=True),
    Column("token", Key(36), nullable=False, unique=True),  # made before the transaction, so that a repeat is refused
    Column("operation", BigInteger, nullable=False),
    Column("key", Key(500), nullable=False),
    Column("row", BigInteger),  # when only this row is meant
    Column("outcome", Key(8), nullable=False),  # ok, failed
    Column("payload", Json),
    Column("message", LongText),
    Column("actor", Key(200), nullable=False),
    Column("accepted_at", BigInteger, nullable=False),
    Column("dedupe_id", Key(200)),
    Column("consumed_row", BigInteger),
    Column("consumed_step", SmallInteger),
    Column("consumed_generation", Integer),
    Column("consumed_at", BigInteger),
    UniqueConstraint("operation", "dedupe_id", name="uq_penstock_signal_dedupe"),
    UniqueConstraint(
        "operation", "consumed_row", "consumed_step", "consumed_generation", name="uq_penstock_signal_consumed"
    ),
    Index("ix_penstock_signal_key", "operation", "key", "id"),
)

# Requests to run failed rows again, with or without new data; applied by the chunk's owner.
requests = table(
    "penstock_request",
    Column("id", Serial, primary_key=True, autoincrement=True),
    Column("token", Key(36), nullable=False),
    Column("operation", BigInteger, nullable=False),
    Column("chunk", BigInteger, nullable=False),
    Column("row", BigInteger),  # null: every eligible row of the chunk
    Column("kind", Key(8), nullable=False),  # retry, edit
    Column("generation", Integer, nullable=False),  # of the row when it was asked
    Column("confirms_doubt", SmallInteger, nullable=False, default=0),
    Column("data", Json),
    Column("actor", Key(200), nullable=False),
    Column("accepted_at", BigInteger, nullable=False),
    Column("outcome", LongText),
    UniqueConstraint("operation", "row", "generation", name="uq_penstock_request_row"),
    Index("ix_penstock_request_chunk", "chunk", "id"),
    Index("ix_penstock_request_token", "token"),
)

# Which part of an operation's limits (calls at once, calls a second) each worker holds.
limit_shares = table(
    "penstock_limit_share",
    Column("operation", BigInteger, primary_key=True, autoincrement=False),
    Column("worker", Key(40), primary_key=True),
    Column("joined_at", BigInteger, nullable=False),
    Column("units", Json, nullable=False),
)
