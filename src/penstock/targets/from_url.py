"""A target by its address alone."""

from __future__ import annotations

from importlib import import_module
from typing import Any
from urllib.parse import urlsplit

from penstock.targets.model import BadInput
from penstock.targets.target import Target

__all__ = ["open_target"]

CLASSES = {
    "postgresql": "PostgresTarget",
    "postgres": "PostgresTarget",
    "mariadb": "MariaDbTarget",
    "mysql": "MariaDbTarget",
    "sqlite": "SqliteTarget",
}
ADDRESSES = "postgresql://user:password@host/name, mariadb://user:password@host/name or sqlite:///shop.db"


def open_target(url: str, **settings: Any) -> Target:
    """The database at an address as a target; `settings` are those of its class. Close it, or use `async with`."""
    scheme = urlsplit(url).scheme.partition("+")[0]
    if scheme in ("http", "https"):
        raise BadInput(f"{scheme} does not say how records are sent there: make a DataverseTarget or an HttpTarget")
    if scheme not in CLASSES:
        raise BadInput(f"the address of a target is {ADDRESSES}")
    made: Target = getattr(import_module("penstock.targets.sql"), CLASSES[scheme])(url, **settings)
    return made
