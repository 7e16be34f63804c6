"""What SQLite knows of a table."""

from __future__ import annotations

import sqlite3
from string import ascii_lowercase, ascii_uppercase

from penstock.targets.sql.table import Column, Table, ansi, no_such_table, split_name
from penstock.targets.sql.values import Step, unpadded

__all__ = ["read_table"]

ASCII_LOWER = str.maketrans(ascii_uppercase, ascii_lowercase)
FOLDS: dict[str, Step] = {
    "NOCASE": lambda value: value.translate(ASCII_LOWER) if isinstance(value, str) else value,
    "RTRIM": unpadded,
}
GENERATED = (2, 3)


def read_table(connection: sqlite3.Connection, name: str) -> Table:
    """The table of that name, in the main or the named database."""
    schema, plain = split_name(name)
    place = schema or "main"
    kind = connection.execute(f"SELECT type FROM {ansi(place)}.sqlite_master WHERE name = ?", (plain,)).fetchone()
    if kind is None or kind[0] != "table":
        raise no_such_table(name, f"a {kind[0]}" if kind else None)
    listed = connection.execute(
        "SELECT name, type, dflt_value, pk, hidden FROM pragma_table_xinfo(?, ?)", (plain, place)
    ).fetchall()
    keys = _unique_keys(connection, plain, place)
    folds = {column: fold for key in keys for column, fold in key}
    primary = tuple(row[0] for row in sorted((row for row in listed if row[3]), key=lambda row: row[3]))
    return Table(
        schema=schema,
        name=plain,
        columns={
            name: Column(name, kind, kind, default, is_generated=hidden in GENERATED, fold=folds.get(name))
            for name, kind, default, _, hidden in listed
        },
        primary_key=primary,
        unique_keys=tuple(tuple(column for column, _ in key) for key in keys),
    )


def _unique_keys(connection: sqlite3.Connection, table: str, schema: str) -> list[list[tuple[str, Step | None]]]:
    """The columns of unique indexes over whole tables and plain columns, with how each compares text."""
    names = connection.execute(
        'SELECT name FROM pragma_index_list(?, ?) WHERE "unique" AND NOT partial', (table, schema)
    ).fetchall()
    keys = []
    for (name,) in names:
        parts = connection.execute(
            'SELECT name, coll FROM pragma_index_xinfo(?, ?) WHERE "key" ORDER BY seqno', (name, schema)
        ).fetchall()
        if all(column is not None for column, _ in parts):  # None is an expression
            keys.append([(column, FOLDS.get(collation.upper())) for column, collation in parts])
    return keys
