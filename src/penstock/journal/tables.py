"""The one transition log: every move of an operation, blob or delivery, with its actor and cause."""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, Index

from penstock.db.schema import Serial, table
from penstock.db.types import Json, Key, LongText

__all__ = ["counters", "transitions"]

transitions = table(
    "penstock_transition",
    Column("sequence", Serial, primary_key=True, autoincrement=True),
    Column("machine", Key(40), nullable=False),
    Column("subject", Key(64), nullable=False),
    Column("source", Key(40)),  # null for the entry that creates the subject
    Column("event", Key(40), nullable=False),
    Column("target", Key(40), nullable=False),
    Column("at", BigInteger, nullable=False),
    Column("actor", Key(200), nullable=False),
    Column("cause", LongText),
    Column("details", Json),
    Column("position", BigInteger),  # in the feed; given when it is first read, so in the order of commits
    Index("ix_penstock_transition_subject", "machine", "subject", "sequence"),
    Index("ix_penstock_transition_position", "position"),
)

# How far things have been numbered.
counters = table(
    "penstock_counter",
    Column("name", Key(40), primary_key=True),
    Column("value", BigInteger, nullable=False),
)
