"""Groups written into a MariaDB table, or looked for in it, and errors of the driver as errors of a target.

There are many rows in a statement, and their values are put in with `%s`. An upsert first looks which rows are there,
locking them, and then inserts or updates. ON DUPLICATE KEY UPDATE would be one statement less, but it changes whichever
row is in the way of any unique index, not only of the key.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import chain
from math import inf
from operator import itemgetter
from types import NoneType
from typing import Any

from asyncmy.errors import InterfaceError, MySQLError

from penstock.targets.model import JUDGED, ErrorKind, Mode, Outcome, TargetError, Verdict
from penstock.targets.sql.keys import KeysAlike, Row
from penstock.targets.sql.mariadb.error_codes import refusal, suspects
from penstock.targets.sql.row_groups import RowGroup
from penstock.targets.sql.server import Pending
from penstock.targets.sql.table import backticks, listed
from penstock.targets.sql.target import CREATED, DONE, UNCHANGED, TableBatch, not_found

__all__ = ["DRIVER_ERRORS", "ids_in_table", "is_done", "told", "write_each", "write_group"]

ROWS_MAX = 1000
"""Rows in one statement; a batch may have more of them."""
ORDINAL = "penstock ordinal"
DUPLICATE, TOO_LONG = "1062", "1153"
FRAME_BYTES = 500
"""What a statement takes for each of its columns, beside the values."""
VALUE_BYTES = 80
"""What it takes for a value that is no text, at most."""
TEXTS = (str, bytes, bytearray)
DRIVER_ERRORS = (MySQLError, OSError, EOFError, TypeError, ValueError, OverflowError)


async def write_group(connection: Any, work: TableBatch, group: RowGroup) -> tuple[str, list[Verdict]]:
    """Write a group; the verdicts are in the order of the rows. MariaDB has no name for a transaction."""
    return "", await TableWriter(connection, work).write(group)


async def write_each(connection: Any, work: TableBatch, group: RowGroup) -> tuple[str, list[Verdict]]:
    """Write the rows the table takes. A statement that fails undoes itself, so no savepoints are needed."""
    writer, verdicts = TableWriter(connection, work), []
    for n in range(len(group)):
        try:
            verdicts += await writer.write(group.pick([n]))
        except TargetError as error:
            if error.kind not in JUDGED:
                raise
            verdicts.append(Verdict(Outcome.FAILED, error=error))
    return "", verdicts


async def ids_in_table(connection: Any, work: TableBatch, group: RowGroup) -> dict[int, Any]:
    """The primary keys of an upsert's rows by their places in the group, when it went by another key."""
    writer, found, start = TableWriter(connection, work), {}, 0
    for part in writer.parts(group):
        for row in await writer.look_up(part, ", ".join(f"t.{backticks(name)}" for name in work.foreign_ids)):
            found[start + row[0]] = row[1] if len(row) == 2 else row[1:]
        start += len(part)
    return found


async def is_done(connection: Any, pending: Pending) -> bool:
    """Whether the table is as the batch would have left it. Locks wait for a transaction that is still ending.

    It is compared by each key's last row, since earlier ones were written over.
    """
    writer, mode, seen = TableWriter(connection, pending.work), pending.work.mode, set()
    met: set[Row] = set()
    """Rows that a later record met, whatever its key looks like, as far as keys are loose."""
    for group, verdicts in zip(reversed(pending.groups), reversed(pending.verdicts), strict=True):
        written, keys = _with_keys(pending.work, group, verdicts)
        fresh = [n for n, key in enumerate(keys) if key not in seen and not seen.add(key)]  # type: ignore[func-returns-value]
        for part in reversed(list(writer.parts(written.pick(fresh)) if fresh else ())):
            found = await writer.find(part, compare=mode in (Mode.UPDATE, Mode.UPSERT))
            if len(found) != (0 if mode is Mode.DELETE else len(part)):
                return False
            for _, differs, *row in sorted(found, key=itemgetter(0), reverse=True):
                if differs and tuple(row) not in met:
                    return False
                if row:
                    met.add(tuple(row))
    return True


