"""Writing and reading the transition log."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, insert, select

from penstock.db.connection import Connection
from penstock.journal.tables import transitions

__all__ = ["Entry", "entries", "record"]


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of the log: who moved what from where to where, when and why."""

    sequence: int
    machine: str
    subject: str
    source: str | None
    event: str
    target: str
    at: int
    actor: str
    cause: str | None
    details: Mapping[str, Any] | None


async def record(
    tx: Connection,
    *,
    machine: str,
    subject: str,
    source: str | None,
    event: str,
    target: str,
    at: ColumnElement[int],
    actor: str,
    cause: str | None = None,
    details: Mapping[str, Any] | None = None,
) -> None:
    """Log a move, in the transaction that makes it."""
    await tx.execute(
        insert(transitions).values(
            machine=machine,
            subject=subject,
            source=source,
            event=event,
            target=target,
            at=at,
            actor=actor,
            cause=cause,
            details=details,
        )
    )


async def entries(
    tx: Connection, *, machine: str, subject: str | None = None, since: int = 0, limit: int = 100
) -> Sequence[Entry]:
    """Log lines after `since`, oldest first; of one subject or of all."""
    query = (
        select(*(transitions.c[name] for name in Entry.__dataclass_fields__))
        .where(transitions.c.machine == machine, transitions.c.sequence > since)
        .order_by(transitions.c.sequence)
        .limit(limit)
    )
    if subject is not None:
        query = query.where(transitions.c.subject == subject)
    return [Entry(**row._mapping) for row in await tx.execute(query)]
