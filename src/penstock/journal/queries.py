"""Writing and reading the transition log."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Insert, Select, bindparam, insert, select

from penstock.db.connection import Connection
from penstock.db.database import Database
from penstock.journal.tables import transitions

__all__ = ["LAST", "Entry", "entries", "feed", "newest", "numbered", "record"]

LAST = 2**63 - 1  # behind every number


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
    position: int | None = None  # its number in the feed, once that was read


async def record(
    db: Database,
    tx: Connection,
    *,
    machine: str,
    subject: str,
    source: str | None,
    event: str,
    target: str,
    actor: str,
    cause: str | None = None,
    details: Mapping[str, Any] | None = None,
) -> None:
    """Log a move, in the transaction that makes it."""
    given = {"machine": machine, "subject": subject, "source": source, "event": event, "target": target}
    await tx.send(db.prepared(_entry), {**given, "actor": actor, "cause": cause, "details": details})


def _entry(db: Database) -> Insert:
    return insert(transitions).values(at=db.now())


async def entries(tx: Connection, *, machine: str, subject: str, since: int = 0, limit: int = 100) -> Sequence[Entry]:
    """Moves of one subject in the order they were made, behind the one written as `since`."""
    given = {"of": machine, "about": subject, "since": since, "many": limit}
    return [Entry(*row) for row in (await tx.send(_ABOUT, given)).rows]


async def feed(
    tx: Connection, *, machine: str, subject: str | None = None, since: int = 0, limit: int = 100
) -> Sequence[Entry]:
    """Moves that have a number (see `numbering`) above `since`, by number; of one subject or of all."""
    if subject is not None:  # they are numbered in the order in which they were made
        query = _of_subject(machine, subject).where(transitions.c.position > since)
        return [Entry(**row._mapping) for row in await tx.execute(query.order_by(transitions.c.sequence).limit(limit))]
    # Nothing but the number is asked for: with more to go by, SQLite and PostgreSQL read and sort the whole log.
    return await _of_machine(tx, machine, _BEHIND, start=since, limit=limit)


async def newest(
    tx: Connection, *, machine: str, subject: str | None = None, before: int = LAST, limit: int = 100
) -> Sequence[Entry]:
    """The last moves that have a number below `before`, the newest first; of one subject or of all."""
    if subject is not None:
        query = _of_subject(machine, subject).where(transitions.c.position < before)
        last = query.order_by(transitions.c.sequence.desc()).limit(limit)
        return [Entry(**row._mapping) for row in await tx.execute(last)]
    return await _of_machine(tx, machine, _BEFORE, start=before, limit=limit)


def _of_subject(machine: str, subject: str) -> Select[Any]:
    return _ENTRIES.where(transitions.c.machine == machine, transitions.c.subject == subject)


async def _of_machine(tx: Connection, machine: str, query: Select[Any], *, start: int, limit: int) -> list[Entry]:
    """The first entries of one machine; the log holds those of others too."""
    found: list[Entry] = []
    while len(found) < limit:
        some = [Entry(**row._mapping) for row in await tx.execute(query.limit(limit), {"start": start})]
        found += [entry for entry in some if entry.machine == machine]
        if len(some) < limit:
            break
        start = some[-1].position or start
    return found[:limit]


async def numbered(tx: Connection, *, since: int, limit: int) -> Sequence[Entry]:
    """Moves of every machine that have a number above `since`, by number."""
    query = _ENTRIES.where(transitions.c.position > since).order_by(transitions.c.position).limit(limit)
    return [Entry(**row._mapping) for row in await tx.execute(query)]


_ENTRIES = select(*(transitions.c[name] for name in Entry.__dataclass_fields__))
_ABOUT = (
    _ENTRIES.where(transitions.c.machine == bindparam("of"), transitions.c.subject == bindparam("about"))
    .where(transitions.c.sequence > bindparam("since"))
    .order_by(transitions.c.sequence)
    .limit(bindparam("many"))
)
_BEHIND = _ENTRIES.where(transitions.c.position > bindparam("start")).order_by(transitions.c.position)
_BEFORE = _ENTRIES.where(transitions.c.position < bindparam("start")).order_by(transitions.c.position.desc())
