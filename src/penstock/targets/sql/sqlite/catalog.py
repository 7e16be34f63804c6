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
    keys = _unique_keys(connection, [name for name, is_partial, _ in indexes if not is_partial], place)
    # Where a column is in several indexes, the one that calls more values equal counts.
    collations = dict(sorted((part for key in keys for part in key), key=lambda part: part[1] in FOLDS))
    primary = tuple(row[0] for row in sorted((row for row in listed if row[3]), key=lambda row: row[3]))
    may_replace = "REPLACE" in kind[1].upper()  # ON CONFLICT REPLACE: one new row may take the place of another
    is_row_number = bool(primary) and all(origin != "pk" for _, _, origin in indexes)  # which has no index
    return Table(
        schema=schema,
        name=plain,
        columns={
            name: Column(
                name,
                kind,
                kind,
                default,
                is_generated=hidden in GENERATED,
                fold=FOLDS.get(collations.get(name, "")),
                collation=collations.get(name),
            )
            for name, kind, default, _, hidden in listed
        },
        primary_key=primary,
        unique_keys=tuple(tuple(column for column, _ in key) for key in keys),
        has_one_key=len(indexes) + is_row_number == 1 and not (has_trigger or may_replace),
    )


def _unique_keys(connection: sqlite3.Connection, indexes: list[str], schema: str) -> list[list[tuple[str, str]]]:
    """The columns of those indexes that are over plain columns, with the collation by which each compares text."""
    keys = []
    for name in indexes:
        parts = connection.execute(
            'SELECT name, coll FROM pragma_index_xinfo(?, ?) WHERE "key" ORDER BY seqno', (name, schema)
        ).fetchall()
        if all(column is not None for column, _ in parts):  # None is an expression
            keys.append([(column, collation.upper()) for column, collation in parts])
    return keys
