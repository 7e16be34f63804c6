"""What the records tell beyond the rows themselves: current errors, the same errors counted, and what came before."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import ColumnElement, Row, func, select, tuple_

from penstock.clock import from_micros
from penstock.db.connection import Connection
from penstock.errors import InvalidInput
from penstock.operations.model import ErrorGroup, HistoryEntry, Page, RowError
from penstock.operations.rules.decide import cut
from penstock.operations.sheet import Outline, fault_values
from penstock.operations.tables import chunks, history, row_records
from penstock.operations.views import chunk_at, first_row_at, load_raws

__all__ = ["ERROR_TYPES", "error_groups", "error_type_named", "errors", "history_of"]

ERROR_TYPES = (
    "Validation", "Processing", "StepFailure", "Timeout", "SignalFailure", "InDoubt", "Poison", "Cancelled",
)  # fmt: skip
CHUNKS_READ_MAX = 32

# A step that ended so is the last its row has reached; one that recovered has another state.
_IS_ERROR = row_records.c.state.in_(("Failed", "TimedOut"))


def error_type_named(name: str) -> str:
    """The error type of this name, ignoring case."""
    found = next((known for known in ERROR_TYPES if known.casefold() == name.casefold()), None)
    if found is None:
        raise InvalidInput(f"no such error type: {name}; known: {', '.join(ERROR_TYPES)}")
    return found


async def errors(
    tx: Connection,
    outline: Outline,
    *,
    row: int | None,
    row_key: str | None,
    error_type: str | None,
    step: int | None,
    first: int,
    last: int | None,
    limit: int,
    with_data: bool,
) -> Page[RowError]:
    """Rows that are Invalid, Failed or TimedOut, in row order; the cursor of the next page is the last row's number."""
    wanted: tuple[tuple[ColumnElement[Any], Any], ...] = (
        (row_records.c.row, row),
        (row_records.c.row_key, None if row_key is None else cut(row_key, 200)),
        (row_records.c.error_type, error_type),
        (row_records.c.step, step),
    )
    fits = [column == value for column, value in wanted if value is not None]
    # Through the chunks in row order, so that a page ends early whatever the operation's size.
    near = (
        select(chunks.c.id, chunks.c.first_row)
        .where(
            chunks.c.operation == outline.number,
            chunks.c.first_row >= first_row_at(outline, first),
            chunks.c.invalid + chunks.c.failed + chunks.c.timed_out > 0,
        )
        .order_by(chunks.c.first_row)
        # Each chunk, unless it is the first, has a row that fits; PostgreSQL without statistics would sort them all.
        .limit(None if fits else limit + 2)
        .subquery()
    )
    query = (
        select(row_records, near.c.first_row)
        .join(near, near.c.id == row_records.c.chunk)
        .where(_IS_ERROR, row_records.c.row >= first, *fits)
        .order_by(near.c.first_row, row_records.c.row, row_records.c.step)
        .limit(limit + 1)
    )
    if last is not None:
        query = query.where(row_records.c.row <= last)
    found = (await tx.execute(query)).all()
    shown = found[:limit]
    data = await _data(tx, outline, shown) if with_data else [None] * len(shown)
    items = [_row_error(outline, record, raw) for record, raw in zip(shown, data, strict=True)]
    return Page(items, str(items[-1].row) if len(found) > limit else None)


async def _data(tx: Connection, outline: Outline, records: Sequence[Row[Any]]) -> list[Any]:
    """The rows' data, each chunk read once and only a few held at a time."""
    ids = list(dict.fromkeys(record.chunk for record in records))
    by_row: dict[int, Any] = {}
    for start in range(0, len(ids), CHUNKS_READ_MAX):
        raws = await load_raws(tx, ids[start : start + CHUNKS_READ_MAX])
        mine = [record for record in records if record.chunk in raws]
        by_row |= {record.row: raws[record.chunk][record.row - record.first_row] for record in mine}
    edits = await tx.execute(
        select(row_records.c.row, row_records.c.data).where(
            row_records.c.chunk.in_(ids), row_records.c.data.is_not(None)
        )
    )
    by_row |= {edit.row: edit.data for edit in edits}
    return [outline.shown(by_row.get(record.row)) for record in records]


def _row_error(outline: Outline, record: Row[Any], data: Any) -> RowError:
    return RowError(
        row=record.row,
        row_key=record.row_key,
        step=record.step,
        step_name=outline.step_name(record.step),
        state="Invalid" if record.error_type == "Validation" else record.state,
        error_type=record.error_type,
        message=record.message,
        faults=fault_values(record.faults),
        generation=record.generation,
        attempt=record.attempt,
        at=from_micros(record.at),
        data=data,
    )


async def error_groups(tx: Connection, outline: Outline, *, limit: int) -> list[ErrorGroup]:
    """Errors that differ only in their variable parts, counted, the largest group first."""
    by = (row_records.c.step, row_records.c.error_type, row_records.c.error_group)
    many, first = func.count().label("many"), func.min(row_records.c.row).label("first")
    groups = await tx.execute(
        select(*by, many, first)
        .where(row_records.c.operation == outline.number, _IS_ERROR)
        .group_by(*by)
        .order_by(many.desc(), first)
        .limit(limit)
    )
    return [
        ErrorGroup(
            step=group.step,
            step_name=outline.step_name(group.step),
            error_type=group.error_type,
            message=await _message(tx, outline, group.first, group.step),
            rows=group.many,
            first_row=group.first,
        )
        for group in groups.all()
    ]


async def _message(tx: Connection, outline: Outline, row: int, step: int) -> str:
    chunk = await chunk_at(tx, outline, row)
    mine = (row_records.c.chunk == (chunk and chunk.id), row_records.c.row == row, row_records.c.step == step)
    return (await tx.execute(select(row_records.c.message).where(*mine))).scalar() or ""


async def history_of(
    tx: Connection,
    outline: Outline,
    *,
    row: int | None,
    step: int | None,
    cursor: str | None,
    limit: int,
) -> Page[HistoryEntry]:
    """What happened to rows before they came to where they are: row by row, oldest first."""
    query = select(history).where(history.c.operation == outline.number).order_by(history.c.row, history.c.id)
    if row is not None:
        query = query.where(history.c.row == row)
    if step is not None:
        query = query.where(history.c.step == step)
    if cursor is not None:
        query = query.where(tuple_(history.c.row, history.c.id) > _parse_mark(cursor))
    found = (await tx.execute(query.limit(limit + 1))).all()
    more = f"{found[limit - 1].row}:{found[limit - 1].id}" if len(found) > limit else None
    return Page([_entry(outline, line) for line in found[:limit]], more)


def _parse_mark(cursor: str) -> tuple[int, int]:
    row, _, line = cursor.partition(":")
    try:
        return int(row), int(line)
    except ValueError:
        raise InvalidInput(f"{cursor!r} is not a cursor of this list") from None


def _entry(outline: Outline, line: Row[Any]) -> HistoryEntry:
    return HistoryEntry(
        row=line.row,
        step=line.step,
        step_name=outline.step_name(line.step),
        generation=line.generation,
        attempt=line.attempt,
        event=line.event,
        error_type=line.error_type,
        message=line.message,
        at=from_micros(line.at),
        data=outline.shown(line.data),
    )
