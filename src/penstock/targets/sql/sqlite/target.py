"""Tables of a SQLite file as a target."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, date, datetime, time
from decimal import Decimal
from enum import Enum
from pathlib import Path
from types import NoneType
from typing import TypeVar
from uuid import UUID

from penstock.targets.model import BulkOptions, Mode, Outcome, TargetError, Trouble, Verdict
from penstock.targets.sql.sheets import Sheet
from penstock.targets.sql.sqlite.catalog import look_up
from penstock.targets.sql.sqlite.troubles import refusal
from penstock.targets.sql.sqlite.writing import row_writer
from penstock.targets.sql.table import Table
from penstock.targets.sql.target import SqlTarget, Work, Written
from penstock.targets.sql.values import Converters, not_nan, to_json
from penstock.targets.target import Traits

__all__ = ["SqliteTarget"]

T = TypeVar("T")
ERRORS = (sqlite3.Error, OverflowError, UnicodeError)
JUDGED = (Trouble.DATA, Trouble.BUSINESS)
"""Errors that are about a record."""


def _told(error: BaseException) -> TargetError:
    return error if isinstance(error, TargetError) else refusal(error)


def _moment(value: datetime) -> str:
    return (value.astimezone(UTC) if value.tzinfo else value).isoformat(sep=" ")


class SqliteTarget(SqlTarget):
    """A SQLite file. It has one writer at a time, so batches go one after the other, in a thread of their own.

    An answer is never lost, so there is nothing to reconcile: a batch that failed has changed nothing.
    """

    _converters = Converters(
        known=(NoneType, int, float, str, bytes, bytearray, memoryview),
        made={
            datetime: _moment,
            date: date.isoformat,
            time: time.isoformat,
            Decimal: str,
            UUID: str,
            float: not_nan,
            dict: to_json,
            list: to_json,
            Enum: lambda value: value.value,
        },
    )

    def __init__(self, path: str | Path, *, busy_timeout_s: float = 10.0, foreign_keys: bool = True) -> None:
        super().__init__("SQLite", connections=1)
        self._path, self._busy_timeout_s, self._foreign_keys = path, busy_timeout_s, foreign_keys
        self._thread: ThreadPoolExecutor | None = None
        self._connection: sqlite3.Connection | None = None

    async def refresh(self, source: str) -> None:
        """Open the file anew, and look tables up again."""
        self._changed.update(self._tables)
        await self._run(self._close)

    async def aclose(self) -> None:
        """Close the file."""
        if self._connection is not None:
            await self._run(self._close)
        if self._thread is not None:
            self._thread.shutdown(wait=False)
            self._thread = None

    def _traits(self, mode: Mode, options: BulkOptions, key: tuple[str, ...]) -> Traits:
        return Traits(id_field=key[0] if len(key) == 1 else None)

    async def _look_up(self, name: str) -> Table:
        return await self._run(lambda: look_up(self._open(), name))

    async def _write(self, work: Work) -> Written:
        return await self._for_table(work, lambda: self._transact(work, work.layout.sheets, self._sheet))

    async def _write_each(self, work: Work) -> Written:
        return await self._for_table(work, lambda: self._each(work))

    async def _for_table(self, work: Work, job: Callable[[], list[list[Verdict]]]) -> Written:
        try:
            return Written(await self._run(job))
        except TargetError as error:
            if error.kind is Trouble.RACE:
                self.forget(work.batch.table)
            raise

    async def _run(self, job: Callable[[], T]) -> T:
        """Run a job in the thread. When this ends, the job has ended too."""
        self._thread = self._thread or ThreadPoolExecutor(1, thread_name_prefix="penstock-sqlite")
        submitted = self._thread.submit(job)
        running = asyncio.wrap_future(submitted)
        try:
            return await asyncio.shield(running)
        except asyncio.CancelledError:
            if not submitted.cancel():  # it has begun
                if self._connection is not None:
                    self._connection.interrupt()
                await asyncio.wait([running])
                running.exception()  # it was interrupted; nobody will ask
            raise
        except ERRORS as error:
            raise refusal(error) from error

    def _transact(
        self,
        work: Work,
        sheets: Sequence[Sheet],
        write: Callable[[sqlite3.Cursor, Work, Sheet], list[Verdict]],
    ) -> list[list[Verdict]]:
        connection = self._open()
        cursor = connection.cursor()
        cursor.execute("BEGIN IMMEDIATE")
        try:
            verdicts = [write(cursor, work, sheet) for sheet in sheets]
            cursor.execute("COMMIT")
        except BaseException:
            if connection.in_transaction:
                cursor.execute("ROLLBACK")
            raise
        return verdicts

    def _each(self, work: Work) -> list[list[Verdict]]:
        try:
            return self._transact(work, work.layout.sheets, self._sheet_by_row)
        except (TargetError, *ERRORS) as error:
            if _told(error).kind not in JUDGED:
                raise
            # What is found only at the commit, or ends the transaction, speaks of no row: give each its own commit.
            return [[self._alone(work, sheet.pick([n])) for n in range(len(sheet))] for sheet in work.layout.sheets]

    def _alone(self, work: Work, row: Sheet) -> Verdict:
        try:
            return self._transact(work, [row], self._sheet_by_row)[0][0]
        except (TargetError, *ERRORS) as error:
            return Verdict(Outcome.FAILED, error=_told(error))

    def _sheet(self, cursor: sqlite3.Cursor, work: Work, sheet: Sheet) -> list[Verdict]:
        write = row_writer(cursor, work, sheet)
        n = 0
        try:
            verdicts = []
            for n in range(len(sheet)):
                verdicts.append(write(n))
        except ERRORS as error:
            refused = refusal(error)
            refused.suspects = (sheet.positions[n],) if refused.kind in JUDGED else ()
            raise refused from error
        return verdicts

    def _sheet_by_row(self, cursor: sqlite3.Cursor, work: Work, sheet: Sheet) -> list[Verdict]:
        write = row_writer(cursor, work, sheet)
        return [self._guarded(cursor, write, n) for n in range(len(sheet))]

    def _guarded(self, cursor: sqlite3.Cursor, write: Callable[[int], Verdict], n: int) -> Verdict:
        cursor.execute("SAVEPOINT penstock")
        try:
            verdict = write(n)
        except ERRORS as error:
            refused = refusal(error)
            if refused.kind not in JUDGED or not cursor.connection.in_transaction:
                raise refused from error
            cursor.execute("ROLLBACK TO penstock")
            verdict = Verdict(Outcome.FAILED, error=refused)
        cursor.execute("RELEASE penstock")
        return verdict

    def _open(self) -> sqlite3.Connection:
        if self._connection is None:
            self._connection = sqlite3.connect(
                self._path, timeout=self._busy_timeout_s, isolation_level=None, check_same_thread=False
            )
            self._connection.execute(f"PRAGMA foreign_keys = {int(self._foreign_keys)}")
        return self._connection

    def _close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
