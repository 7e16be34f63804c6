"""`penstock.operations`: everything a caller can ask of operations."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from contextlib import AsyncExitStack
from datetime import datetime
from typing import Any

from penstock.blobs.store import FileStore
from penstock.clock import Clock, Entropy
from penstock.db.database import Database
from penstock.errors import NotFound
from penstock.operations import intake, queries
from penstock.operations.intake import Source
from penstock.operations.model import Event, Operation, Page
from penstock.pipeline import Definition, definition_of
from penstock.settings import Settings

__all__ = ["Operations"]


class Operations:
    """Create operations and look at them."""

    def __init__(
        self,
        db: Database,
        files: FileStore,
        settings: Settings,
        definitions: Mapping[str, Definition],
        *,
        clock: Clock,
        entropy: Entropy,
        actor: str,
    ) -> None:
        self._db, self._files, self._settings, self._definitions = db, files, settings, definitions
        self._clock, self._entropy, self._actor = clock, entropy, actor
        self._pipelines: dict[str, object] = {}
        self._stack = AsyncExitStack()

    async def close(self) -> None:
        """Close what the pipelines hold open."""
        await self._stack.aclose()

    async def create(
        self,
        operation: object,
        *,
        file: Source,
        metadata: Any = None,
        file_name: str | None = None,
        options: Mapping[str, Any] | None = None,
        created_by: str | None = None,
    ) -> Operation:
        """Take a file in for an operation, by its name or declaration. When this returns, the operation is durable."""
        definition = self.definition(operation)
        deployed = self._settings.operations.get(definition.name, {})
        new_id = await intake.create(
            self._db,
            self._files,
            definition,
            await self._pipeline(definition),
            source=file,
            file_name=file_name,
            metadata=metadata,
            overrides={**deployed, **(options or {})},
            created_by=created_by or self._actor,
            clock=self._clock,
            entropy=self._entropy,
            metadata_bytes_max=self._settings.metadata_bytes_max,
        )
        return await self.get(new_id)

    def definition(self, operation: object) -> Definition:
        """The definition of an operation given by name or declaration; it must be one of those we were opened with."""
        name = operation if isinstance(operation, str) else definition_of(operation).name
        try:
            return self._definitions[name.casefold()]
        except KeyError:
            known = ", ".join(sorted(d.name for d in self._definitions.values())) or "none"
            raise NotFound(f"no operation is called {name!r}; known are: {known}") from None

    async def get(self, operation: str) -> Operation:
        """The operation with this id."""
        async with self._db.read() as tx:
            return await queries.get(tx, operation)

    async def list(
        self,
        *,
        name: str | None = None,
        status: Iterable[str] | None = None,
        created_by: str | None = None,
        created_from: datetime | None = None,
        created_to: datetime | None = None,
        sort: str = "created_at",
        descending: bool = True,
        cursor: str | None = None,
        limit: int = 20,
    ) -> Page[Operation]:
        """Operations that match, newest first unless told otherwise."""
        async with self._db.read() as tx:
            return await queries.list_operations(
                tx,
                name=name,
                status=status,
                created_by=created_by,
                created_from=created_from,
                created_to=created_to,
                sort=sort,
                descending=descending,
                cursor=cursor,
                limit=min(limit, self._settings.page_max),
            )

    async def events(self, operation: str | None = None, *, since: int = 0, limit: int = 100) -> list[Event]:
        """Moves of one operation, or of all, oldest first."""
        async with self._db.read() as tx:
            return await queries.events(tx, operation=operation, since=since, limit=limit)

    async def wait(self, operation: str, *, every_s: float = 0.25) -> Operation:
        """Watch until the operation is settled; somebody else does the work."""
        while not (now := await self.get(operation)).is_settled:
            await asyncio.sleep(every_s)
        return now

    async def _pipeline(self, definition: Definition) -> object:
        if definition.name not in self._pipelines:
            self._pipelines[definition.name] = await self._stack.enter_async_context(definition.lifespan())
        return self._pipelines[definition.name]
