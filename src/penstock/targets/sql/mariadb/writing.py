"""One group written into a MariaDB table, and errors of the driver as errors of a target."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from asyncmy.errors import InterfaceError, MySQLError

from penstock.targets.model import ErrorKind, Mode, Outcome, TargetError, Verdict
from penstock.targets.sql.keys import Row
from penstock.targets.sql.mariadb.error_codes import refusal, suspects
from penstock.targets.sql.mariadb.statements import Statement, delete, find, find_ids, insert, update, update_one
from penstock.targets.sql.row_groups import RowGroup
from penstock.targets.sql.target import CREATED, DONE, UNCHANGED, TableBatch, not_found

__all__ = ["DRIVER_ERRORS", "found_in", "ids_in_table", "parts", "told", "write_each", "write_group"]

ROWS_MAX = 1000
"""Rows in one statement; a batch may have more of them."""
DRIVER_ERRORS = (MySQLError, OSError, EOFError, TypeError, ValueError, OverflowError)


async def write_group(cursor: Any, work: TableBatch, group: RowGroup) -> list[Verdict]:
    """Write a group and return the verdicts, in the order of the rows."""
    verdicts: list[Verdict] = []
    for part in parts(group):
        verdicts += await (_create(cursor, work, part) if work.mode is Mode.CREATE else _change(cursor, work, part))
    return verdicts


async def write_each(cursor: Any, work: TableBatch, group: RowGroup) -> list[Verdict]:
    """Write the rows the table takes. A statement that fails undoes itself, so no savepoints are needed."""
    verdicts = []
    for n in range(len(group)):
        try:
            verdicts += await write_group(cursor, work, group.pick([n]))
        except TargetError as error:
            if error.kind not in (ErrorKind.DATA, ErrorKind.BUSINESS):
                raise
            verdicts.append(Verdict(Outcome.FAILED, error=error))
    return verdicts


def parts(group: RowGroup) -> Iterator[RowGroup]:
    """The group in pieces of which each is a statement."""
    if len(group) <= ROWS_MAX:
        yield group
        return
    for start in range(0, len(group), ROWS_MAX):
        yield group.pick(range(start, min(start + ROWS_MAX, len(group))))


async def found_in(cursor: Any, work: TableBatch, group: RowGroup, *, compare: bool) -> dict[int, bool]:
    """The rows that the table has, by their place in the group, and whether they differ from it; they are locked."""
    told = await _run(cursor, find(work.table, work.key, group.columns, group.rows, compare=compare), work, group)
    return {place: bool(differs) for place, differs in told}


async def ids_in_table(cursor: Any, work: TableBatch, group: RowGroup) -> dict[int, Any] | None:
    """The primary keys of an upsert's rows by their places in the group, where it went by another key."""
    if not work.foreign_ids:
        return None
    found: dict[int, Any] = {}
    start = 0
    for part in parts(group):
        statement = find_ids(work.table, work.key, part.columns, part.rows, work.foreign_ids)
        for row in await _run(cursor, statement, work, part):
            found[start + row[0]] = row[1] if len(row) == 2 else row[1:]
        start += len(part)
    return found


def told(error: BaseException) -> TargetError:
    """Any error as a target's."""
    if isinstance(error, MySQLError) and len(error.args) > 1 and error.args[0]:
        return refusal(error.args[0], getattr(error, "sqlstate", None), str(error.args[1]))
    if isinstance(error, OSError | EOFError | InterfaceError):
        return TargetError(f"the connection failed: {str(error) or type(error).__name__}", kind=ErrorKind.CONNECTION)
    return TargetError(f"the driver cannot send a value: {error}", kind=ErrorKind.DATA, code="BAD_TYPE")


async def _create(cursor: Any, work: TableBatch, group: RowGroup) -> list[Verdict]:
    is_given = set(work.key) <= set(group.columns)
    statement = insert(work.table, group.columns, group.rows, () if is_given else work.key)
    made: Sequence[Row] = await _run(cursor, statement, work, group, is_insert=True)
    if not work.key:
        return [CREATED] * len(group)
    if is_given:
        made = list(zip(*(group.column(name) for name in work.key), strict=True))
    return [Verdict(Outcome.CREATED, key[0] if len(key) == 1 else tuple(key)) for key in made]


async def _change(cursor: Any, work: TableBatch, group: RowGroup) -> list[Verdict]:
    only_changed = work.options.update_only_changed and work.mode is not Mode.DELETE
    found = await found_in(cursor, work, group, compare=only_changed)
    has_rest = work.mode is Mode.DELETE or set(group.columns) != set(work.key)
    touched = [n for n, differs in found.items() if has_rest and (differs or not only_changed)]
    new = [n for n in range(len(group)) if n not in found] if work.mode is Mode.UPSERT else []
    if touched and work.mode is Mode.DELETE:
        part = group.pick(sorted(touched))
        await _run(cursor, delete(work.table, work.key, part.columns, part.rows), work, part)
    elif touched:
        await _update(cursor, work, group, sorted(touched))
    if new:
        part = group.pick(new)
        await _run(cursor, insert(work.table, part.columns, part.rows), work, part, is_insert=True)
    verdicts = dict.fromkeys(found, UNCHANGED) | dict.fromkeys(touched, DONE[work.mode]) | dict.fromkeys(new, CREATED)
    return [verdicts.get(n) or not_found(work, group, n) for n in range(len(group))]


async def _update(cursor: Any, work: TableBatch, group: RowGroup, touched: Sequence[int]) -> None:
    """Change rows that are there. Where a trigger runs first, only a plain update refuses NULL for a column without."""
    strict = [n for n, name in enumerate(group.columns) if not work.table.columns[name].takes_null]
    lacking = [row for row in touched if any(group.rows[row][n] is None for n in strict)]
    for row in lacking:
        part = group.pick([row])
        await _run(cursor, update_one(work.table, work.key, part.columns, part.rows[0]), work, part)
    whole = group.pick([row for row in touched if row not in lacking] if lacking else touched)
    if whole:
        await _run(cursor, update(work.table, work.key, whole.columns, whole.rows), work, whole)


async def _run(
    cursor: Any, statement: Statement, work: TableBatch, group: RowGroup, *, is_insert: bool = False
) -> Sequence[Row]:
    try:
        await cursor.execute(*statement)
        rows: Sequence[Row] = await cursor.fetchall()
    except DRIVER_ERRORS as error:
        refused = told(error)
        refused.suspects = tuple(
            sorted(group.positions[n] for n in suspects(refused, group, work.table, is_insert=is_insert))
        )
        raise refused from error
    return rows
