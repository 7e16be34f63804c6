"""What PostgreSQL and MariaDB do alike as targets: connections in a pool, transactions, and commits.

The caller of a commit may stop waiting, and its answer may never come.
"""

from __future__ import annotations

import asyncio
import re
from abc import abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any, TypeAlias
from urllib.parse import SplitResult, urlsplit

from penstock.targets.model import ErrorKind, TargetError, Verdict
from penstock.targets.sql.connections import ConnectionPool
from penstock.targets.sql.keys import KeysAlike
from penstock.targets.sql.row_groups import RowGroup, alike_apart, as_laid_out, by_position
from penstock.targets.sql.table import Table
from penstock.targets.sql.target import GroupVerdicts, SqlTarget, TableBatch, with_ids
from penstock.targets.target import Batch, RecentBatches

__all__ = ["CANCEL_S", "UNDO_S", "Pending", "ServerTarget", "WriteGroup", "parts_of_address"]

WriteGroup: TypeAlias = Callable[[Any, TableBatch, RowGroup], Awaitable[tuple[str, Sequence[Verdict]]]]
"""Writes a group: gives the transaction's id, if it has one, and verdicts in the order of the rows."""
UNDO_S = 10.0
"""How long the end of a transaction or of a connection may take."""
CANCEL_S = 2.0
"""How long a cancelled call still waits for a commit or a rollback."""


HOST = re.compile(r"(\[[^\]]*\]|[^:]*)(:\d*)?")


def parts_of_address(url: str, schemes: Collection[str]) -> SplitResult | None:
    """What the address of a server is made of; None when it is none.

    An unencoded `/` in a password ends the name of the host: what stands there then is no port, and is never shown.
    """
    with suppress(ValueError):
        parts = urlsplit(url)
        hosts = parts.netloc.rpartition("@")[2].split(",")
        if parts.scheme.partition("+")[0] in schemes and all(map(HOST.fullmatch, hosts)):
            return parts
    return None


async def _committed(commit: Coroutine[Any, Any, Any]) -> None:
    """Await a commit. Who is cancelled meanwhile still gets its answer if it comes soon: it tells what became of it."""
    answer = asyncio.ensure_future(commit)
    try:
        await asyncio.shield(answer)
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is None or not task.cancelling():
            raise
        if not (await asyncio.wait([answer], timeout=CANCEL_S))[0]:
            answer.cancel()
            raise
        task.uncancel()
        answer.result()


@dataclass(frozen=True, slots=True)
class Pending:
    """What a transaction will have done if it committed."""

    work: TableBatch
    groups: Sequence[RowGroup]
    verdicts: Sequence[Sequence[Verdict]]
    transaction_id: str = ""
    """What the server calls the transaction, where it can be asked about it."""


