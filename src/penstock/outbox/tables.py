"""Who is told of events, and what was and is to be told to them."""

from __future__ import annotations

from sqlalchemy import BigInteger, CheckConstraint, Column, Index, Integer, UniqueConstraint

from penstock.db.schema import Serial, table
from penstock.db.types import Json, Key, LongText
from penstock.outbox.states import DELIVERY, SUBSCRIPTION_STATES

__all__ = ["deliveries", "subscriptions"]


def _one_of(states: tuple[str, ...]) -> str:
    return f"state IN ({', '.join(repr(state) for state in states)})"


subscriptions = table(
    "penstock_subscription",
    Column("id", Key(120), primary_key=True),
    Column("tenant", Key(64), nullable=False),
    Column("channel", Key(12), nullable=False),
    Column("url", LongText, nullable=False),  # as it is shown
    Column("encrypted", LongText),  # the URL as it is called, and the secrets
    Column("types", Json, nullable=False),
    Column("operation", Key(200)),  # only events of operations of this name
    Column("subject", Key(64)),  # only events of this one
    Column("state", Key(12), nullable=False),
    Column("reason", LongText),  # why it is disabled
    Column("since", BigInteger, nullable=False),  # the number of the last event that it is not told
    Column("not_before", BigInteger),  # the receiver asked for a pause until then
    Column("created_at", BigInteger, nullable=False),
    Column("created_by", Key(200), nullable=False),
    Column("modified_at", BigInteger, nullable=False),
    CheckConstraint(_one_of(SUBSCRIPTION_STATES), name="state_known"),
    Index("ix_penstock_subscription_state", "state", "since"),
    Index("ix_penstock_subscription_subject", "subject"),
)

deliveries = table(
    "penstock_delivery",
    Column("number", Serial, primary_key=True, autoincrement=True),
    Column("id", Key(36), nullable=False),
    Column("tenant", Key(64), nullable=False),
    Column("subscription", Key(120), nullable=False),
    Column("event_id", Key(120), nullable=False),
    Column("type", Key(200), nullable=False),
    Column("subject", Key(64), nullable=False),
    Column("body", Json, nullable=False),
    Column("state", Key(12), nullable=False),
    Column("attempts", Integer, nullable=False),
    Column("attempts_max", Integer, nullable=False),
    Column("due_at", BigInteger),  # when it may be sent, or again; null once settled
    Column("claim", Key(36)),  # whose attempt is under way
    Column("log", Json),  # the last attempts
    Column("created_at", BigInteger, nullable=False),
    Column("modified_at", BigInteger, nullable=False),
    UniqueConstraint("id", name="uq_penstock_delivery_id"),
    UniqueConstraint("subscription", "event_id", name="uq_penstock_delivery_event"),
    CheckConstraint(_one_of(DELIVERY.states), name="state_known"),
    CheckConstraint("(state IN ('Pending', 'Delivered')) = (due_at IS NOT NULL)", name="due_while_open"),
    Index("ix_penstock_delivery_due", "due_at"),
    Index("ix_penstock_delivery_order", "subscription", "subject", "number"),
    Index("ix_penstock_delivery_subject", "subject"),
    Index("ix_penstock_delivery_state", "tenant", "state", "number"),
    Index("ix_penstock_delivery_modified", "modified_at"),
)
