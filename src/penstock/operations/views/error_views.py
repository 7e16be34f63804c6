"""Errors of rows: the current ones, the same counted in groups, and the history of earlier ones."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import ColumnElement, Row, func, select, tuple_

from penstock.clock import from_micros
from penstock.db.connection import Connection
from penstock.listing import parse_numbers_cursor
from penstock.operations.chunk.records import ROW_KEY_MAX, StepRecord
from penstock.operations.messages import cut
from penstock.operations.model import Change, ErrorGroup, HistoryEntry, Page, RowError
from penstock.operations.tables import chunks, history, requests, row_records
from penstock.operations.views.chunk_view import RowLayout, fault_values
from penstock.operations.views.row_views import RowFilter, chunk_at, first_row_at, load_raws

__all__ = ["ERROR_TYPES", "error_groups", "errors", "history_of", "row_error"]

ERROR_TYPES = (
    "Validation", "Processing", "StepFailure", "Timeout", "SignalFailure", "InDoubt", "Poison", "Cancelled",
)  # fmt: skip
CHUNKS_READ_MAX = 32
ROWS_NAMED_EACH = 500
AnyRow = Row[*tuple[Any, ...]]
_ASKED_FOR = ("edited", "retried")

# A step in such a state is the last one its row has reached; one that recovered has another state.
_IS_ERROR = row_records.c.state.in_(("Failed", "TimedOut"))


async def errors(
    tx: Connection,
    layout: RowLayout,
    wanted: RowFilter,
    *,
    limit: int,
    with_data: bool,
) -> Page[RowError]:
    """Rows that are Invalid, Failed or TimedOut, in row order; the cursor of the next page is the last row's number."""
    columns: tuple[tuple[ColumnElement[Any], Any], ...] = (
        (row_records.c.row_key, None if wanted.row_key is None else cut(wanted.row_key, ROW_KEY_MAX)),
        (row_records.c.error_type, wanted.error_type),
        (row_records.c.step, wanted.step),
    )
    fits = [column == value for column, value in columns if value is not None]
    # Through the chunks in row order, so that a page ends early whatever the operation's size.
    near = (
        select(chunks.c.id, chunks.c.first_row)
        .where(
            chunks.c.operation == layout.number,
            chunks.c.first_row >= first_row_at(layout, wanted.first),
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
        .where(_IS_ERROR, row_records.c.row >= wanted.first, *fits)
        .order_by(near.c.first_row, row_records.c.row, row_records.c.step)
        .limit(limit + 1)
    )
    if wanted.last is not None:
        query = query.where(row_records.c.row <= wanted.last)
    found = (await tx.execute(query)).all()
    shown = found[:limit]
    data = await _data(tx, layout, shown) if with_data else [None] * len(shown)
    items = [row_error(layout, record, raw) for record, raw in zip(shown, data, strict=True)]
    return Page(items, str(items[-1].row) if len(found) > limit else None)


async def _data(tx: Connection, layout: RowLayout, records: Sequence[Row[Any]]) -> list[Any]:
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
    return [layout.shown(by_row.get(record.row)) for record in records]


def row_error(layout: RowLayout, record: Row[Any] | StepRecord, data: Any) -> RowError:
    """What is wrong with a row, by its record."""
    return RowError(
        row=record.row,
        row_key=record.row_key,
        step=record.step,
        step_name=layout.step_name(record.step),
        state="Invalid" if record.error_type == "Validation" else record.state,
        error_type=str(record.error_type),
        message=record.message or "",  # it may have been erased
        faults=fault_values(record.faults),
        generation=record.generation,
        attempt=record.attempt,
        at=from_micros(record.at),
        data=data,
    )


async def error_groups(tx: Connection, layout: RowLayout, *, limit: int) -> list[ErrorGroup]:
    """Errors that differ only in their variable parts, counted, the largest group first."""
    by = (row_records.c.step, row_records.c.error_type, row_records.c.error_group)
    many, first = func.count().label("many"), func.min(row_records.c.row).label("first")
    groups = await tx.execute(
        select(*by, many, first)
        .where(row_records.c.operation == layout.number, _IS_ERROR)
        .group_by(*by)
        .order_by(many.desc(), first)
        .limit(limit)
    )
    return [
        ErrorGroup(
            step=group.step,
            step_name=layout.step_name(group.step),
            error_type=group.error_type,
            message=await _message(tx, layout, group.first, group.step),
            rows=group.many,
            first_row=group.first,
        )
        for group in groups.all()
    ]


async def _message(tx: Connection, layout: RowLayout, row: int, step: int) -> str:
    chunk = await chunk_at(tx, layout, row)
    mine = (row_records.c.chunk == (chunk and chunk.id), row_records.c.row == row, row_records.c.step == step)
    return (await tx.execute(select(row_records.c.message).where(*mine))).scalar() or ""


async def history_of(
    tx: Connection,
    layout: RowLayout,
    *,
    row: int | None,
    step: int | None,
    cursor: str | None,
    limit: int,
) -> Page[HistoryEntry]:
    """What happened to rows before their present state: row by row, oldest first."""
    query = select(history).where(history.c.operation == layout.number).order_by(history.c.row, history.c.id)
    if row is not None:
        query = query.where(history.c.row == row)
    if step is not None:
        query = query.where(history.c.step == step)
    if cursor is not None:
        query = query.where(tuple_(history.c.row, history.c.id) > tuple(parse_numbers_cursor(cursor, 2)))
    found = (await tx.execute(query.limit(limit + 1))).all()
    more = f"{found[limit - 1].row}.{found[limit - 1].id}" if len(found) > limit else None
    asked = await _asked(tx, layout, [line for line in found[:limit] if line.event in _ASKED_FOR])
    return Page([_entry(layout, line, asked.get(line.id)) for line in found[:limit]], more)


async def _asked(tx: Connection, layout: RowLayout, lines: Sequence[Row[Any]]) -> dict[int, AnyRow]:
    """The requests that led to lines of the history, by line: for that row, or for all rows of its chunk."""
    if not lines:
        return {}
    rows = sorted({line.row for line in lines})
    wanted = [requests.c[name] for name in ("id", "row", "generation", "actor", "accepted_at", "data")]
    is_applied = (requests.c.operation == layout.number, requests.c.outcome.like("applied%"))
    named: dict[tuple[int, int], AnyRow] = {}
    for start in range(0, len(rows), ROWS_NAMED_EACH):
        mine = requests.c.row.in_(rows[start : start + ROWS_NAMED_EACH])
        named |= {(r.row, r.generation): r for r in await tx.execute(select(*wanted).where(*is_applied, mine))}
    for_all: Sequence[AnyRow] = (
        await tx.execute(
            select(*wanted, chunks.c.first_row, chunks.c.row_count)
            .join(chunks, chunks.c.id == requests.c.chunk)
            .where(
                *is_applied,
                requests.c.row.is_(None),
                chunks.c.first_row <= rows[-1],
                chunks.c.first_row + chunks.c.row_count > rows[0],
            )
            .order_by(requests.c.id)
        )
    ).all()
    found: dict[int, AnyRow] = {}
    last = dict.fromkeys(rows, 0)  # by row, the last request that was applied to it: each is applied once
    for line in lines:
        request = named.get((line.row, line.generation)) or _first_after(line, for_all, last[line.row])
        if request is not None:
            found[line.id], last[line.row] = request, request.id
    return found


def _first_after(line: Row[Any], for_all: Sequence[AnyRow], last: int) -> AnyRow | None:
    """The first request for all rows of a chunk that came when this row had ended, and after another."""
    for request in for_all:
        is_mine = request.first_row <= line.row < request.first_row + request.row_count
        if is_mine and request.id > last and request.accepted_at >= line.at:
            return request
    return None


def _changes(before: Any, after: Any) -> tuple[Change, ...]:
    if not isinstance(after, Mapping):
        return ()
    old = before if isinstance(before, Mapping) else {}
    return tuple(
        Change(name, old.get(name), value) for name, value in after.items() if name not in old or old[name] != value
    )


def _entry(layout: RowLayout, line: Row[Any], asked: AnyRow | None) -> HistoryEntry:
    data = layout.shown(line.data)
    return HistoryEntry(
        row=line.row,
        step=line.step,
        step_name=layout.step_name(line.step),
        generation=line.generation,
        attempt=line.attempt,
        event=line.event,
        error_type=line.error_type,
        message=line.message,
        at=from_micros(line.at),
        data=data,
        actor=None if asked is None else asked.actor,
        asked_at=None if asked is None else from_micros(asked.accepted_at),
        changes=() if asked is None else _changes(data, layout.shown(asked.data)),
    )