class ServerTarget(SqlTarget):
    """A database server. A subclass sets what is declared here."""

    _pool: ConnectionPool[Any]
    _driver_errors: tuple[type[BaseException], ...]
    """What the driver raises; anything else is a bug."""
    _begin = "BEGIN"
    _describe: Callable[[Any, str], Awaitable[Table]]
    _write_group: WriteGroup
    _ids_in_table: Callable[[Any, TableBatch, RowGroup], Awaitable[Mapping[int, Any]]]
    """The primary keys of an upsert's rows by their places in the group, when it went by another key."""

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
        found: dict[int, Verdict] = {}
        caught: tuple[type[BaseException], ...] = (TargetError, *self._driver_errors)
        for pending in self._commits.get(batch.key, ()):
            async with self._pool.take() as connection:
                try:
                    is_committed = await self._is_committed(connection, pending)
                except caught as error:
                    self._pool.discard(connection)
                    raise self._refusal(error).but(maybe_applied=True) from error
            if is_committed:
                found |= by_position(pending.groups, pending.verdicts)
        self._commits.pop(batch.key, None)
        return [found.get(position) for position in range(len(batch))]

    async def _read_table(self, name: str) -> Table:
        async with self._pool.take() as connection:
            try:
                return await self._describe(connection, name)
            except self._driver_errors as error:
                self._pool.discard(connection)
                raise self._refusal(error) from error

    async def _write(self, work: TableBatch) -> GroupVerdicts:
        async with self._attempt(work) as connection:
            try:
                return await self._transact(connection, work, work.layout.groups, self._write_group)
            except KeysAlike as found:
                return await self._write_alike(connection, work, set(found.suspects))

    async def _write_alike(self, connection: Any, work: TableBatch, alike: set[int]) -> GroupVerdicts:
        """The same, with the records at these positions one by one in their order, since they mean the same rows."""
        while True:
            groups = alike_apart(work.layout.groups, work.table, work.key, alike)
            try:
                verdicts = await self._transact(connection, work, groups, self._write_group)
            except KeysAlike as found:
                alike |= set(found.suspects)  # never those that are alone
            else:
                return as_laid_out(work.layout.groups, by_position(groups, verdicts))

    @asynccontextmanager
    async def _attempt(self, work: TableBatch) -> AsyncIterator[Any]:
        """A connection to write a batch; when that went well, nothing need be asked of it any more."""
        self._commits.pop(work.batch.key, None)
        async with self._pool.take() as connection:
            yield connection
        self._commits.pop(work.batch.key, None)

    async def _transact(
        self, connection: Any, work: TableBatch, groups: Sequence[RowGroup], write: WriteGroup
    ) -> list[Sequence[Verdict]]:
        """Write groups in one transaction. When this ends in any way, the transaction has ended or soon will."""
        verdicts: list[Sequence[Verdict]] = []
        transaction_id = ""
        caught: tuple[type[BaseException], ...] = (TargetError, *self._driver_errors)
        try:
            await self._execute(connection, self._begin)
            for group in groups:
                transaction_id, told = await write(connection, work, group)
                ids = await self._ids_in_table(connection, work, group) if work.foreign_ids else None
                verdicts.append(with_ids(work, group, told, ids))
        except caught as error:
            await self._undo(connection)
            raise self._refusal(error, work, groups[len(verdicts) :][:1]) from error
        await self._commit(connection, Pending(work, groups, verdicts, transaction_id))
        return verdicts

    def _can_reconcile(self, key: tuple[str, ...]) -> bool:
        return True

    async def _undo(self, connection: Any, patience_s: float = UNDO_S) -> None:
        """Roll back; a connection that cannot even do that is dropped."""
        try:
            async with asyncio.timeout(patience_s):
                await self._execute(connection, "ROLLBACK")
        except self._driver_errors:
            self._pool.discard(connection)

    async def _commit(self, connection: Any, pending: Pending) -> None:
        """Commit what is pending. When this raises, it was refused; or nobody knows, and `reconcile` asks."""
        key = pending.work.batch.key
        self._commits[key] = [*self._commits.get(key, ()), pending]
        try:
            await _committed(self._execute(connection, "COMMIT"))
        except asyncio.CancelledError:
            self._pool.discard(connection)
            raise
        except self._driver_errors as error:
            refused = self._refusal(error, pending.work, pending.groups)
            if refused.kind is ErrorKind.CONNECTION:
                self._pool.discard(connection)
                raise refused.but(maybe_applied=True) from error
            self._commits[key].pop()
            raise refused from error

    def _refusal(
        self, error: BaseException, work: TableBatch | None = None, groups: Sequence[RowGroup] = ()
    ) -> TargetError:
        """An error as a target's, about these rows where they are given."""
        return error if isinstance(error, TargetError) else self._mapped(error, work, groups)

    @abstractmethod
    async def _execute(self, connection: Any, statement: str) -> None:
        """Begin or end a transaction."""

    @abstractmethod
    def _mapped(self, error: BaseException, work: TableBatch | None, groups: Sequence[RowGroup]) -> TargetError:
        """An error of the driver as a target's."""

    @abstractmethod
    async def _is_committed(self, connection: Any, pending: Pending) -> bool:
        """Whether a transaction took effect."""
