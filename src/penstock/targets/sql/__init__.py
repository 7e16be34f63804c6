"""Tables of PostgreSQL, MariaDB and SQLite as targets."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from penstock.targets.sql.sqlite.target import SqliteTarget
from penstock.targets.sql.table import SqlOptions

if TYPE_CHECKING:
    from penstock.targets.sql.mariadb.target import MariaDbTarget
    from penstock.targets.sql.postgres.target import PostgresTarget

__all__ = ["MariaDbTarget", "PostgresTarget", "SqlOptions", "SqliteTarget"]

# Their drivers are extras: a module is loaded when its target is first named.
NEEDS_DRIVER = {
    "MariaDbTarget": ("penstock.targets.sql.mariadb.target", "asyncmy", "mariadb"),
    "PostgresTarget": ("penstock.targets.sql.postgres.target", "asyncpg", "postgres"),
}


def __getattr__(name: str) -> Any:
    if name not in NEEDS_DRIVER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, driver, extra = NEEDS_DRIVER[name]
    try:
        return getattr(import_module(module), name)
    except ModuleNotFoundError as error:
        raise ImportError(f'{name} needs the driver {driver}: pip install "penstock[{extra}]"') from error
