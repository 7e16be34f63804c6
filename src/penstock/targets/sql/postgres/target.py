"""Tables of PostgreSQL 13 and later as a target."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeAlias

from penstock.targets.model import BulkOptions, ErrorKind, Mode, Outcome, TargetError, Verdict
from penstock.targets.sql.cancelling import CANCEL_S, committed
from penstock.targets.sql.connections import ConnectionPool
from penstock.targets.sql.postgres.catalog import read_table
from penstock.targets.sql.postgres.commits import Commits, Pending
from penstock.targets.sql.postgres.error_codes import STALE
from penstock.targets.sql.postgres.error_mapping import DRIVER_ERRORS, refusal, refusal_of_rows
from penstock.targets.sql.postgres.row_by_row import portions, without_wrong_types, write_rows
from penstock.targets.sql.postgres.session import UNDO_S, begin, close, connect_to, drop, undo
from penstock.targets.sql.postgres.writing import plan_for, write_group
from penstock.targets.sql.row_groups import RowGroup
from penstock.targets.sql.table import Table
from penstock.targets.sql.target import SqlTarget, TableBatch, Written
from penstock.targets.target import Batch, Capabilities

__all__ = ["PostgresTarget"]

WriteGroup: TypeAlias = Callable[[Any, TableBatch, RowGroup], Awaitable[tuple[str, Sequence[Verdict]]]]


class PostgresTarget(SqlTarget):
    """A PostgreSQL database. Needs `pip install "penstock[postgres]"`.

    Timeouts hold for each batch's transaction and leave the session alone, so that poolers can be used. `connect` is
    passed on to `asyncpg.connect`. With `synchronous_commit=False` a crash of the server may lose batches it confirmed.
    """

    def __init__(
        self,
        dsn: str,
        *,
        connections: int = 4,
        application_name: str = "penstock",
        statement_timeout_s: float = 60.0,
        lock_timeout_s: float = 10.0,
        idle_timeout_s: float = 60.0,
        synchronous_commit: bool = True,
        connect: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__("PostgreSQL", connections)
        settings = {
            "server_settings": {"application_name": application_name},
            # Should the server vanish without a word, its own timeouts do not help.
            "command_timeout": statement_timeout_s + UNDO_S if statement_timeout_s else None,
            **(connect or {}),
        }
        self._begin = begin(statement_timeout_s, lock_timeout_s, idle_timeout_s, synchronous_commit)
        self._commits = Commits()
        self._pool: ConnectionPool[Any] = ConnectionPool(
            connections,
            connect=lambda: connect_to(dsn, settings),
            close=close,
            drop=drop,
            is_alive=lambda connection: not connection.is_closed(),
        )

    async def refresh(self, source: str) -> None:
        """Open new connections from now on, and look tables up again."""
        self._changed.update(self._tables)
        self._pool.drop_all()

    async def aclose(self) -> None:
        """Close the connections."""
        await self._pool.aclose()

    async def reconcile(self, batch: Batch, source: str) -> Sequence[Verdict | None]:
        """Ask the server whether the batch's transaction was committed."""
        async with self._pool.take() as connection:
            try:
                return await self._commits.settle(connection, batch.key, len(batch))
            except DRIVER_ERRORS as error:
                raise _may_have_been(refusal(error)) from error

    def _capabilities(self, mode: Mode, options: BulkOptions, key: tuple[str, ...]) -> Capabilities:
        return Capabilities(can_reconcile=True, id_field=key[0] if len(key) == 1 else None)

    async def _read_table(self, name: str) -> Table:
        async with self._pool.take() as connection:
            try:
                return await read_table(connection, name)
            except DRIVER_ERRORS as error:
                raise refusal(error) from error

    async def _write(self, work: TableBatch) -> Written:
        self._commits.forget(work.batch.key)
        async with self._pool.take() as connection:
            verdicts = await self._transact(connection, work, work.layout.groups, write_group)
        self._commits.forget(work.batch.key)
        return Written(verdicts, counts_exact=_is_exact(connection, work))

    async def _write_each(self, work: TableBatch) -> Written:
        self._commits.forget(work.batch.key)
        told, fitting = without_wrong_types(work)
        async with self._pool.take() as connection:
            for portion in portions(fitting):
                told.update(await self._portion(connection, work, portion))
        self._commits.forget(work.batch.key)
        verdicts = [[told[position] for position in group.positions] for group in work.layout.groups]
        return Written(verdicts, counts_exact=_is_exact(connection, work))

    async def _portion(self, connection: Any, work: TableBatch, portion: Sequence[RowGroup]) -> dict[int, Verdict]:
        """A few rows in one transaction; if they cannot even be sent together, each in its own."""
        try:
            told = await self._transact(connection, work, portion, write_rows)
        except TargetError as error:
            if error.kind is not ErrorKind.DATA:
                error.maybe_applied |= self._commits.has(work.batch.key)
                raise
            rows = [group.pick([n]) for group in portion for n in range(len(group))]
            if len(rows) == 1:
                return {rows[0].positions[0]: Verdict(Outcome.FAILED, error=error)}
            alone = [await self._portion(connection, work, [row]) for row in rows]
            return {position: verdict for one in alone for position, verdict in one.items()}
        return {
            position: verdict
            for group, verdicts in zip(portion, told, strict=True)
            for position, verdict in zip(group.positions, verdicts, strict=True)
        }

    async def _transact(
        self, connection: Any, work: TableBatch, groups: Sequence[RowGroup], write: WriteGroup
    ) -> Sequence[Sequence[Verdict]]:
        """Write groups in one transaction. When this ends in any way, the transaction has ended too."""
        verdicts: list[Sequence[Verdict]] = []
        xid = ""
        try:
            await connection.execute(self._begin)
            for group in groups:
                xid, told = await write(connection, work, group)
                verdicts.append(told)
        except TargetError:
            await undo(connection)
            raise
        except DRIVER_ERRORS as error:
            await undo(connection)
            raise self._refused(error, work, groups[len(verdicts) :][:1]) from error
        except asyncio.CancelledError:
            await undo(connection, CANCEL_S)
            raise
        self._commits.note(work.batch.key, Pending(xid, groups, verdicts))
        await self._commit(connection, work, groups)
        return verdicts

    async def _commit(self, connection: Any, work: TableBatch, groups: Sequence[RowGroup]) -> None:
        try:
            await committed(connection.execute("COMMIT", timeout=UNDO_S))
        except asyncio.CancelledError:
            self._pool.discard(connection)
            raise
        except DRIVER_ERRORS as error:
            refused = self._refused(error, work, groups)
            if refused.kind is ErrorKind.CONNECTION:
                self._pool.discard(connection)
                raise _may_have_been(refused) from error
            self._commits.drop_last(work.batch.key)
            raise refused from error

    def _refused(self, error: BaseException, work: TableBatch, groups: Sequence[RowGroup]) -> TargetError:
        refused = refusal_of_rows(error, groups, work.table)
        if refused.code in STALE or refused.kind is ErrorKind.RACE:
            self.forget(work.batch.table)
        return refused


def _is_exact(connection: Any, work: TableBatch) -> bool:
    """Whether new rows were told from old ones by the server, not by a look before."""
    return work.mode is not Mode.UPSERT or not plan_for(connection, work, work.layout.groups[0]).reads_before


def _may_have_been(error: TargetError) -> TargetError:
    error.maybe_applied = True
    return error
