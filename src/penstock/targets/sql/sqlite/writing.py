"""One row after the other into a SQLite table: statements stay prepared, so that a call a row costs little."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable
from typing import Any

from penstock.targets.model import Mode, Outcome, Verdict
from penstock.targets.sql.row_groups import RowGroup
from penstock.targets.sql.table import ansi, listed
from penstock.targets.sql.target import CREATED, DONE, UNCHANGED, TableBatch, left_out, not_found

__all__ = ["WriteRow", "ids_in_table", "row_writer"]

WriteRow = Callable[[int], Verdict]


def row_writer(cursor: sqlite3.Cursor, work: TableBatch, group: RowGroup) -> WriteRow:
    """A function that writes the group's nth row and says what became of it."""
    verb = {Mode.CREATE: _create, Mode.UPDATE: _update, Mode.UPSERT: _upsert, Mode.DELETE: _delete}
    return verb[work.mode](cursor, work, group)


def ids_in_table(cursor: sqlite3.Cursor, work: TableBatch, group: RowGroup) -> dict[int, Any]:
    """The primary keys of an upsert's rows by their places in the group, when it went by another key."""
    text = f"SELECT {listed(work.foreign_ids)} FROM {work.table.quoted(ansi)} WHERE {_is_key(work)}"
    keys = _picked(group, work.key)
    found = {n: cursor.execute(text, keys(n)).fetchone() for n in range(len(group))}
    return {n: row[0] if len(row) == 1 else row for n, row in found.items() if row is not None}


def _create(cursor: sqlite3.Cursor, work: TableBatch, group: RowGroup) -> WriteRow:
    text = f"{_insert(work, group)} RETURNING {listed(work.key)}" if work.key else _insert(work, group)

    def write(n: int) -> Verdict:
        made = cursor.execute(text, group.rows[n]).fetchone()
        if not made and (work.key or not cursor.rowcount):
            return _left_out(work)
        return Verdict(Outcome.CREATED, made[0] if len(made) == 1 else made) if made else CREATED

    return write


def _update(cursor: sqlite3.Cursor, work: TableBatch, group: RowGroup) -> WriteRow:
    update, find = _updater(cursor, work, group), _finder(cursor, work, group)

    def write(n: int) -> Verdict:
        if work.options.update_only_changed and find(n) == (0,):
            return UNCHANGED
        return DONE[Mode.UPDATE] if update(n) else _unwritten(work, group, n, find)

    return write


def _upsert(cursor: sqlite3.Cursor, work: TableBatch, group: RowGroup) -> WriteRow:
    insert, update, find = _insert(work, group), _updater(cursor, work, group), _finder(cursor, work, group)
    has_rest = bool(_rest(work, group))

    def write(n: int) -> Verdict:
        found = find(n)
        if found is None:
            return CREATED if cursor.execute(insert, group.rows[n]).rowcount else _left_out(work)
        if found == (0,) and (work.options.update_only_changed or not has_rest):
            return UNCHANGED
        return DONE[Mode.UPSERT] if update(n) else _left_out(work)

    return write


def _delete(cursor: sqlite3.Cursor, work: TableBatch, group: RowGroup) -> WriteRow:
    text = f"DELETE FROM {work.table.quoted(ansi)} WHERE {_is_key(work)}"
    keys, find = _picked(group, work.key), _finder(cursor, work, group)

    def write(n: int) -> Verdict:
        is_done = cursor.execute(text, keys(n)).rowcount
        return DONE[Mode.DELETE] if is_done else _unwritten(work, group, n, find)

    return write


def _unwritten(work: TableBatch, group: RowGroup, n: int, find: Callable[[int], Any]) -> Verdict:
    """The verdict on an update or delete that changed nothing."""
    return not_found(work, group, n) if find(n) is None else _left_out(work)


def _left_out(work: TableBatch) -> Verdict:
    return Verdict(Outcome.FAILED, error=left_out(work))


def _updater(cursor: sqlite3.Cursor, work: TableBatch, group: RowGroup) -> Callable[[int], int]:
    rest = _rest(work, group)
    changes = ", ".join(f"{ansi(name)} = ?" for name in rest)
    text = f"UPDATE {work.table.quoted(ansi)} SET {changes} WHERE {_is_key(work)}"
    values = _picked(group, (*rest, *work.key))
    return lambda n: cursor.execute(text, values(n)).rowcount


def _finder(cursor: sqlite3.Cursor, work: TableBatch, group: RowGroup) -> Callable[[int], Any]:
    """A function that finds the nth row: None, or whether it differs from what the table holds."""
    rest = _rest(work, group) if work.options.update_only_changed else ()
    differs = " OR ".join(f"{ansi(name)} COLLATE BINARY IS NOT ?" for name in rest) or "0"
    text = f"SELECT {differs} FROM {work.table.quoted(ansi)} WHERE {_is_key(work)}"
    values = _picked(group, (*rest, *work.key))
    return lambda n: cursor.execute(text, values(n)).fetchone()


def _insert(work: TableBatch, group: RowGroup) -> str:
    marks = ", ".join("?" * len(group.columns))
    return f"INSERT INTO {work.table.quoted(ansi)} ({listed(group.columns)}) VALUES ({marks})"


def _is_key(work: TableBatch) -> str:
    return " AND ".join(f"{ansi(name)} = ?" for name in work.key)


def _rest(work: TableBatch, group: RowGroup) -> tuple[str, ...]:
    return tuple(name for name in group.columns if name not in work.key)


def _picked(group: RowGroup, names: Iterable[str]) -> Callable[[int], tuple[Any, ...]]:
    places = [group.columns.index(name) for name in names]
    return lambda n: tuple([group.rows[n][place] for place in places])
