"""What SQLite knows of a table."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import replace

from penstock.targets.sql.sqlite.values import key_fold
from penstock.targets.sql.table import Column, Table, ansi, no_such_table, split_name

__all__ = ["read_table"]

GENERATED = (2, 3)
STRICT = re.compile(r"\)[^)]*\bSTRICT\b[^)]*$", re.IGNORECASE)
"""A statement that made a table whose columns hold nothing but what they declare."""


def read_table(connection: sqlite3.Connection, name: str) -> Table:
    """The table of that name, in the main or the named database."""
    schema, plain = split_name(name)
    place = schema or "main"
    kind = connection.execute(f"SELECT type, sql FROM {ansi(place)}.sqlite_master WHERE name = ?", (plain,)).fetchone()
    if kind is None or kind[0] != "table":
        raise no_such_table(name, f"a {kind[0]}" if kind else None)
    listed = connection.execute(
        "SELECT name, type, dflt_value, pk, hidden FROM pragma_table_xinfo(?, ?)", (plain, place)
    ).fetchall()
    indexes = connection.execute(
        'SELECT name, partial, origin FROM pragma_index_list(?, ?) WHERE "unique"', (plain, place)
    ).fetchall()
    has_trigger = connection.execute(
        f"SELECT 1 FROM {ansi(place)}.sqlite_master WHERE type = 'trigger' AND tbl_name = ? COLLATE NOCASE", (plain,)
    ).fetchone()
    by_primary_first = sorted(indexes, key=lambda index: index[2] != "pk")
    keys = _unique_keys(connection, [name for name, is_partial, _ in by_primary_first if not is_partial], place)
    columns = {
        name: Column(name, kind, kind, default, is_generated=hidden in GENERATED)
        for name, kind, default, _, hidden in listed
    }
    primary = tuple(row[0] for row in sorted((row for row in listed if row[3]), key=lambda row: row[3]))
    may_replace = "REPLACE" in kind[1].upper()  # ON CONFLICT REPLACE: one new row may take the place of another
    is_strict = bool(STRICT.search(kind[1]))
    is_row_number = bool(primary) and all(origin != "pk" for _, _, origin in indexes)  # which has no index
    return Table(
        schema=schema,
        name=plain,
        columns=columns,
        primary_key=primary,
        unique_keys=tuple(tuple(collations) for collations in keys),
        has_one_key=len(indexes) + is_row_number == 1 and not (has_trigger or may_replace),
        columns_of_key=_columns_of_keys(columns, primary, keys, is_strict=is_strict),
    )


def _unique_keys(connection: sqlite3.Connection, indexes: list[str], schema: str) -> list[dict[str, str]]:
    """The columns of those indexes that are over plain columns, with the collation by which each compares texts."""
    keys = []
    for name in indexes:
        parts = connection.execute(
            'SELECT name, coll FROM pragma_index_xinfo(?, ?) WHERE "key" ORDER BY seqno', (name, schema)
        ).fetchall()
        if all(column is not None for column, _ in parts):  # None is an expression
            keys.append({column: collation.upper() for column, collation in parts})
    return keys


def _columns_of_keys(
    columns: Mapping[str, Column], primary: Sequence[str], keys: Sequence[Mapping[str, str]], *, is_strict: bool
) -> dict[frozenset[str], dict[str, Column]]:
    """The columns of every key as it compares them; the first of two indexes on the same columns counts."""
    row_number = dict.fromkeys(primary, "")  # which has no index, and so no collation
    compared: dict[frozenset[str], dict[str, Column]] = {}
    for collations in (*keys, row_number):
        compared.setdefault(
            frozenset(collations),
            {name: _compared(columns[name], collation, is_strict=is_strict) for name, collation in collations.items()},
        )
    return compared


def _compared(column: Column, collation: str, *, is_strict: bool) -> Column:
    fold, unfolded = key_fold(column.type, collation, is_strict=is_strict)
    return replace(column, fold=fold, unfolded=unfolded, collation=collation or None)
