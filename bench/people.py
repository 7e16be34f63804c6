"""The table that upserts are measured on; half of the records are in it already. Nothing here imports Penstock."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

__all__ = ["BATCH", "CHANGED", "COLUMNS", "Record", "batches", "check", "fill", "record", "table"]

Record = dict[str, Any]
BATCH = 10_000

table = sa.Table(
    "people",
    sa.MetaData(),
    sa.Column("id", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("email", sa.String(100)),
    sa.Column("name", sa.String(100)),
    sa.Column("amount", sa.Double),
    sa.Column("quantity", sa.Integer),
)
COLUMNS = tuple(column.name for column in table.columns)
CHANGED = COLUMNS[1:]
ANALYZE = {"mysql": "ANALYZE TABLE people", "mariadb": "ANALYZE TABLE people"}


def record(n: int) -> Record:
    """The nth record."""
    return {
        "id": n,
        "email": f"user{n}@example.com",
        "name": f"First{n % 997} Last{n % 1009}",
        "amount": n * 37 % 100_000 / 100,
        "quantity": n % 50,
    }


def batches(records: list[Record]) -> list[list[Record]]:
    """The records in batches."""
    return [records[start : start + BATCH] for start in range(0, len(records), BATCH)]


def fill(connection: sa.Connection, rows: int) -> None:
    """Make the table, with every other record in it."""
    table.create(connection)
    for some in batches([record(n) | {"quantity": -1} for n in range(1, rows + 1, 2)]):
        connection.execute(sa.insert(table), some)
    connection.exec_driver_sql(ANALYZE.get(connection.dialect.name, "ANALYZE people")).close()


def check(connection: sa.Connection, rows: int) -> None:
    """Refuse wrong results."""
    found = connection.execute(sa.select(sa.func.count(), sa.func.min(table.c.quantity))).one()
    assert tuple(found) == (rows, 0), f"{found[0]:,} of {rows:,} records, the least quantity is {found[1]}"
