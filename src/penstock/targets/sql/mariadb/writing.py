"""One group written into a MariaDB table, or looked for in it, and errors of the driver as errors of a target."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from asyncmy.errors import InterfaceError, MySQLError

from penstock.targets.model import ErrorKind, Mode, Outcome, TargetError, Verdict
from penstock.targets.sql.keys import Row
from penstock.targets.sql.mariadb.error_codes import refusal, suspects
from penstock.targets.sql.mariadb.statements import Statement, delete, find, find_ids, insert, update, update_one
from penstock.targets.sql.row_groups import RowGroup
from penstock.targets.sql.server import Pending
from penstock.targets.sql.target import CREATED, DONE, JUDGED, UNCHANGED, TableBatch, not_found

__all__ = ["DRIVER_ERRORS", "ids_in_table", "is_done", "told", "write_each", "write_group"]

ROWS_MAX = 1000
"""Rows in one statement; a batch may have more of them."""
DRIVER_ERRORS = (MySQLError, OSError, EOFError, TypeError, ValueError, OverflowError)


async def write_group(connection: Any, work: TableBatch, group: RowGroup) -> tuple[str, list[Verdict]]:
    """Write a group; the verdicts are in the order of the rows. MariaDB has no name for a transaction."""
    verdicts: list[Verdict] = []
    write = _create if work.mode is Mode.CREATE else _change
    for part in _parts(group):
        verdicts += await write(connection, work, part)
    return "", verdicts


async def write_each(connection: Any, work: TableBatch, group: RowGroup) -> tuple[str, list[Verdict]]:
    """Write the rows the table takes. A statement that fails undoes itself, so no savepoints are needed."""
    verdicts = []
    for n in range(len(group)):
        try:
            verdicts += (await write_group(connection, work, group.pick([n])))[1]
        except TargetError as error:
            if error.kind not in JUDGED:
                raise
            verdicts.append(Verdict(Outcome.FAILED, error=error))
    return "", verdicts


def _parts(group: RowGroup) -> Iterator[RowGroup]:
    """The group in pieces of which each is a statement."""
    if len(group) <= ROWS_MAX:
        yield group
        return
    for start in range(0, len(group), ROWS_MAX):
        yield group.pick(range(start, min(start + ROWS_MAX, len(group))))


async def _found_in(connection: Any, work: TableBatch, group: RowGroup, *, compare: bool) -> dict[int, bool]:
    """The rows that the table has, by their place in the group, and whether they differ from it; they are locked."""
    told = await _run(connection, find(work.table, work.key, group, compare=compare), work, group)
    return {place: bool(differs) for place, differs in told}


async def ids_in_table(connection: Any, work: TableBatch, group: RowGroup) -> dict[int, Any]:
    """The primary keys of an upsert's rows by their places in the group, when it went by another key."""
    found: dict[int, Any] = {}
    start = 0
    for part in _parts(group):
        statement = find_ids(work.table, work.key, part, work.foreign_ids)
        for row in await _run(connection, statement, work, part):
            found[start + row[0]] = row[1] if len(row) == 2 else row[1:]
        start += len(part)
    return found


async def is_done(connection: Any, pending: Pending) -> bool:
    """Whether the table is as the batch would have left it. Locks wait for a transaction that is still ending.

    It is compared by each key's last row, since earlier ones were written over.
    """
    seen: set[Any] = set()
    for group, verdicts in zip(reversed(pending.groups), reversed(pending.verdicts), strict=True):
        written, keys = _with_keys(pending.work, group, verdicts)
        fresh = [n for n, key in enumerate(keys) if key not in seen and not seen.add(key)]  # type: ignore[func-returns-value]
        for part in _parts(written.pick(fresh)) if fresh else ():
            if not await _holds(connection, pending.work, part):
                return False
    return True


async def _holds(connection: Any, work: TableBatch, part: RowGroup) -> bool:
    if work.mode is Mode.DELETE:
        return not await _found_in(connection, work, part, compare=False)
    found = await _found_in(connection, work, part, compare=work.mode is not Mode.CREATE)
    return len(found) == len(part) and not any(found.values())


