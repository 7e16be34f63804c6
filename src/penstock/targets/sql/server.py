"""What PostgreSQL and MariaDB do alike as targets: connections in a pool, and commits whose answer may be lost."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Coroutine, Sequence
from typing import Any

from penstock.targets.model import BulkOptions, ErrorKind, Mode, TargetError, Verdict
from penstock.targets.recent_batches import RecentBatches
from penstock.targets.sql.commits import Pending, committed
from penstock.targets.sql.connections import ConnectionPool
from penstock.targets.sql.row_groups import RowGroup
from penstock.targets.sql.target import SqlTarget, TableBatch
from penstock.targets.target import Batch, Capabilities

__all__ = ["ServerTarget"]


class ServerTarget(SqlTarget):
    """A database server. A subclass sets `_pool`."""

    _pool: ConnectionPool[Any]
    _driver_errors: tuple[type[BaseException], ...]
    """What the driver raises; anything else is a bug."""

    def __init__(self, name: str, connections: int) -> None:
        super().__init__(name, connections)
        self._commits: RecentBatches[list[Pending]] = RecentBatches()
        """The transactions of a batch that were asked to commit, until the answer is known."""

    async def refresh(self, source: str) -> None:
        """Open new connections from now on, and look tables up again."""
        self._changed.update(self._tables)
        self._pool.drop_all()

    async def aclose(self) -> None:
        """Close the connections."""
        await self._pool.aclose()

    async def reconcile(self, batch: Batch, source: str) -> Sequence[Verdict | None]:
        """Ask which transactions of the batch were committed; None for a record that none of them wrote."""
        verdicts: list[Verdict | None] = [None] * len(batch)
        caught: tuple[type[BaseException], ...] = (TargetError, *self._driver_errors)
        for pending in self._commits.get(batch.key, ()):
            async with self._pool.take() as connection:
                try:
                    is_committed = await self._is_committed(connection, pending)
                except caught as error:
                    self._pool.discard(connection)
                    raise _maybe_applied(self._refusal(error)) from error
            if is_committed:
                for group, told in zip(pending.groups, pending.verdicts, strict=True):
                    for position, verdict in zip(group.positions, told, strict=True):
                        verdicts[position] = verdict
        self._commits.pop(batch.key, None)
        return verdicts

    def _capabilities(self, mode: Mode, options: BulkOptions, key: tuple[str, ...]) -> Capabilities:
        return Capabilities(can_reconcile=True, id_field=key[0] if len(key) == 1 else None)

    async def _commit(self, connection: Any, commit: Coroutine[Any, Any, Any], pending: Pending) -> None:
        """Commit what is pending. When this raises, it was refused; or nobody knows, and `reconcile` asks."""
        key = pending.work.batch.key
        self._commits[key] = [*self._commits.get(key, ()), pending]
        try:
            await committed(commit)
        except asyncio.CancelledError:
            self._pool.discard(connection)
            raise
        except self._driver_errors as error:
            refused = self._refusal(error, pending.work, pending.groups)
            if refused.kind is ErrorKind.CONNECTION:
                self._pool.discard(connection)
                raise _maybe_applied(refused) from error
            self._commits[key].pop()
            raise refused from error

    def _refusal(
        self, error: BaseException, work: TableBatch | None = None, groups: Sequence[RowGroup] = ()
    ) -> TargetError:
        """An error as a target's, about these rows where they are given; what it says is out of date is forgotten."""
        refused = error if isinstance(error, TargetError) else self._mapped(error, work, groups)
        if work is not None and (refused.kind is ErrorKind.RACE or refused.code in self._stale_codes):
            self.forget(work.batch.table)
        return refused

    _stale_codes: frozenset[str] = frozenset()
    """Codes after which what we know of the table is out of date."""

    @abstractmethod
    def _mapped(self, error: BaseException, work: TableBatch | None, groups: Sequence[RowGroup]) -> TargetError:
        """An error of the driver as a target's."""

    @abstractmethod
    async def _is_committed(self, connection: Any, pending: Pending) -> bool:
        """Whether a transaction took effect."""


def _maybe_applied(error: TargetError) -> TargetError:
    error.maybe_applied = True
    return error
