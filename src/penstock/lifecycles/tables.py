"""The records of lifecycles. Instants are microseconds since 1970 on the database's clock.

Every table has the tenant, every unique key begins with it, and every query names it. Names are stored as written,
with a key beside them that ignores case. Nothing refers by foreign key: a log entry would lock the state it names.
"""

from __future__ import annotations

from sqlalchemy import BigInteger, CheckConstraint, Column, Index, Integer, SmallInteger, UniqueConstraint

from penstock.db.schema import Serial, table
from penstock.db.types import Bytes, Json, Key, LongText
from penstock.outbox.states import DELIVERY

__all__ = [
    "categories",
    "checkpoints",
    "consumers",
    "definitions",
    "deliveries",
    "events",
    "instances",
    "logs",
    "states",
    "timers",
    "transitions",
    "versions",
]

TENANT_CHARS = 64
REFERENCE_CHARS = 200
REQUEST_KEY_CHARS = 200


def _tenant(*, primary_key: bool = False) -> Column[str]:
    return Column("tenant", Key(TENANT_CHARS), nullable=False, primary_key=primary_key)


categories = table(
    "penstock_lifecycle_category",
    Column("id", Serial, primary_key=True, autoincrement=True),
    _tenant(),
    Column("name", Key(200), nullable=False),
    Column("name_key", Key(300), nullable=False),
    UniqueConstraint("tenant", "name_key", name="uq_penstock_lifecycle_category_name"),
)

definitions = table(
    "penstock_lifecycle_definition",
    Column("id", Serial, primary_key=True, autoincrement=True),
    _tenant(),
    Column("name", Key(200), nullable=False),
    Column("name_key", Key(300), nullable=False),
    Column("environment", Integer, nullable=False),
    Column("description", LongText),
    Column("created_at", BigInteger, nullable=False),
    Column("modified_at", BigInteger, nullable=False),
    UniqueConstraint("tenant", "name_key", "environment", name="uq_penstock_lifecycle_definition_name"),
)