def _with_keys(work: TableBatch, group: RowGroup, verdicts: Sequence[Verdict]) -> tuple[RowGroup, list[Any]]:
    """The rows that were written, with the keys the database made for them."""
    written = [n for n, verdict in enumerate(verdicts) if verdict.outcome is not Outcome.FAILED]
    if work.mode is not Mode.CREATE:
        kept = group.pick(written)
        return kept, list(zip(*(kept.column(name) for name in work.key), strict=True))
    if not work.key:
        raise TargetError(
            f"table {work.table} has no key to look for the records by", kind=ErrorKind.CONNECTION, maybe_applied=True
        )
    ids = [verdicts[n].id for n in written]
    keys = [(one,) for one in ids] if len(work.key) == 1 else ids
    return RowGroup(work.key, keys, [group.positions[n] for n in written]), keys


def told(error: BaseException) -> TargetError:
    """Any error as a target's."""
    if isinstance(error, MySQLError) and len(error.args) > 1 and error.args[0]:
        return refusal(error.args[0], getattr(error, "sqlstate", None), str(error.args[1]))
    if isinstance(error, OSError | EOFError | InterfaceError):
        return TargetError(f"the connection failed: {str(error) or type(error).__name__}", kind=ErrorKind.CONNECTION)
    return TargetError(f"the driver cannot send a value: {error}", kind=ErrorKind.DATA, code="BAD_TYPE")


async def _create(connection: Any, work: TableBatch, group: RowGroup) -> list[Verdict]:
    is_given = set(work.key) <= set(group.columns)
    statement = insert(work.table, group, () if is_given else work.key)
    made: Sequence[Row] = await _run(connection, statement, work, group, is_insert=True)
    if not work.key:
        return [CREATED] * len(group)
    if is_given:
        made = list(zip(*(group.column(name) for name in work.key), strict=True))
    return [Verdict(Outcome.CREATED, key[0] if len(key) == 1 else tuple(key)) for key in made]


async def _change(connection: Any, work: TableBatch, group: RowGroup) -> list[Verdict]:
    only_changed = work.options.update_only_changed and work.mode is not Mode.DELETE
    found = await _found_in(connection, work, group, compare=only_changed)
    has_rest = work.mode is Mode.DELETE or set(group.columns) != set(work.key)
    touched = sorted([n for n, differs in found.items() if differs or not only_changed] if has_rest else ())
    new = [n for n in range(len(group)) if n not in found] if work.mode is Mode.UPSERT else []
    if touched and work.mode is Mode.DELETE:
        part = group.pick(touched)
        await _run(connection, delete(work.table, work.key, part), work, part)
    elif touched:
        await _update(connection, work, group, touched)
    if new:
        part = group.pick(new)
        await _run(connection, insert(work.table, part), work, part, is_insert=True)
    verdicts = dict.fromkeys(found, UNCHANGED) | dict.fromkeys(touched, DONE[work.mode]) | dict.fromkeys(new, CREATED)
    return [verdicts.get(n) or not_found(work, group, n) for n in range(len(group))]


async def _update(connection: Any, work: TableBatch, group: RowGroup, touched: Sequence[int]) -> None:
    """Change rows that are there. Where a trigger runs first, only a plain update refuses NULL for a column without."""
    strict = (group.column(name) for name in group.columns if not work.table.columns[name].takes_null)
    lacking = sorted({row for values in strict if None in values for row in touched if values[row] is None})
    for row in lacking:
        part = group.pick([row])
        await _run(connection, update_one(work.table, work.key, part), work, part)
    whole = group.pick([row for row in touched if row not in lacking] if lacking else touched)
    if whole:
        await _run(connection, update(work.table, work.key, whole), work, whole)


async def _run(
    connection: Any, statement: Statement, work: TableBatch, group: RowGroup, *, is_insert: bool = False
) -> Sequence[Row]:
    try:
        async with connection.cursor() as cursor:
            await cursor.execute(*statement)
            rows: Sequence[Row] = await cursor.fetchall()
    except DRIVER_ERRORS as error:
        refused = told(error)
        refused.suspects = tuple(
            sorted(group.positions[n] for n in suspects(refused, group, work.table, is_insert=is_insert))
        )
        raise refused from error
    return rows
