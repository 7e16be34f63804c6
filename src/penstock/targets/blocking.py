"""Bulk calls for scripts that know no event loop: one call, and its result."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

from penstock.targets.from_url import open_target
from penstock.targets.model import BadInput
from penstock.targets.progress import Report
from penstock.targets.results import BulkResult
from penstock.targets.target import Target

__all__ = ["create", "delete", "update", "upsert"]


def create(
    target: Target | str, table: str, records: Iterable[Any], *, progress: Report = None, **options: Any
) -> BulkResult:
    """Create records in a table of a target, or of the database at an address."""
    return _run(target, lambda it: it.create_multiple(table, records, None, progress, **options))


def update(
    target: Target | str, table: str, records: Iterable[Any], *, progress: Report = None, **options: Any
) -> BulkResult:
    """Change records in a table of a target, or of the database at an address."""
    return _run(target, lambda it: it.update_multiple(table, records, None, progress, **options))


def upsert(
    target: Target | str, table: str, records: Iterable[Any], *, progress: Report = None, **options: Any
) -> BulkResult:
    """Change the records that exist and create the others: `upsert(url, "customers", rows, key="id")`."""
    return _run(target, lambda it: it.upsert_multiple(table, records, None, progress, **options))


def delete(
    target: Target | str, table: str, ids: Iterable[Any], *, progress: Report = None, **options: Any
) -> BulkResult:
    """Delete records by their ids."""
    return _run(target, lambda it: it.delete_multiple(table, ids, None, progress, **options))


def _run(target: Target | str, call: Callable[[Target], Awaitable[BulkResult]]) -> BulkResult:
    async def called() -> BulkResult:
        # A target that was given is closed too: its connections end with this loop, and open again in the next.
        async with open_target(target) if isinstance(target, str) else target as opened:
            return await call(opened)

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(called())
    raise BadInput("an event loop is running here: use the methods of a target, as `await target.upsert_multiple(…)`")