versions = table(
    "penstock_lifecycle_version",
    Column("id", Serial, primary_key=True, autoincrement=True),
    _tenant(),
    Column("definition", BigInteger, nullable=False),
    Column("number", Integer, nullable=False),
    Column("label", Key(40)),
    Column("status", Key(12), nullable=False),
    Column("edits", Integer, nullable=False, default=0),
    Column("digest", Key(64), nullable=False),
    Column("document", Bytes, nullable=False),  # as it was given, byte for byte; empty for a draft
    Column("created_by", Key(200), nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Column("published_at", BigInteger),
    UniqueConstraint("tenant", "definition", "number", name="uq_penstock_lifecycle_version_number"),
    CheckConstraint("status IN ('Draft', 'Published')", name="status_known"),
)

states = table(
    "penstock_lifecycle_state",
    Column("id", Serial, primary_key=True, autoincrement=True),
    _tenant(),
    Column("version", BigInteger, nullable=False),
    Column("position", Integer, nullable=False),
    Column("name", Key(200), nullable=False),
    Column("name_key", Key(300), nullable=False),
    Column("flags", Integer, nullable=False),
    Column("category", BigInteger),
    Column("timeout_us", BigInteger),
    Column("timeout_event", Key(200)),
    Column("timeout_repeats", SmallInteger),
    Column("on_entry", Json),
    Column("on_exit", Json),
    UniqueConstraint("tenant", "version", "name_key", name="uq_penstock_lifecycle_state_name"),
)

events = table(
    "penstock_lifecycle_event",
    Column("id", Serial, primary_key=True, autoincrement=True),
    _tenant(),
    Column("version", BigInteger, nullable=False),
    Column("position", Integer, nullable=False),
    Column("name", Key(200), nullable=False),
    Column("name_key", Key(300), nullable=False),
    UniqueConstraint("tenant", "version", "name_key", name="uq_penstock_lifecycle_event_name"),
)

transitions = table(
    "penstock_lifecycle_transition",
    Column("id", Serial, primary_key=True, autoincrement=True),
    _tenant(),
    Column("version", BigInteger, nullable=False),
    Column("position", Integer, nullable=False),
    Column("source", BigInteger, nullable=False),
    Column("event", BigInteger, nullable=False),
    Column("target", BigInteger, nullable=False),
    Column("guard", Key(200)),
    Column("condition", Json),
    Column("flags", Integer, nullable=False),
    UniqueConstraint("tenant", "version", "source", "event", name="uq_penstock_lifecycle_transition_pair"),
)

instances = table(
    "penstock_lifecycle_instance",
    Column("id", Serial, primary_key=True, autoincrement=True),
    _tenant(),
    Column("guid", Key(36), nullable=False),
    Column("version", BigInteger, nullable=False),
    Column("state", BigInteger, nullable=False),
    Column("last_event", BigInteger),
    Column("flags", Integer, nullable=False),
    Column("reference", Key(REFERENCE_CHARS)),
    Column("revision", BigInteger, nullable=False),  # the number of its last log entry
    Column("data", Json),
    Column("created_at", BigInteger, nullable=False),
    Column("modified_at", BigInteger, nullable=False),
    Column("entered_at", BigInteger, nullable=False),  # since when it is in its state
    UniqueConstraint("tenant", "guid", name="uq_penstock_lifecycle_instance_guid"),
    UniqueConstraint("tenant", "version", "reference", name="uq_penstock_lifecycle_instance_reference"),
    Index("ix_penstock_lifecycle_instance_state", "tenant", "state", "id"),
    Index("ix_penstock_lifecycle_instance_version", "tenant", "version", "id"),
    Index("ix_penstock_lifecycle_instance_event", "tenant", "last_event", "id"),
    Index("ix_penstock_lifecycle_instance_external", "tenant", "reference"),
    Index("ix_penstock_lifecycle_instance_flags", "tenant", "flags", "id"),
)

# Append-only: what happened to an instance, numbered from 1 without gaps. Entry n made revision n.
logs = table(
    "penstock_lifecycle_log",
    _tenant(primary_key=True),
    Column("instance", BigInteger, primary_key=True, autoincrement=False),
    Column("sequence", BigInteger, primary_key=True, autoincrement=False),
    Column("kind", Key(16), nullable=False),
    Column("version", BigInteger, nullable=False),
    Column("source", BigInteger),  # null for the entry that starts the instance
    Column("event", BigInteger),
    Column("target", BigInteger, nullable=False),
    Column("instance_flags", Integer, nullable=False),  # as they are after it
    Column("flags", Integer, nullable=False),
    Column("actor", Key(200), nullable=False),
    Column("cause", LongText),
    Column("correlation", Key(200)),
    Column("request_key", Key(REQUEST_KEY_CHARS)),
    Column("metadata", Json),
    Column("at", BigInteger, nullable=False),
    UniqueConstraint("tenant", "instance", "request_key", name="uq_penstock_lifecycle_log_request"),
    Index("ix_penstock_lifecycle_log_pair", "tenant", "source", "target", "at", "instance", "sequence"),
    Index("ix_penstock_lifecycle_log_at", "tenant", "at", "instance", "sequence"),
)

# Where the log of an instance begins once its oldest entries are purged: as the last of them left it.
checkpoints = table(
    "penstock_lifecycle_checkpoint",
    _tenant(primary_key=True),
    Column("instance", BigInteger, primary_key=True, autoincrement=False),
    Column("sequence", BigInteger, nullable=False),
    Column("version", BigInteger, nullable=False),
    Column("state", BigInteger, nullable=False),
    Column("instance_flags", Integer, nullable=False),
    Column("at", BigInteger, nullable=False),
)

consumers = table(
    "penstock_lifecycle_consumer",
    _tenant(primary_key=True),
    Column("name", Key(100), primary_key=True),
    Column("definition", BigInteger),  # null: moves of all of them
    Column("attempts_max", Integer, nullable=False),
    Column("retry_after_us", BigInteger, nullable=False),
    Column("retry_after_us_max", BigInteger, nullable=False),
    Column("suspends", SmallInteger, nullable=False),
    Column("created_at", BigInteger, nullable=False),
)

deliveries = table(
    "penstock_lifecycle_delivery",
    Column("id", Serial, primary_key=True, autoincrement=True),
    _tenant(),
    Column("message_id", Key(200), nullable=False),
    Column("consumer", Key(100), nullable=False),
    Column("instance", BigInteger, nullable=False),
    Column("sequence", BigInteger, nullable=False),
    Column("state", Key(12), nullable=False),
    Column("attempts", Integer, nullable=False),
    Column("attempts_max", Integer, nullable=False),
    Column("due_at", BigInteger),  # when it may be handed over again; null once settled
    Column("claim", Key(36)),  # whose attempt is under way
    Column("error", LongText),
    Column("created_at", BigInteger, nullable=False),
    Column("modified_at", BigInteger, nullable=False),
    UniqueConstraint("tenant", "message_id", name="uq_penstock_lifecycle_delivery_message"),
    UniqueConstraint("tenant", "instance", "sequence", "consumer", name="uq_penstock_lifecycle_delivery_entry"),
    CheckConstraint(f"state IN ({', '.join(repr(state) for state in DELIVERY.states)})", name="state_known"),
    Index("ix_penstock_lifecycle_delivery_due", "tenant", "consumer", "due_at"),
    Index("ix_penstock_lifecycle_delivery_state", "tenant", "state", "id"),
    Index("ix_penstock_lifecycle_delivery_claim", "tenant", "claim"),
)

# At most one for an instance: set when it enters a state that has a timeout, gone when it leaves it.
timers = table(
    "penstock_lifecycle_timer",
    _tenant(primary_key=True),
    Column("instance", BigInteger, primary_key=True, autoincrement=False),
    Column("sequence", BigInteger, nullable=False),  # the log entry that set it
    Column("due_at", BigInteger, nullable=False),
    Column("firings", Integer, nullable=False),  # that were refused
    Index("ix_penstock_lifecycle_timer_due", "tenant", "due_at"),
)
