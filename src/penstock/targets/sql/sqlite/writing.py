"""One row after the other into a SQLite table: statements stay prepared, so that a call a row costs little."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterable
from itertools import chain, compress
from operator import not_
from typing import Any

from penstock.targets.model import Mode, Outcome, Verdict
from penstock.targets.sql.keys import Row, picker
from penstock.targets.sql.row_groups import RowGroup
from penstock.targets.sql.table import ansi, listed
from penstock.targets.sql.target import CREATED, DONE, UNCHANGED, TableBatch, created_or_updated, left_out, not_found
from penstock.targets.verdicts import Verdicts

__all__ = ["WriteRow", "can_upsert_at_once", "ids_in_table", "row_writer", "upsert_at_once"]

WriteRow = Callable[[int], Verdict]
VALUES_MAX = 900
"""Values in one statement; older libraries take 999."""


def row_writer(cursor: sqlite3.Cursor, work: TableBatch, group: RowGroup) -> WriteRow:
    """A function that writes the group's nth row and says what became of it."""
    verb = {Mode.CREATE: _create, Mode.UPDATE: _update, Mode.UPSERT: _upsert, Mode.DELETE: _delete}
    return verb[work.mode](cursor, work, group)


def can_upsert_at_once(work: TableBatch, group: RowGroup) -> bool:
    """Whether all rows will be written, and the order in which that is done does not matter."""
    is_plain = work.mode is Mode.UPSERT and work.table.has_one_key and not work.options.update_only_changed
    return is_plain and bool(_rest(work, group))


def upsert_at_once(cursor: sqlite3.Cursor, work: TableBatch, group: RowGroup) -> Verdicts:
    """Look which rows are there and write them all; raises when one was not written."""
    is_there = _are_there(cursor, work, group)
    there, new = list(compress(group.rows, is_there)), list(compress(group.rows, map(not_, is_there)))
    updated = cursor.executemany(_change(work, group), map(_picked(group, (*_rest(work, group), *work.key)), there))
    if there and updated.rowcount != len(there):
        raise left_out(work)
    if new and cursor.executemany(_insert(work, group), new).rowcount != len(new):
        raise left_out(work)
    return created_or_updated(map(not_, is_there))


def _are_there(cursor: sqlite3.Cursor, work: TableBatch, group: RowGroup) -> bytearray:
    """Which of the rows the table has, a byte each."""
    keys, found = list(group.values(work.key)), bytearray(len(group))
    same = " AND ".join(f"t.{ansi(name)} = g.{ansi(name)}" for name in work.key)
    step = max(VALUES_MAX // len(work.key), 1)
    for start in range(0, len(keys), step):
        some = keys[start : start + step]
        given = ", ".join(f"({n}{', ?' * len(work.key)})" for n in range(len(some)))
        text = (
            f'WITH "penstock given" ("penstock ordinal", {listed(work.key)}) AS (VALUES {given}) '
            f'SELECT g."penstock ordinal" FROM "penstock given" g CROSS JOIN {work.table.quoted(ansi)} t ON {same}'
        )
        for (n,) in cursor.execute(text, list(chain.from_iterable(some))):
            found[start + n] = True
    return found


def ids_in_table(cursor: sqlite3.Cursor, work: TableBatch, group: RowGroup) -> dict[int, Any]:
    """The primary keys of an upsert's rows by their places in the group, when it went by another key."""
    text = f"SELECT {listed(work.foreign_ids)} FROM {work.table.quoted(ansi)} WHERE {_is_key(work)}"
    found = {n: cursor.execute(text, key).fetchone() for n, key in enumerate(group.values(work.key))}
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
        is_done = cursor.execute(text, keys(group.rows[n])).rowcount
        return DONE[Mode.DELETE] if is_done else _unwritten(work, group, n, find)

    return write


def _unwritten(work: TableBatch, group: RowGroup, n: int, find: Callable[[int], Any]) -> Verdict:
    """The verdict on an update or delete that changed nothing."""
    return not_found(work, group, n) if find(n) is None else _left_out(work)


def _left_out(work: TableBatch) -> Verdict:
    return Verdict(Outcome.FAILED, error=left_out(work))


def _updater(cursor: sqlite3.Cursor, work: TableBatch, group: RowGroup) -> Callable[[int], int]:
    text, values = _change(work, group), _picked(group, (*_rest(work, group), *work.key))
    return lambda n: cursor.execute(text, values(group.rows[n])).rowcount


def _finder(cursor: sqlite3.Cursor, work: TableBatch, group: RowGroup) -> Callable[[int], Any]:
    """A function that finds the nth row: None, or whether it differs from what the table holds."""
    rest = _rest(work, group) if work.options.update_only_changed else ()
    differs = " OR ".join(f"{ansi(name)} COLLATE BINARY IS NOT ?" for name in rest) or "0"
    text = f"SELECT {differs} FROM {work.table.quoted(ansi)} WHERE {_is_key(work)}"
    values = _picked(group, (*rest, *work.key))
    return lambda n: cursor.execute(text, values(group.rows[n])).fetchone()


def _insert(work: TableBatch, group: RowGroup) -> str:
    marks = ", ".join("?" * len(group.columns))
    return f"INSERT INTO {work.table.quoted(ansi)} ({listed(group.columns)}) VALUES ({marks})"


def _change(work: TableBatch, group: RowGroup) -> str:
    changes = ", ".join(f"{ansi(name)} = ?" for name in _rest(work, group))
    return f"UPDATE {work.table.quoted(ansi)} SET {changes} WHERE {_is_key(work)}"


def _is_key(work: TableBatch) -> str:
    return " AND ".join(f"{ansi(name)} = ?" for name in work.key)


def _rest(work: TableBatch, group: RowGroup) -> tuple[str, ...]:
    return tuple(name for name in group.columns if name not in work.key)


def _picked(group: RowGroup, names: Iterable[str]) -> Callable[[Row], Row]:
    return picker(tuple(map(group.columns.index, names)))
