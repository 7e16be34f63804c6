"""The one `metadata` that every capability's tables attach to, and the constructor that gives them the same footing."""

from __future__ import annotations

from typing import Any

from sqlalchemy import BigInteger, Column, MetaData, Table
from sqlalchemy.schema import SchemaItem

__all__ = ["VERSION_TABLE", "Serial", "metadata", "table", "table_options"]

# Not Alembic's usual name: Penstock may share a database with an application that migrates itself.
VERSION_TABLE = "penstock_version"

# A number the database gives out, rising and never given out twice.
Serial = BigInteger

metadata = MetaData(
    naming_convention={
        # No name for primary keys: MariaDB ignores one, with a warning.
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s",
        "ck": "ck_%(table_name)s_%(constraint_name)s",
    }
)


def table_options(*, is_numbered: bool) -> dict[str, Any]:
    """What each database must be told about every table; `is_numbered` when it has a `Serial` key."""
    return {
        # Without STRICT, SQLite puts text into INTEGER columns.
        "sqlite_strict": True,
        # Without AUTOINCREMENT, SQLite gives out the number of a deleted last row again.
        "sqlite_autoincrement": is_numbered,
        "mariadb_engine": "InnoDB",
        "mariadb_row_format": "DYNAMIC",
        "mariadb_default_charset": "utf8mb4",
        "mariadb_collate": "utf8mb4_nopad_bin",
    }


def table(name: str, *items: SchemaItem) -> Table:
    """A table of `metadata`, alike on all databases."""
    is_numbered = any(isinstance(item, Column) and item.autoincrement is True for item in items)
    return Table(name, metadata, *items, **table_options(is_numbered=is_numbered))