def _with_keys(work: TableBatch, group: RowGroup, verdicts: Sequence[Verdict]) -> tuple[RowGroup, list[Any]]:
    """The rows that were written, with the keys the database made for them."""
    written = [n for n, verdict in enumerate(verdicts) if verdict.outcome is not Outcome.FAILED]
    if work.mode is not Mode.CREATE:
        kept = group.pick(written)
        return kept, list(kept.rows_of(work.key))
    if not work.key:
        raise TargetError(
            f"table {work.table} has no key to look for the records by", kind=ErrorKind.CONNECTION, maybe_applied=True
        )
    ids = [verdicts[n].id for n in written]
    keys = [(one,) for one in ids] if len(work.key) == 1 else ids
    return RowGroup.of(work.key, keys, [group.positions[n] for n in written]), keys


def told(error: BaseException) -> TargetError:
    """Any error as a target's."""
    if isinstance(error, MySQLError) and len(error.args) > 1 and error.args[0]:
        return refusal(error.args[0], getattr(error, "sqlstate", None), str(error.args[1]))
    if isinstance(error, OSError | EOFError | InterfaceError):
        return TargetError(f"the connection failed: {str(error) or type(error).__name__}", kind=ErrorKind.CONNECTION)
    return TargetError(f"the driver cannot send a value: {error}", kind=ErrorKind.DATA, code="BAD_TYPE")


