"""The SQL that writes rows into a MariaDB table: many rows a statement, values put in with `%s`.

An upsert first looks which rows are there, locking them, and then inserts or updates. ON DUPLICATE KEY UPDATE would be
one statement less, but it changes whichever row is in the way of any unique index, not only of the key.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any

from penstock.targets.sql.row_groups import RowGroup
from penstock.targets.sql.table import Table, backticks, listed

__all__ = ["Statement", "delete", "find", "find_ids", "insert", "update", "update_one"]

ORDINAL = "penstock ordinal"
Statement = tuple[str, list[Any]]


def find(table: Table, key: tuple[str, ...], group: RowGroup, *, compare: bool) -> Statement:
    """Lock the rows that are there, in the order given; tells (place in the group, whether it differs)."""
    rest = [name for name in group.columns if name not in key] if compare else []
    differs = " OR ".join(f"NOT (t.{backticks(c)} <=> {_as(table, c, is_exact=True)})" for c in rest) or "0"
    text, values = _look_up(table, key, group, differs, rest)
    return f"{text} FOR UPDATE", values


def find_ids(table: Table, key: tuple[str, ...], group: RowGroup, ids: Sequence[str]) -> Statement:
    """The places of rows in the group and, beside each, these columns of the row that the table has for it."""
    return _look_up(table, key, group, ", ".join(f"t.{backticks(name)}" for name in ids))


def _look_up(table: Table, key: tuple[str, ...], group: RowGroup, told: str, rest: Sequence[str] = ()) -> Statement:
    """Ask for something about the rows that are there, by their keys and, to compare them, the rest of them."""
    names = (*key, *rest)
    values = ", ".join([f"({n}{', %s' * len(names)})" for n in range(len(group))])
    text = (
        f"SELECT g.{backticks(ORDINAL)}, {told} FROM {_given((ORDINAL, *names), values)} "
        f"STRAIGHT_JOIN {table.quoted(backticks)} t ON {_same_key(table, key)}"
    )
    return text, list(chain.from_iterable(group.values(names)))


def insert(table: Table, group: RowGroup, returning: Sequence[str] = ()) -> Statement:
    """New rows; `returning` are told in the order of the rows."""
    values = _marks(len(group.columns), len(group))
    text = f"INSERT INTO {table.quoted(backticks)} ({listed(group.columns, backticks)}) VALUES {values}"
    told = f" RETURNING {listed(returning, backticks)}" if returning else ""
    return text + told, list(chain.from_iterable(group.rows))


def update(table: Table, key: tuple[str, ...], group: RowGroup) -> Statement:
    """Change rows that are there and locked."""
    changes = ", ".join(f"t.{backticks(c)} = g.{backticks(c)}" for c in group.columns if c not in key)
    given = _given(group.columns, _marks(len(group.columns), len(group)))
    text = f"UPDATE {given} STRAIGHT_JOIN {table.quoted(backticks)} t ON {_same_key(table, key)} SET {changes}"
    return text, list(chain.from_iterable(group.rows))


def update_one(table: Table, key: tuple[str, ...], group: RowGroup) -> Statement:
    """Change the only row of the group, which is there and locked."""
    given = dict(zip(group.columns, group.rows[0], strict=True))
    changes = {name: value for name, value in given.items() if name not in key}
    text = (
        f"UPDATE {table.quoted(backticks)} SET {', '.join(f'{backticks(name)} = %s' for name in changes)} "
        f"WHERE {' AND '.join(f'{backticks(name)} = %s' for name in key)}"
    )
    return text, [*changes.values(), *(given[name] for name in key)]


def delete(table: Table, key: tuple[str, ...], group: RowGroup) -> Statement:
    """Delete rows that are there and locked."""
    given = _given(group.columns, _marks(len(group.columns), len(group)))
    text = f"DELETE t FROM {given} STRAIGHT_JOIN {table.quoted(backticks)} t ON {_same_key(table, key)}"
    return text, list(chain.from_iterable(group.rows))


def _given(columns: Sequence[str], values: str) -> str:
    return f"(WITH g ({listed(columns, backticks)}) AS (VALUES {values}) SELECT * FROM g) g"


def _same_key(table: Table, key: tuple[str, ...]) -> str:
    return " AND ".join(f"t.{backticks(name)} = {_as(table, name)}" for name in key)


def _as(table: Table, name: str, *, is_exact: bool = False) -> str:
    """A given value as the column would hold it: in its character set and collation, with its decimals."""
    column = table.columns[name]
    if column.type == "decimal":
        return f"CAST(g.{backticks(name)} AS {column.full_type.partition(' ')[0]})"
    if column.charset is None:
        return f"g.{backticks(name)}"
    collation = f"{column.charset}_bin" if is_exact else column.collation
    return f"CONVERT(g.{backticks(name)} USING {column.charset}) COLLATE {collation}"


def _marks(columns: int, rows: int) -> str:
    return ", ".join([f"({', '.join(['%s'] * columns)})"] * rows)
