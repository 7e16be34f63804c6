"""Tables of a SQLite file as a target."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import TypeAlias, TypeVar

from penstock.targets.model import JUDGED, BadInput, ErrorKind, Outcome, TargetError, Verdict
from penstock.targets.sql.row_groups import RowGroup
from penstock.targets.sql.sqlite.catalog import read_table
from penstock.targets.sql.sqlite.error_codes import refusal
from penstock.targets.sql.sqlite.values import CONVERTERS
from penstock.targets.sql.sqlite.writing import GroupWriter
from penstock.targets.sql.table import Table
from penstock.targets.sql.target import GroupVerdicts, SqlTarget, TableBatch, with_ids

__all__ = ["SqliteTarget"]

T = TypeVar("T")
WriteGroup: TypeAlias = Callable[[GroupWriter, RowGroup], Sequence[Verdict]]
MEMORY = ":memory:"
ERRORS = (sqlite3.Error, OverflowError, UnicodeError)


def checked_path(written: str | Path) -> str:
    """The path of a file, also from `sqlite:///path`; its folder must be there."""
    path = str(written)
    if path.startswith("sqlite"):
        scheme, separator, rest = path.partition("://")
        if separator and scheme.partition("+")[0] == "sqlite":
            path = rest.removeprefix("/").partition("?")[0]
    if not path or "://" in path:
        raise BadInput("a SQLite database is named by its file, shop.db or sqlite:///shop.db")
    if path != MEMORY and (Path(path).is_dir() or not Path(path).parent.is_dir()):
        raise BadInput(
            f"{path} cannot be a SQLite file: "
            + ("it is a folder" if Path(path).is_dir() else "its folder is not there")
        )
    return path


class SqliteTarget(SqlTarget):
    """A SQLite file. It has one writer at a time, so batches go one after the other, in a thread of their own.

    An answer is never lost, so there is nothing to reconcile: a batch that failed has changed nothing.
    """

    _converters = CONVERTERS

    def __init__(self, path: str | Path, *, busy_timeout_s: float = 10.0, foreign_keys: bool = True) -> None:
        super().__init__("SQLite", connections=1)
        path = checked_path(path)
        self._path, self._busy_timeout_s, self._foreign_keys = path, busy_timeout_s, foreign_keys
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="penstock-sqlite")
        """One for all event loops; it is started by the first job, and ends with the target."""
        self._connection: sqlite3.Connection | None = None

    async def refresh(self, source: str) -> None:
        """Open the file anew, and look tables up again."""
        self._changed.update(self._tables)
        await self._run(self._close)

    async def aclose(self) -> None:
        """Close the file."""
        if self._connection is not None:
            await self._run(self._close)

    async def _read_table(self, name: str) -> Table:
        return await self._run(lambda: read_table(self._open(), name))

    async def _write(self, work: TableBatch) -> GroupVerdicts:
        return await self._run(lambda: self._transact(work, work.layout.groups, self._write_group), is_write=True)

    async def _write_each(self, work: TableBatch) -> GroupVerdicts:
        return await self._run(lambda: self._each(work), is_write=True)

    async def _run(self, job: Callable[[], T], *, is_write: bool = False) -> T:
        """Run a job in the thread. When this ends, the job has ended too.

        Who is cancelled meanwhile still hears what was written; the error that is the cause says that nothing was.
        """
        submitted = self._thread.submit(job)
        running = asyncio.wrap_future(submitted)
        try:
            return await asyncio.shield(running)
        except asyncio.CancelledError as cancelled:
            if not submitted.cancel():  # it has begun
                if self._connection is not None:
                    self._connection.interrupt()
                await asyncio.wait([running])
                task = asyncio.current_task()
                if running.exception() is None and is_write and task is not None and task.cancelling():
                    task.uncancel()
                    return running.result()
            raise cancelled from TargetError("stopped before it was written")
        except ERRORS as error:
            raise refusal(error) from error

    def _transact(self, work: TableBatch, groups: Sequence[RowGroup], write: WriteGroup) -> GroupVerdicts:
        connection = self._open()
        cursor = connection.cursor()
        cursor.execute("BEGIN IMMEDIATE")
        try:
            verdicts = []
            for group in groups:
                writer = GroupWriter(cursor, work, group)
                told = write(writer, group)
                ids = writer.ids_in_table() if work.foreign_ids else None
                verdicts.append(with_ids(work, group, told, ids))
            cursor.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                cursor.execute("ROLLBACK")
            raise
        return verdicts

    def _each(self, work: TableBatch) -> GroupVerdicts:
        try:
            return self._transact(work, work.layout.groups, self._write_group_by_row)
        except (TargetError, *ERRORS) as error:
            if refusal(error).kind not in JUDGED:
                raise
            # What is found only at the commit, or ends the transaction, speaks of no row: give each its own commit.
            return [[self._alone(work, group.pick([n])) for n in range(len(group))] for group in work.layout.groups]

    def _alone(self, work: TableBatch, row: RowGroup) -> Verdict:
        try:
            return self._transact(work, [row], self._write_group_by_row)[0][0]
        except (TargetError, *ERRORS) as error:
            return Verdict(Outcome.FAILED, error=refusal(error))

    def _write_group(self, writer: GroupWriter, group: RowGroup) -> Sequence[Verdict]:
        if writer.can_upsert_at_once:
            told = self._guarded(writer.upsert_at_once)
            if not isinstance(told, TargetError):
                return told  # otherwise the rows are looked at one by one
        n = 0
        try:
            verdicts = []
            for n in range(len(group)):
                verdicts.append(writer.write(n))
        except ERRORS as error:
            refused = refusal(error)
            refused.suspects = (group.positions[n],) if refused.kind in JUDGED else ()
            raise refused from error
        return verdicts

    def _write_group_by_row(self, writer: GroupWriter, group: RowGroup) -> list[Verdict]:
        told = (self._guarded(partial(writer.write, n)) for n in range(len(group)))
        return [Verdict(Outcome.FAILED, error=one) if isinstance(one, TargetError) else one for one in told]

    def _guarded(self, write: Callable[[], T]) -> T | TargetError:
        """Do something, or say why it was undone."""
        told: T | TargetError
        connection = self._open()
        connection.execute("SAVEPOINT penstock")
        try:
            told = write()
        except (TargetError, *ERRORS) as error:
            refused = refusal(error)
            if refused.kind not in JUDGED or not connection.in_transaction:
                raise refused from error
            connection.execute("ROLLBACK TO penstock")
            told = refused
        connection.execute("RELEASE penstock")
        return told

    def _open(self) -> sqlite3.Connection:
        if self._connection is None:
            if self._path != MEMORY and not Path(self._path).exists():
                raise TargetError(f"there is no file {self._path}", kind=ErrorKind.UNSUPPORTED, code="NO_SUCH_DATABASE")
            self._connection = sqlite3.connect(
                self._path, timeout=self._busy_timeout_s, isolation_level=None, check_same_thread=False
            )
            self._connection.execute(f"PRAGMA foreign_keys = {int(self._foreign_keys)}")
        return self._connection

    def _close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