class TableWriter:
    """Writes groups of a batch into its table, and finds them there."""

    def __init__(self, connection: Any, work: TableBatch) -> None:
        self._connection, self._work = connection, work
        self._table = work.table.quoted(backticks)
        self._is_loose = work.has_loose_key
        self._same_key = " AND ".join(f"t.{backticks(name)} = {self._as_held(name)}" for name in work.key)

    async def write(self, group: RowGroup) -> list[Verdict]:
        """Write a group, and say what became of its rows; `KeysAlike` when several of them mean one row."""
        mode, parts = self._work.mode, list(self.parts(group))
        if mode is Mode.CREATE:
            return [verdict for part in parts for verdict in await self._create(part)]
        only_changed = self._work.options.update_only_changed and mode is not Mode.DELETE
        found = [await self.find(part, compare=only_changed) for part in parts]
        if self._is_loose:
            _refuse_alike(parts, found)
        try:
            return [
                verdict
                for part, rows in zip(parts, found, strict=True)
                for verdict in await self._change(part, rows, only_changed=only_changed)
            ]
        except TargetError as error:
            if error.code == DUPLICATE and self._is_loose and len(group) > 1:
                await self._refuse_equal(group)
            raise

    def parts(self, group: RowGroup) -> Iterator[RowGroup]:
        """The group in pieces of which each is a statement that the server takes."""
        bytes_max = self._work.table.statement_bytes_max or inf
        frame = FRAME_BYTES * (len(group.columns) + len(self._work.key))
        if len(group) <= ROWS_MAX and frame + sum(map(_bytes_of_column, group.values)) <= bytes_max:
            yield group
            return
        start, used = 0, frame
        for n, row in enumerate(group.rows):
            size = sum(map(_bytes, row))
            if n > start and (n - start == ROWS_MAX or used + size > bytes_max):
                yield group.pick(range(start, n))
                start, used = n, frame
            used += size
            if used > bytes_max < (least := sum(map(_bytes_at_least, row))):
                message = f"the record takes {least:,} bytes, and the server takes {bytes_max:,} (max_allowed_packet)"
                raise TargetError(message, kind=ErrorKind.DATA, code=TOO_LONG, suspects=(group.positions[n],))
        yield group.pick(range(start, len(group)))

    async def find(self, group: RowGroup, *, compare: bool) -> Sequence[Row]:
        """Of the rows that the table has: the place in the group and whether the table's differs; locks them.

        Keys that are loose come after it, as the table has them: so it shows which rows are the same.
        """
        rest = [name for name in group.columns if name not in self._work.key] if compare else []
        pairs = ((backticks(name), self._as_held(name, is_exact=True)) for name in rest)
        differs = " OR ".join(f"NOT (t.{name} <=> {given})" for name, given in pairs) or "0"
        keys = [f"t.{backticks(name)}" for name in self._work.key] if self._is_loose else []
        return await self.look_up(group, ", ".join((differs, *keys)), rest, " FOR UPDATE")

    async def look_up(self, group: RowGroup, wanted: str, rest: Sequence[str] = (), lock: str = "") -> Sequence[Row]:
        """The places of the rows that are there, and what is wanted of each; `rest` are columns to compare."""
        names = (*self._work.key, *rest)
        values = ", ".join([f"({n}{', %s' * len(names)})" for n in range(len(group))])
        text = (
            f"SELECT g.{backticks(ORDINAL)}, {wanted} FROM {self._given((ORDINAL, *names), values)} "
            f"STRAIGHT_JOIN {self._table} t ON {self._same_key}{lock}"
        )
        return await self._run(text, group, group.rows_of(names))

    async def _create(self, group: RowGroup) -> Sequence[Verdict]:
        key = self._work.key
        # For a key that is given as NULL the server makes a number.
        is_given = set(key) <= set(group.columns) and not any(None in group.column(name) for name in key)
        made: Sequence[Row] = await self._insert(group, () if is_given else key)
        if not key:
            return [CREATED] * len(group)
        keys = group.rows_of(key) if is_given else made
        return [Verdict(Outcome.CREATED, one[0] if len(one) == 1 else tuple(one)) for one in keys]

    async def _refuse_equal(self, group: RowGroup) -> None:
        """Ask which of the keys the server calls equal; `KeysAlike` when it does of any."""
        key, values = self._work.key, ", ".join([f"({n}{', %s' * len(self._work.key)})" for n in range(len(group))])
        times = f"COUNT(*) OVER (PARTITION BY {', '.join(map(self._as_held, key))}) AS times"
        counted = f"SELECT g.{backticks(ORDINAL)}, {times} FROM {self._given((ORDINAL, *key), values)}"
        text = f"SELECT {backticks(ORDINAL)} FROM ({counted}) c WHERE times > 1"
        equal = await self._run(text, group, group.rows_of(key))
        if equal:
            raise KeysAlike.at(group.positions[n] for (n,) in equal)

    async def _change(self, group: RowGroup, rows: Sequence[Row], *, only_changed: bool) -> Sequence[Verdict]:
        mode, found = self._work.mode, {row[0]: bool(row[1]) for row in rows}
        has_rest = mode is Mode.DELETE or set(group.columns) != set(self._work.key)
        touched = sorted([n for n, differs in found.items() if differs or not only_changed] if has_rest else ())
        new = [n for n in range(len(group)) if n not in found] if mode is Mode.UPSERT else []
        if touched and mode is Mode.DELETE:
            await self._join("DELETE t FROM", group.pick(touched))
        elif touched:
            await self._update(group, touched)
        if new:
            await self._insert(group.pick(new))
        verdicts = dict.fromkeys(found, UNCHANGED) | dict.fromkeys(touched, DONE[mode]) | dict.fromkeys(new, CREATED)
        return [verdicts.get(n) or not_found(self._work, group, n) for n in range(len(group))]

    async def _update(self, group: RowGroup, touched: Sequence[int]) -> None:
        """Change rows that are there. Where a trigger runs first, only a plain update refuses a NULL as it should."""
        columns = self._work.table.columns
        strict = (group.column(name) for name in group.columns if not columns[name].takes_null)
        lacking = sorted({row for values in strict if None in values for row in touched if values[row] is None})
        rest = [name for name in group.columns if name not in self._work.key]
        changes = ", ".join(f"{backticks(name)} = %s" for name in rest)
        where = " AND ".join(f"{backticks(name)} = {self._as_held(name, '%s')}" for name in self._work.key)
        for row in lacking:
            part = group.pick([row])
            values = part.rows_of((*rest, *self._work.key))
            await self._run(f"UPDATE {self._table} SET {changes} WHERE {where}", part, values)
        whole = group.pick([row for row in touched if row not in lacking] if lacking else touched)
        if whole:
            changes = ", ".join(f"t.{backticks(name)} = g.{backticks(name)}" for name in rest)
            await self._join("UPDATE", whole, f" SET {changes}")

    async def _insert(self, group: RowGroup, returning: Sequence[str] = ()) -> Sequence[Row]:
        """New rows; `returning` are told in the order of the rows."""
        asked = f" RETURNING {listed(returning, backticks)}" if returning else ""
        columns, values = listed(group.columns, backticks), _marks(group)
        text = f"INSERT INTO {self._table} ({columns}) VALUES {values}{asked}"
        return await self._run(text, group, group.rows, is_insert=True)

    async def _join(self, verb: str, group: RowGroup, change: str = "") -> None:
        """Change or delete rows that are there and locked."""
        given = self._given(group.columns, _marks(group))
        await self._run(f"{verb} {given} STRAIGHT_JOIN {self._table} t ON {self._same_key}{change}", group, group.rows)

    async def _run(self, text: str, group: RowGroup, rows: Any, *, is_insert: bool = False) -> Sequence[Row]:
        try:
            async with self._connection.cursor() as cursor:
                await cursor.execute(text, list(chain.from_iterable(rows)))
                answer: Sequence[Row] = await cursor.fetchall()
        except DRIVER_ERRORS as error:
            refused = told(error)
            found = suspects(refused, group, self._work.table, is_insert=is_insert)
            refused.suspects = tuple(sorted(group.positions[n] for n in found))
            raise refused from error
        return answer

    def _given(self, columns: Sequence[str], values: str) -> str:
        return f"(WITH g ({listed(columns, backticks)}) AS (VALUES {values}) SELECT * FROM g) g"

    def _as_held(self, name: str, given: str | None = None, *, is_exact: bool = False) -> str:
        """A given value as the column would hold it: in its character set and collation, with its decimals."""
        column = self._work.table.columns[name]
        value = given or f"g.{backticks(name)}"
        if column.type == "decimal":
            return f"CAST({value} AS {column.full_type.partition(' ')[0]})"
        if column.charset is None:
            return value
        collation = f"{column.charset}_bin" if is_exact else column.collation
        return f"CONVERT({value} USING {column.charset}) COLLATE {collation}"


