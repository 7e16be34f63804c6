"""One row after the other into a SQLite table: statements stay prepared, so that a call a row costs little."""

from __future__ import annotations

import sqlite3
from functools import cached_property
from itertools import chain, compress
from operator import not_
from typing import Any

from penstock.targets.model import Mode, Outcome, Verdict
from penstock.targets.sql.keys import Row
from penstock.targets.sql.row_groups import RowGroup
from penstock.targets.sql.table import ansi, listed
from penstock.targets.sql.target import CREATED, DONE, UNCHANGED, TableBatch, created_or_updated, left_out, not_found
from penstock.targets.verdicts import Verdicts

__all__ = ["GroupWriter"]

VALUES_MAX = 900
"""Values in one statement; older libraries take 999."""


class GroupWriter:
    """Writes the rows of a group: `write` does the nth of them and says what became of it."""

    def __init__(self, cursor: sqlite3.Cursor, work: TableBatch, group: RowGroup) -> None:
        self._cursor, self._work, self._group = cursor, work, group
        self._table, self._only_changed = work.table.quoted(ansi), work.options.update_only_changed
        self._rest = tuple(name for name in group.columns if name not in work.key)
        self._compared = self._rest if self._only_changed else ()
        self._is_key = " AND ".join(f"{ansi(name)} = ?{self._as_index(name)}" for name in work.key)
        changes = ", ".join(f"{ansi(name)} = ?" for name in self._rest)
        differs = " OR ".join(f"{ansi(name)} COLLATE BINARY IS NOT ?" for name in self._compared) or "0"
        marks = ", ".join("?" * len(group.columns))
        self._insert = f"INSERT INTO {self._table} ({listed(group.columns)}) VALUES ({marks})"
        self._add = f"{self._insert} RETURNING {listed(work.key)}" if work.key else self._insert
        self._change = f"UPDATE {self._table} SET {changes} WHERE {self._is_key}"
        self._remove = f"DELETE FROM {self._table} WHERE {self._is_key}"
        self._look = f"SELECT {differs} FROM {self._table} WHERE {self._is_key}"
        verbs = {Mode.CREATE: self._create, Mode.UPDATE: self._update, Mode.UPSERT: self._upsert}
        self.write = verbs.get(work.mode, self._delete)

    @property
    def can_upsert_at_once(self) -> bool:
        """Whether all rows will be written, and the order in which that is done does not matter."""
        is_plain = self._work.mode is Mode.UPSERT and self._work.table.has_one_key and not self._only_changed
        return is_plain and bool(self._rest)

    def upsert_at_once(self) -> Verdicts:
        """Look which rows are there and write them all; raises when one was not written."""
        is_there = self._are_there()
        is_new = list(map(not_, is_there))
        there = compress(self._group.rows_of((*self._rest, *self._work.key)), is_there)
        new = compress(self._group.rows, is_new)
        for text, rows, count in ((self._change, there, sum(is_there)), (self._insert, new, sum(is_new))):
            if count and self._cursor.executemany(text, rows).rowcount != count:
                raise left_out(self._work)
        return created_or_updated(is_new)

    def ids_in_table(self) -> dict[int, Any]:
        """The primary keys of an upsert's rows by their places in the group, when it went by another key."""
        text = f"SELECT {listed(self._work.foreign_ids)} FROM {self._table} WHERE {self._is_key}"
        found = {n: self._cursor.execute(text, key).fetchone() for n, key in enumerate(self._keys)}
        return {n: row[0] if len(row) == 1 else row for n, row in found.items() if row is not None}

    def _are_there(self) -> bytearray:
        """Which of the rows the table has, a byte each."""
        key, keys, found = self._work.key, self._keys, bytearray(len(self._group))
        same = " AND ".join(f"t.{ansi(name)} = g.{ansi(name)}{self._as_index(name)}" for name in key)
        step = max(VALUES_MAX // len(key), 1)
        for start in range(0, len(keys), step):
            some = keys[start : start + step]
            given = ", ".join(f"({n}{', ?' * len(key)})" for n in range(len(some)))
            text = (
                f'WITH "penstock given" ("penstock ordinal", {listed(key)}) AS (VALUES {given}) '
                f'SELECT g."penstock ordinal" FROM "penstock given" g CROSS JOIN {self._table} t ON {same}'
            )
            for (n,) in self._cursor.execute(text, list(chain.from_iterable(some))):
                found[start + n] = True
        return found

    def _as_index(self, name: str) -> str:
        """Compares a key as its index does, which need not be as its column does."""
        collation = self._work.table.columns[name].collation
        return f" COLLATE {ansi(collation)}" if collation else ""

    def _create(self, n: int) -> Verdict:
        made = self._cursor.execute(self._add, self._rows[n]).fetchone()
        if not made and (self._work.key or not self._cursor.rowcount):
            return self._left_out()
        return Verdict(Outcome.CREATED, made[0] if len(made) == 1 else made) if made else CREATED

    def _update(self, n: int) -> Verdict:
        if self._only_changed and self._found(n) == (0,):
            return UNCHANGED
        return DONE[Mode.UPDATE] if self._changed(n) else self._unwritten(n)

    def _upsert(self, n: int) -> Verdict:
        found = self._found(n)
        if found is None:
            return CREATED if self._cursor.execute(self._insert, self._rows[n]).rowcount else self._left_out()
        if found == (0,) and (self._only_changed or not self._rest):
            return UNCHANGED
        return DONE[Mode.UPSERT] if self._changed(n) else self._left_out()

    def _delete(self, n: int) -> Verdict:
        is_done = self._cursor.execute(self._remove, self._keys[n]).rowcount
        return DONE[Mode.DELETE] if is_done else self._unwritten(n)

    def _found(self, n: int) -> Any:
        """None when the table has no such row, or whether it differs from what the table holds."""
        return self._cursor.execute(self._look, self._compared_and_keys[n]).fetchone()

    def _changed(self, n: int) -> int:
        return self._cursor.execute(self._change, self._rest_and_keys[n]).rowcount

    def _unwritten(self, n: int) -> Verdict:
        """The verdict on an update or delete that changed nothing."""
        return not_found(self._work, self._group, n) if self._found(n) is None else self._left_out()

    def _left_out(self) -> Verdict:
        return Verdict(Outcome.FAILED, error=left_out(self._work))

    # --- what is sent for each row, made when it is first needed

    @cached_property
    def _rows(self) -> list[Row]:
        return list(self._group.rows)

    @cached_property
    def _keys(self) -> list[Row]:
        return list(self._group.rows_of(self._work.key))

    @cached_property
    def _compared_and_keys(self) -> list[Row]:
        return list(self._group.rows_of((*self._compared, *self._work.key)))

    @cached_property
    def _rest_and_keys(self) -> list[Row]:
        return list(self._group.rows_of((*self._rest, *self._work.key)))
