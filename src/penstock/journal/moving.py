"""A move by a machine's table: a compare-and-set on the state column, and its entry in the log, in one transaction."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Column, ColumnElement, Select, Table, Update, bindparam, case, or_, select, update

from penstock.db.connection import Connection
from penstock.db.database import Database
from penstock.journal import queries as journal
from penstock.machine import Machine

__all__ = ["Moved", "move"]

Changes = tuple[tuple[str, ColumnElement[Any] | None], ...]
"""Columns in the order in which they are set, with the SQL that makes the value; None where it is sent."""


@dataclass(frozen=True, slots=True, eq=False)
class Moved:
    """A table whose records are moved by a machine: it has the columns `state`, `previous_state` and `revision`.

    `key` finds a record, and `subject` is what the log calls it.
    """

    machine: Machine
    table: Table
    key: Column[Any]
    subject: Column[Any]


async def move(
    db: Database,
    tx: Connection,
    moved: Moved,
    key: object,
    event: str,
    *,
    guards: Iterable[ColumnElement[bool]] = (),
    values: Mapping[str, Any] | None = None,
    reading: Sequence[ColumnElement[Any]] = (),
    actor: str,
    cause: str | None = None,
    details: Mapping[str, Any] | None = None,
) -> Sequence[Any] | None:
    """Move a record by `event` and log it; None when its state does not admit it or a guard does not hold.

    Returns the columns of `reading` as they are afterwards.
    """
    if not moved.machine.targets(event):
        raise ValueError(f"{event!r} is no event of the {moved.machine.name} machine")
    changes, sent = _split(values or {})
    own = tuple(guards)
    if own or any(made is not None and made is not db.now() for _, made in changes):
        done = await tx.execute(_moved(db, moved, event, changes).where(*own), {**sent, "the_key": key})
        is_moved = done.rowcount == 1
    else:  # the same statement each time
        move_it = db.prepared(_moved, moved, event, changes)
        is_moved = (await tx.send(move_it, {**sent, "the_key": key})).matched == 1
    if not is_moved:
        return None
    row = (await tx.send(db.prepared(_read, moved, tuple(reading)), {"the_key": key})).one()
    subject, source, target = row[len(reading) :]
    await journal.record(
        db,
        tx,
        machine=moved.machine.name,
        subject=subject,
        source=source,
        event=event,
        target=target,
        actor=actor,
        cause=cause,
        details=details,
    )
    return row


def _split(values: Mapping[str, Any]) -> tuple[Changes, dict[str, Any]]:
    """The columns that are changed, and the values that are sent for those that are not made by SQL."""
    changes = tuple((name, value if isinstance(value, ColumnElement) else None) for name, value in values.items())
    return changes, {f"to_{name}": values[name] for name, made in changes if made is None}


def _moved(db: Database, moved: Moved, event: str, changes: Changes) -> Update:
    """The compare-and-set."""
    columns, targets = moved.table.c, moved.machine.targets(event)
    return (
        update(moved.table)
        .where(_is_it(moved), or_(*(columns.state == source for source in targets)))
        # MariaDB assigns from left to right, so the old state is kept before it changes.
        .ordered_values(
            (columns.previous_state, columns.state),
            (columns.state, case(dict(targets), value=columns.state)),
            (columns.revision, columns.revision + 1),
            *(
                (columns[name], bindparam(f"to_{name}", type_=columns[name].type) if made is None else made)
                for name, made in changes
            ),
        )
    )


def _read(db: Database, moved: Moved, reading: tuple[ColumnElement[Any], ...]) -> Select[Any]:
    """What a record is after its move, and what the log tells of it."""
    columns = moved.table.c
    logged = (moved.subject, columns.previous_state, columns.state)
    return select(*reading, *(column.label(f"logged_{column.key}") for column in logged)).where(_is_it(moved))


def _is_it(moved: Moved) -> ColumnElement[bool]:
    return moved.key == bindparam("the_key", type_=moved.key.type)
