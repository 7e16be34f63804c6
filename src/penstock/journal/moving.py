"""A move by a machine's table: a compare-and-set on the state column, and its entry in the log, in one transaction."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Column, ColumnElement, Row, Table, case, select, update

from penstock.db.connection import Connection
from penstock.db.database import Database
from penstock.journal import queries as journal
from penstock.machine import Machine

__all__ = ["Moved", "move"]


@dataclass(frozen=True, slots=True)
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
) -> Row[Any] | None:
    """Move a record by `event` and log it; None when its state does not admit it or a guard does not hold.

    Returns the columns of `reading` as they are afterwards.
    """
    columns, targets = moved.table.c, moved.machine.targets(event)
    if not targets:
        raise ValueError(f"{event!r} is no event of the {moved.machine.name} machine")
    done = await tx.execute(
        update(moved.table)
        .where(moved.key == key, columns.state.in_(tuple(targets)), *guards)
        # MariaDB assigns from left to right, so the old state is kept before it changes.
        .ordered_values(
            (columns.previous_state, columns.state),
            (columns.state, case(dict(targets), value=columns.state)),
            (columns.revision, columns.revision + 1),
            *((columns[name], value) for name, value in (values or {}).items()),
        )
    )
    if done.rowcount != 1:
        return None
    logged = (moved.subject, columns.previous_state, columns.state)
    labelled = (column.label(f"logged_{column.key}") for column in logged)
    row = (await tx.execute(select(*reading, *labelled).where(moved.key == key))).one()
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