def _refuse_alike(parts: Sequence[RowGroup], found: Sequence[Sequence[Row]]) -> None:
    """`KeysAlike` when several rows of a group met one row of the table."""
    times = Counter(row[2:] for rows in found for row in rows)
    if times and max(times.values()) > 1:
        met = zip(parts, found, strict=True)
        raise KeysAlike.at(part.positions[row[0]] for part, rows in met for row in rows if times[row[2:]] > 1)


def _marks(group: RowGroup) -> str:
    return ", ".join([f"({', '.join(['%s'] * len(group.columns))})"] * len(group))


def _bytes(value: Any) -> int:
    """What a value takes in a statement, at most: every byte of it may have to be escaped."""
    if isinstance(value, str) and not value.isascii():
        return VALUE_BYTES + 4 * len(value)
    return VALUE_BYTES + (2 * len(value) if isinstance(value, TEXTS) else 0)


def _bytes_at_least(value: Any) -> int:
    return len(value.encode() if isinstance(value, str) else value) if isinstance(value, TEXTS) else 1


def _bytes_of_column(values: Sequence[Any]) -> int:
    """What these values take, at most; quicker than to look at each, and so only roughly."""
    kinds = set(map(type, values)) - {NoneType}
    if not kinds.isdisjoint(TEXTS) and not kinds.issubset(TEXTS):
        return sum(map(_bytes, values))
    return VALUE_BYTES * len(values) + (4 * sum(map(len, filter(None, values))) if kinds.intersection(TEXTS) else 0)
