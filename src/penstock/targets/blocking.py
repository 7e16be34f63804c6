"""Bulk calls for scripts that know no event loop, and targets by their address alone."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from importlib import import_module
from typing import Any, TypeAlias

from penstock.targets.executor import BulkExecutor
from penstock.targets.model import BadInput
from penstock.targets.progress import Report
from penstock.targets.results import BulkResult
from penstock.targets.target import Target

__all__ = ["create", "delete", "open_target", "update", "upsert"]

AnyTarget: TypeAlias = Target | str
"""A target, or the address of a database."""
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
    scheme = url.partition(":")[0].partition("+")[0].lower()
    if scheme in ("http", "https"):
        raise BadInput(f"{scheme} does not say how records are sent there: make a DataverseTarget or an HttpTarget")
    if scheme not in CLASSES:
        raise BadInput(f"the address of a target is {ADDRESSES}")
    made: Target = getattr(import_module("penstock.targets.sql"), CLASSES[scheme])(url, **settings)
    return made


def create(
    target: AnyTarget, table: str, records: Iterable[Any], *, progress: Report = None, **options: Any
) -> BulkResult:
    """Create records in a table of a target, or of the database at an address."""
    return _run(target, lambda it: it.create_multiple(table, records, None, progress, **options))


def update(
    target: AnyTarget, table: str, records: Iterable[Any], *, progress: Report = None, **options: Any
) -> BulkResult:
    """Change records in a table of a target, or of the database at an address."""
    return _run(target, lambda it: it.update_multiple(table, records, None, progress, **options))


def upsert(
    target: AnyTarget, table: str, records: Iterable[Any], *, progress: Report = None, **options: Any
) -> BulkResult:
    """Change the records that exist and create the others: `upsert(url, "customers", rows, key="id")`."""
    return _run(target, lambda it: it.upsert_multiple(table, records, None, progress, **options))


def delete(target: AnyTarget, table: str, ids: Iterable[Any], *, progress: Report = None, **options: Any) -> BulkResult:
    """Delete records by their ids."""
    return _run(target, lambda it: it.delete_multiple(table, ids, None, progress, **options))


def _run(target: AnyTarget, call: Callable[[BulkExecutor], Awaitable[BulkResult]]) -> BulkResult:
    async def called() -> BulkResult:
        # A target that was given is closed too: its connections end with this loop, and open again in the next.
        async with open_target(target) if isinstance(target, str) else target as opened:
            return await call(BulkExecutor(opened))

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(called())
    raise BadInput("an event loop is running here: use the methods of a target, as `await target.upsert_multiple(…)`")
