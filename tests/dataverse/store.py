"""The remote's rows: typed, keyed, referring to each other, and changed in units that commit or roll back."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from . import problems
from .ledger import Change
from .odata import same_text
from .problems import Refused
from .tables import Lookup, Table

__all__ = ["Row", "Store", "row_key"]

Row = dict[str, Any]
VERSION = "@odata.etag"


def row_key(id: str, partition: str | None = None) -> str:
    """What tells rows apart: the id, on elastic tables within its partition."""
    return id if partition is None else f"{id}/{partition}"


class _Shelf:
    """One table's rows and the index of each alternate key."""

    def __init__(self, table: Table) -> None:
        self.table = table
        self.rows: dict[str, Row] = {}
        self.index: dict[str, dict[tuple[Any, ...], str]] = {name: {} for name in table.keys}


class Store:
    """All rows. Changes happen in a `unit`: it undoes them when it ends with an error."""

    def __init__(self, tables: Iterable[Table], commit: Callable[[Change], None]) -> None:
        self._shelves = {table.name: _Shelf(table) for table in tables}
        self._commit = commit
        self._undo: list[Callable[[], None]] = []
        self._pending: list[Change] = []
        self._depth = 0
        self._version = 0

    @property
    def tables(self) -> list[Table]:
        return [shelf.table for shelf in self._shelves.values()]

    def table_of_set(self, entity_set: str) -> Table | None:
        """The table whose entity set this is."""
        return next((table for table in self.tables if table.entity_set == entity_set), None)

    def rows(self, table: str) -> dict[str, Row]:
        """The table's rows by key; do not change them."""
        return self._shelves[table].rows

    def get(self, table: Table, key: str) -> Row | None:
        return self._shelves[table.name].rows.get(key)

    def find(self, table: Table, columns: Mapping[str, Any]) -> str | None:
        """The key of the row an alternate key names; the columns must be exactly one declared key."""
        name = next((name for name, parts in table.keys.items() if set(parts) == set(columns)), None)
        if name is None:
            raise Refused(problems.bad_request(f"The specified key attributes are not a defined key for {table.name}."))
        return self._shelves[table.name].index[name].get(_values(columns, table.keys[name]))

    @contextmanager
    def unit(self) -> Iterator[None]:
        """One transaction; units inside it are savepoints."""
        undo_mark, pending_mark = len(self._undo), len(self._pending)
        self._depth += 1
        try:
            yield
        except BaseException:
            while len(self._undo) > undo_mark:
                self._undo.pop()()
            del self._pending[pending_mark:]
            raise
        finally:
            self._depth -= 1
        if self._depth == 0:
            for change in self._pending:
                self._commit(change)
            self._undo.clear()
            self._pending.clear()

    def insert(self, table: Table, values: Mapping[str, Any], index: int = 0) -> Row:
        """Add a row under the id it brings or a new one."""
        row: Row = dict.fromkeys((*table.declared, *(lookup.value for lookup in table.lookups)))
        row.update(values)
        row[table.primary_id] = row[table.primary_id] or str(uuid.uuid4())
        key = row_key(row[table.primary_id], row.get("partitionid"))
        for column in table.declared.values():
            if column.is_required and row[column.name] is None:
                raise Refused(problems.required(table.name, column.name))
        if key in self.rows(table.name):
            raise Refused(problems.duplicate_id())
        self._put(table, key, row)
        self._note(table, key, "create", values, index)
        return row

    def update(
        self, table: Table, key: str, values: Mapping[str, Any], index: int = 0, *, replace: bool = False
    ) -> Row:
        """Change columns of a row; `replace` empties those that are not named."""
        old = self.rows(table.name)[key]
        kept = {name: old[name] for name in (table.primary_id, "partitionid") if name in old}
        row = {**(dict.fromkeys(old) | kept if replace else old), **values}
        self._put(table, key, row)
        self._note(table, key, "update", values, index)
        return row

    def delete(self, table: Table, key: str, index: int = 0) -> None:
        """Remove a row; what referred to it refers to nothing from then on."""
        old = self.rows(table.name)[key]
        self._put(table, key, None)
        for other, lookup in self._referring(table):
            for other_key, row in list(self.rows(other.name).items()):
                if row[lookup.value] == old[table.primary_id]:
                    self._put(other, other_key, {**row, lookup.value: None})
        self._note(table, key, "delete", {table.primary_id: old[table.primary_id]}, index)

    def duplicates(self, table: Table, values: Mapping[str, Any], key: str | None) -> bool:
        """Whether another row agrees with these values in all columns of some duplicate rule."""
        rules = [rule for rule in table.duplicate_rules if all(values.get(column) is not None for column in rule)]
        return any(
            other != key and _values(row, rule) == _values(values, rule)
            for rule in rules
            for other, row in self.rows(table.name).items()
        )

    def _referring(self, table: Table) -> list[tuple[Table, Lookup]]:
        return [(other, lookup) for other in self.tables for lookup in other.lookups if lookup.table == table.name]

    def _put(self, table: Table, key: str, row: Row | None) -> None:
        shelf = self._shelves[table.name]
        old = shelf.rows.get(key)
        for name, columns in table.keys.items():
            taken = shelf.index[name].get(_values(row, columns)) if row and _is_whole(row, columns) else None
            if taken is not None and taken != key:
                raise Refused(problems.duplicate_key(name, columns))
        if row is not None:
            self._version += 1
            row[VERSION] = f'W/"{self._version}"'
        _place(shelf, key, old, row)
        self._undo.append(lambda: _place(shelf, key, row, old))

    def _note(self, table: Table, key: str, what: str, values: Mapping[str, Any], index: int) -> None:
        self._pending.append(Change(table.name, key, what, dict(values), index))


def _place(shelf: _Shelf, key: str, old: Row | None, new: Row | None) -> None:
    for name, columns in shelf.table.keys.items():
        if old is not None and _is_whole(old, columns):
            del shelf.index[name][_values(old, columns)]
        if new is not None and _is_whole(new, columns):
            shelf.index[name][_values(new, columns)] = key
    if new is None:
        del shelf.rows[key]
    else:
        shelf.rows[key] = new


def _values(row: Mapping[str, Any], columns: Sequence[str]) -> tuple[Any, ...]:
    return tuple(same_text(row.get(column)) for column in columns)


def _is_whole(row: Mapping[str, Any], columns: Sequence[str]) -> bool:
    return all(row.get(column) is not None for column in columns)
