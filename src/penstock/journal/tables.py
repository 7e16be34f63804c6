"""The one transition log: every move of an operation, blob or delivery, with its actor and cause."""

from __future__ import annotations

from sqlalchemy import BigInteger, Column, Index

from penstock.db.schema import Serial, table
from penstock.db.types import Json, Key, LongText

__all__ = ["transitions"]

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
    Index("ix_penstock_transition_subject", "machine", "subject", "sequence"),
)
