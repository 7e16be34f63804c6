"""What MariaDB knows of a table."""

from __future__ import annotations

import re
from decimal import Decimal
from typing import Any

from penstock.targets.model import ErrorKind, TargetError
from penstock.targets.sql.table import Column, Table, no_such_table, split_name
from penstock.targets.sql.values import (
    Step,
    approximate,
    as_uuid,
    caseless,
    decimal,
    if_possible,
    lower,
    rounded,
    single,
    unpadded,
    whole,
)

__all__ = ["read_table"]

WHERE = "WHERE table_schema = COALESCE(%s, DATABASE()) AND table_name = %s"
TABLE = (
    "SELECT table_schema, table_name, table_type, engine, (SELECT e.transactions FROM information_schema.engines e "
    f"WHERE e.engine = t.engine), @@max_allowed_packet FROM information_schema.tables t {WHERE}"
)
COLUMNS = (
    "SELECT column_name, data_type, column_type, extra, generation_expression, "
    "character_set_name, collation_name, is_nullable "
    f"FROM information_schema.columns {WHERE} ORDER BY ordinal_position"
)
# A prefix index (sub_part) compares beginnings only, so it is no key for us.
KEYS = (
    "SELECT index_name, column_name, sub_part FROM information_schema.statistics "
    f"{WHERE} AND non_unique = 0 ORDER BY index_name, seq_in_index"
)

NUMERIC = ("tinyint", "smallint", "mediumint", "int", "bigint", "decimal", "float", "double", "bit", "year")
SPELLED_ONE_WAY = frozenset((*NUMERIC, "uuid")) - {"year"}
"""Types of which the fold tells values apart exactly as the server does, as it does texts compared by their bytes."""
NUMBERS = (int, float, Decimal)
FROM_TEXT = {kind: if_possible(whole) for kind in NUMERIC} | {
    "decimal": if_possible(decimal),
    "float": if_possible(approximate),
    "double": if_possible(approximate),
}
FOLDS: dict[str, Step] = {"uuid": as_uuid, "float": single}
SCALE = re.compile(r",(\d+)\)")


async def read_table(connection: Any, name: str) -> Table:
    """The table of that name, in the connection's database or the named one."""
    given = split_name(name)
    async with connection.cursor() as cursor:
        await cursor.execute(TABLE, given)
        found = await cursor.fetchone()
        await cursor.execute(COLUMNS, given)
        columns = {row[0]: _column(row) for row in await cursor.fetchall()}
        await cursor.execute(KEYS, given)
        listed = await cursor.fetchall()
    if found is None:
        raise no_such_table(name)
    if found[2] != "BASE TABLE":
        raise no_such_table(name, f"a {str(found[2]).lower()}")
    if found[4] != "YES":
        raise TargetError(
            f"table {name!r} is kept by {found[3]}, which has no transactions; InnoDB has them",
            kind=ErrorKind.UNSUPPORTED,
            code="NO_TRANSACTIONS",
        )
    partial = {index for index, _, prefix in listed if prefix is not None}
    keys: dict[str, tuple[str, ...]] = {}
    for index, column, _ in listed:
        if index not in partial:
            keys[index] = (*keys.get(index, ()), column)
    return Table(
        schema=found[0],
        name=found[1],
        columns=columns,
        primary_key=keys.get("PRIMARY", ()),
        unique_keys=tuple(keys.values()),
        statement_bytes_max=found[5],
        key_names=keys,
    )


def _column(found: tuple[Any, ...]) -> Column:
    name, kind, full, extra, generation, charset, collation, nullable = found
    return Column(
        name,
        kind,
        full,
        takes_null=nullable == "YES",
        is_generated=bool(generation) or "GENERATED" in extra.upper(),
        # MariaDB would take any text as the number 0, and so find the wrong row.
        key_types=NUMBERS if kind in NUMERIC else (),
        from_text=FROM_TEXT.get(kind),
        charset=charset,
        collation=collation,
        fold=_fold(kind, full, collation),
        is_loose=kind not in SPELLED_ONE_WAY and not (collation or "").endswith("_bin"),
    )


def _fold(kind: str, full: str, collation: str | None) -> Step | None:
    """How the column compares, where Python compares otherwise."""
    if kind == "decimal" and (scale := SCALE.search(full)):
        return rounded(int(scale[1]))
    if collation is None:
        return FOLDS.get(kind)
    letters = (lower if "_as_" in collation else caseless) if "_ci" in collation else None
    if "nopad" in collation:
        return letters
    return unpadded if letters is None else lambda value: unpadded(letters(value))
