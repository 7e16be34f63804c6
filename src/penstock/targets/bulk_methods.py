"""The four bulk calls, for whoever can start one."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from penstock.targets.model import BulkOptions, Mode

if TYPE_CHECKING:
    from penstock.targets.executor import BulkCall
    from penstock.targets.progress import Report
    from penstock.targets.results import BulkResult
    from penstock.targets.running.arguments import Records

__all__ = ["BulkMethods"]


class BulkMethods:
    """Create, update, upsert and delete many records.

    Options are laid over those of the executor: an options object, or single options by name, as `key="id"`.
    """

    start: Callable[..., BulkCall]
    """Start a bulk call and return at once; see `BulkExecutor.start`."""

    async def create_multiple(
        self, table: str, records: Records, options: BulkOptions | None = None, progress: Report = None, **changes: Any
    ) -> BulkResult:
        """Create records; the result has their ids in the order of the input."""
        return await self.start(Mode.CREATE, table, records, options, progress, **changes)

    async def update_multiple(
        self, table: str, records: Records, options: BulkOptions | None = None, progress: Report = None, **changes: Any
    ) -> BulkResult:
        """Change existing records; every record carries its id."""
        return await self.start(Mode.UPDATE, table, records, options, progress, **changes)

    async def upsert_multiple(
        self, table: str, records: Records, options: BulkOptions | None = None, progress: Report = None, **changes: Any
    ) -> BulkResult:
        """Change the records that exist and create the others; the result counts both."""
        return await self.start(Mode.UPSERT, table, records, options, progress, **changes)

    async def delete_multiple(
        self, table: str, ids: Records, options: BulkOptions | None = None, progress: Report = None, **changes: Any
    ) -> BulkResult:
        """Delete the records with these ids."""
        return await self.start(Mode.DELETE, table, ids, options, progress, **changes)
