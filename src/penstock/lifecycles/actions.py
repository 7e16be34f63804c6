"""What a caller can do to an instance beside triggering events: flags, data, forced states, deletion, migration."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from penstock.db.unit import UnitOfWork, joined
from penstock.errors import InvalidInput
from penstock.lifecycles import acting, migrating
from penstock.lifecycles.changes import Stamp, checked_data
from penstock.lifecycles.definitions import Definitions, VersionName
from penstock.lifecycles.model import Instance, Migration
from penstock.lifecycles.states import LogFlag

__all__ = ["InstanceActions"]


class InstanceActions(Definitions):
    """The instances of one tenant, changed by people rather than by events."""

    async def suspend(self, instance: str | int, *, actor: str | None = None, cause: str | None = None) -> Instance:
        """Let an instance take no event until it is resumed."""
        return await self._act(instance, "suspend", actor, cause)

    async def resume(self, instance: str | int, *, actor: str | None = None, cause: str | None = None) -> Instance:
        """Let a suspended instance go on."""
        return await self._act(instance, "resume", actor, cause)

    async def complete(self, instance: str | int, *, actor: str | None = None, cause: str | None = None) -> Instance:
        """Mark an instance as completed; its other flags and its state stay."""
        return await self._act(instance, "complete", actor, cause)

    async def fail(self, instance: str | int, *, actor: str | None = None, cause: str | None = None) -> Instance:
        """Mark an instance as failed; its other flags and its state stay."""
        return await self._act(instance, "fail", actor, cause)

    async def archive(self, instance: str | int, *, actor: str | None = None, cause: str | None = None) -> Instance:
        """Mark an instance as archived; its other flags and its state stay."""
        return await self._act(instance, "archive", actor, cause)

    async def reopen(self, instance: str | int, *, actor: str | None = None, cause: str | None = None) -> Instance:
        """Make an instance active again that was completed or has failed; its state stays."""
        return await self._act(instance, "reopen", actor, cause)

    async def force(
        self,
        instance: str | int,
        state: str,
        *,
        cause: str,
        actor: str | None = None,
        tx: UnitOfWork | None = None,
    ) -> Instance:
        """Put an instance into a state whatever its table says, for administrators; the log says so, and why."""
        if not cause.strip():
            raise InvalidInput("say why: the log of a forced state has a cause")
        return await acting.force(
            self._scope, instance, state, self._stamp(actor, cause, flags=LogFlag.MANUAL), joined(tx)
        )

    async def change_data(
        self,
        instance: str | int,
        changes: Mapping[str, Any],
        *,
        revision: int | None = None,
        actor: str | None = None,
        cause: str | None = None,
        tx: UnitOfWork | None = None,
    ) -> Instance:
        """Set fields of an instance's data, and remove those that are None; `revision` is the one you looked at."""
        return await acting.change_data(
            self._scope, instance, changes, self._stamp(actor, cause), revision=revision, tx=joined(tx)
        )

    async def delete(
        self, instance: str | int, *, force: bool = False, actor: str | None = None, cause: str | None = None
    ) -> None:
        """Delete an instance with its log. Archiving is better; one that has not ended needs `force`."""
        await acting.delete_instance(self._scope, instance, force=force, actor=actor or self._scope.actor, cause=cause)

    async def migrate(
        self,
        definition: str | int,
        *,
        source: str | int,
        target: VersionName = None,
        states: Mapping[str, str] | None = None,
        environment: str | int | None = None,
        dry_run: bool = False,
        actor: str | None = None,
        cause: str | None = None,
    ) -> Migration:
        """Move all instances of a version to another one; `states` maps those whose names have changed.

        A dry run says how many would go from where to where, and every fault; with a fault nothing moves.
        """
        async with self._scope.db.read() as tx:
            before = await self._graph(tx, definition, source, environment)
            after = await self._graph(tx, definition, target, environment)
        if before.version.id == after.version.id:
            raise InvalidInput(f"source and target are both {before.version.title}")
        stamp = self._stamp(actor, cause)
        return await migrating.migrate(self._scope, before, after, states or {}, stamp, dry_run=dry_run)

    async def _act(self, instance: str | int, action: str, actor: str | None, cause: str | None) -> Instance:
        return await acting.act(self._scope, instance, action, self._stamp(actor, cause))

    def _stamp(
        self,
        actor: str | None,
        cause: str | None = None,
        correlation: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        *,
        flags: LogFlag = LogFlag.NONE,
        request_key: str | None = None,
    ) -> Stamp:
        checked = checked_data(metadata, "metadata")
        return Stamp(actor or self._scope.actor, cause, correlation, request_key, checked, flags)
