"""Looking at rows. A page opens only the chunks it needs: counters, records and marks say which ones can match."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any, NamedTuple

from sqlalchemy import ColumnElement, Integer, Row, Select, bindparam, func, or_, select

from penstock.db.connection import Connection
from penstock.db.dialects import place_of
from penstock.errors import NotFound
from penstock.operations.chunk.ledger import (
    CANCELLED,
    COMPLETED,
    FAILED,
    INVALID,
    PENDING,
    RUNNING,
    TIMED_OUT,
    WAITING,
    Ledger,
)
from penstock.operations.chunk.packing import StoredRows, unpack_rows
from penstock.operations.chunk.records import ROW_KEY_MAX, StepRecord
from penstock.operations.chunk.store import RECORD, RECORD_BUT_OUTPUT
from penstock.operations.messages import cut
from penstock.operations.model import Page, RowView
from penstock.operations.row_keys import GROUPS, mark
from penstock.operations.tables import chunk_rows, chunks, requests, row_records
from penstock.operations.views.chunk_view import ChunkView, RowLayout

__all__ = ["RowFilter", "chunk_at", "first_row_at", "load_raws", "records_by_chunk", "row", "rows"]

BATCH_MIN, BATCH_MAX = 4, 32  # chunks that are read at once: few at first, more while nothing matches
BATCH_PLAIN = 2  # at first, where every row fits
BATCH_KEY = 8  # at first, in a search for a key: some chunks match by chance
RECORDED_MAX = 1000  # where more chunks have records of a key, all are read, instead of a list of these

Records = dict[tuple[int, int], StepRecord]
Picked = tuple[ChunkView, list[int]]  # a chunk and the places of some rows in it

_IN_LEDGER_ONLY = chunks.c.row_count > sum(
    (chunks.c[name] for name in ("succeeded", "invalid", "failed", "timed_out", "cancelled")), chunks.c.waiting
)
_MAY_HOLD: Mapping[int, ColumnElement[bool]] = {
    PENDING: _IN_LEDGER_ONLY,
    RUNNING: _IN_LEDGER_ONLY,
    WAITING: chunks.c.waiting > 0,
    COMPLETED: chunks.c.succeeded > 0,
    INVALID: chunks.c.invalid > 0,
    FAILED: chunks.c.failed > 0,
    TIMED_OUT: chunks.c.timed_out > 0,
    CANCELLED: chunks.c.cancelled > 0,
}


@dataclass(frozen=True, slots=True)
class RowFilter:
    """Which rows are wanted; a row must fit everything that is given. `states` are the ledger's codes."""

    states: frozenset[int] | None = None
    step: int | None = None
    error_type: str | None = None
    row_key: str | None = None
    first: int = 1
    last: int | None = None

    @property
    def is_plain(self) -> bool:
        """Whether every row from the first on fits."""
        return self == RowFilter(first=self.first)

    def places(self, chunk_view: ChunkView) -> Iterator[int]:
        """The rows of a chunk that fit. Errors and keys need its records, keys its rows too."""
        ledger, first_row = chunk_view.ledger, chunk_view.first_row
        end = ledger.rows if self.last is None else min(ledger.rows, self.last - first_row + 1)
        found: Iterable[int] = range(max(0, self.first - first_row), end)
        if self.row_key is not None:
            keyed = chunk_view.places_of(self.row_key, recorded=cut(self.row_key, ROW_KEY_MAX))
            found = [i for i in keyed if i in found]
        if self.states is not None:
            states, at, steps = self.states, ledger.at, ledger.steps
            if COMPLETED not in states:  # most rows are, and this is quick to see
                found = (i for i in found if at[i] <= steps)
            found = (i for i in found if ledger.state(i) in states)
        if self.step is not None:
            found = (i for i in found if chunk_view.step(i) == self.step)
        if self.error_type is not None:
            found = (
                i
                for i in found
                if (record := chunk_view.current(i)) is not None and record.error_type == self.error_type
            )
        return iter(found)

    def may_match(self, layout: RowLayout) -> list[ColumnElement[bool]]:
        """What must be true of a chunk that holds a row we want."""
        guards: list[ColumnElement[bool]] = []
        if self.last is not None:
            guards.append(chunks.c.first_row <= self.last)
        if self.states is not None:
            guards.append(or_(*(_MAY_HOLD[state] for state in sorted(self.states))))
        if self.step is not None and self.step < layout.steps - 1:
            guards.append(chunks.c.row_count > chunks.c.succeeded)
        if self.error_type is not None:
            guards.append(chunks.c.id.in_(_chunks_with_records(layout, row_records.c.error_type == self.error_type)))
        return guards


async def rows(tx: Connection, layout: RowLayout, wanted: RowFilter, *, limit: int, with_data: bool) -> Page[RowView]:
    """The first `limit` rows that fit, in order; the cursor of the next page is the number of the last one."""
    found: list[RowView] = []
    async for batch in _chunk_batches(tx, layout, wanted):
        picked = await tx.compute(partial(_pick, layout, batch, wanted, limit + 1 - len(found)))
        await _fill(tx, picked, with_data=with_data)
        found += [chunk_view.view(i, with_data=with_data) for chunk_view, places in picked for i in places]
        if len(found) > limit:
            return Page(found[:limit], str(found[limit - 1].number))
    return Page(found)


async def row(tx: Connection, layout: RowLayout, number: int) -> RowView:
    """One row with its data and its steps."""
    chunk = await chunk_at(tx, layout, number)
    if chunk is None:
        known = f"its rows are numbered 1 to {layout.rows_read}" if layout.rows_read else "it has no rows"
        raise NotFound(f"operation {layout.id} has no row {number}; {known}")
    chunk_view, i = _chunk_view(layout, chunk), number - chunk.first_row
    await _fill(tx, [(chunk_view, [i])], with_data=True)
    return chunk_view.view(i, with_data=True)


async def chunk_at(tx: Connection, layout: RowLayout, number: int) -> Row[Any] | None:
    """The chunk that holds a row."""
    query = _chunks(layout).where(chunks.c.first_row <= number).order_by(chunks.c.first_row.desc()).limit(1)
    found = (await tx.execute(query)).one_or_none()
    return found if found is not None and number < found.first_row + found.row_count else None


def first_row_at(layout: RowLayout, number: int) -> ColumnElement[int]:
    """The first row of the chunk that holds a row, found by the index alone."""
    return _first_row_of(chunks.c.operation == layout.number, chunks.c.first_row <= number)


def _first_row_of(*fits: ColumnElement[bool]) -> ColumnElement[int]:
    """The last of the first rows of the chunks that fit; 1 where none does."""
    return func.coalesce(select(func.max(chunks.c.first_row)).where(*fits).scalar_subquery(), 1)


async def load_raws(tx: Connection, ids: Sequence[int]) -> dict[int, StoredRows]:
    """The stored rows of chunks; one whose rows are not tracked is missing."""
    if not ids:
        return {}
    stored = (await tx.execute(_RAWS, {"chunks": ids})).all()
    return await tx.compute(lambda: {found.chunk: unpack_rows(found.data) for found in stored})


# --- batches: a few chunks at a time, as long as the caller asks for more


class _StoredChunk(NamedTuple):
    """What is read of a chunk."""

    id: int
    first_row: int
    row_count: int
    ledger: bytes


Batch = tuple[Sequence[Row[Any] | _StoredChunk], Mapping[int, Records], Mapping[int, StoredRows | None]]
"""Chunks to look for rows in, with their records and rows where those decide."""


def _pick(layout: RowLayout, batch: Batch, wanted: RowFilter, missing: int) -> list[Picked]:
    """The first rows that fit; the chunks behind them are not opened."""
    found, records, raws = batch
    picked: list[Picked] = []
    for chunk in found:
        chunk_view = _chunk_view(layout, chunk)
        chunk_view.records, chunk_view.raws = records.get(chunk.id, {}), raws.get(chunk.id)
        places = list(islice(wanted.places(chunk_view), missing))
        missing -= len(places)
        if places:
            picked.append((chunk_view, places))
        if not missing:
            break
    return picked


async def _chunk_batches(tx: Connection, layout: RowLayout, wanted: RowFilter) -> AsyncIterator[Batch]:
    search = None if wanted.row_key is None else await _key_search(tx, layout, wanted.row_key)
    if wanted.is_plain:
        near = await tx.send(_FIRST_CHUNKS, {"number": layout.number, "row": wanted.first})
        plain = [_StoredChunk(*chunk) for chunk in near.rows]
        yield plain, {}, {}
        if len(plain) < BATCH_PLAIN:
            return
        start: ColumnElement[bool] = chunks.c.first_row > plain[-1].first_row
    else:
        start = chunks.c.first_row >= first_row_at(layout, wanted.first)
    query, size = _chunks(layout).where(*wanted.may_match(layout)).order_by(chunks.c.first_row), BATCH_MIN
    if search is not None:
        query, size = search.narrowed(query), BATCH_KEY
    while True:
        found = (await tx.execute(query.where(start).limit(size))).all()
        raws = {} if search is None else await tx.compute(partial(search.pick, found))
        possible = found if search is None else [chunk for chunk in found if chunk.id in raws]
        decides = wanted.error_type is not None or search is not None
        records = await records_by_chunk(tx, [chunk.id for chunk in possible]) if decides else {}
        yield possible, records, raws
        if len(found) < size:
            return
        start = chunks.c.first_row > found[-1].first_row
        size = min(size * 2, BATCH_MAX)


def _chunks(layout: RowLayout) -> Select[Any]:
    return select(*_CHUNK).where(chunks.c.operation == layout.number)


def _chunk_view(layout: RowLayout, chunk: Row[Any] | _StoredChunk) -> ChunkView:
    ledger = Ledger.decode(chunk.ledger, rows=chunk.row_count, steps=layout.steps, base=0)
    return ChunkView(layout, chunk.id, chunk.first_row, ledger)


async def _fill(tx: Connection, picked: Sequence[Picked], *, with_data: bool) -> None:
    """Add what the rows' views need: their records, and the chunks' rows unless the records have every key."""
    if picked:
        numbers = [chunk_view.first_row + i for chunk_view, places in picked for i in places]
        are_all = len(numbers) == numbers[-1] - numbers[0] + 1
        given = {"chunks": [chunk_view.chunk for chunk_view, _ in picked], "first": numbers[0], "last": numbers[-1]}
        shown = _WHOLE_RECORDS if are_all else _WHOLE_RECORDS_OF
        records = _by_chunk(await tx.execute(shown, given if are_all else given | {"rows": numbers}))
        for chunk_view, _ in picked:
            chunk_view.records = records.get(chunk_view.chunk, {})
    unread = [
        chunk_view
        for chunk_view, places in picked
        if chunk_view.raws is None and (with_data or chunk_view.lacks_a_key(places))
    ]
    raws = await load_raws(tx, [chunk_view.chunk for chunk_view in unread])
    for chunk_view in unread:
        chunk_view.raws = raws.get(chunk_view.chunk)


async def records_by_chunk(tx: Connection, ids: Sequence[int]) -> dict[int, Records]:
    """The records of chunks, by chunk, without what steps returned."""
    return _by_chunk(await tx.execute(_RECORDS, {"chunks": ids})) if ids else {}


def _by_chunk(stored: Iterable[Row[*tuple[Any, ...]]]) -> dict[int, Records]:
    records: dict[int, Records] = {}
    for found in stored:
        records.setdefault(found.chunk, {})[found.row, found.step] = StepRecord(*found)
    return records


# Made once: to make a statement takes longer than to run it.
_CHUNK = tuple(chunks.c[name] for name in _StoredChunk._fields)
_OF_OPERATION = chunks.c.operation == bindparam("number")
_FIRST_CHUNKS = (
    select(*_CHUNK)
    .where(_OF_OPERATION, chunks.c.first_row >= _first_row_of(_OF_OPERATION, chunks.c.first_row <= bindparam("row")))
    .order_by(chunks.c.first_row)
    .limit(BATCH_PLAIN)
)
_RAWS = select(chunk_rows.c.chunk, chunk_rows.c.data).where(chunk_rows.c.chunk.in_(bindparam("chunks", expanding=True)))
_OF_CHUNKS = row_records.c.chunk.in_(bindparam("chunks", expanding=True))
_RECORDS = select(*RECORD_BUT_OUTPUT).where(_OF_CHUNKS)
_WHOLE_RECORDS = select(*RECORD).where(_OF_CHUNKS, row_records.c.row.between(bindparam("first"), bindparam("last")))
_WHOLE_RECORDS_OF = _WHOLE_RECORDS.where(row_records.c.row.in_(bindparam("rows", expanding=True)))


def _chunks_with_records(layout: RowLayout, *fits: ColumnElement[bool]) -> Select[Any]:
    return select(row_records.c.chunk).where(row_records.c.operation == layout.number, *fits)


# --- keys: most rows have theirs only in the chunk's data


@dataclass(frozen=True, slots=True)
class _KeySearch:
    """Looks for a key: by the marks of chunks, then by its bytes in their rows; only what has them is decoded."""

    layout: RowLayout
    key: str
    recorded: frozenset[int]  # chunks with a record that may be of that key

    def narrowed(self, query: Select[Any]) -> Select[Any]:
        """The chunks that may hold the key, with their rows where those are stored."""
        query = query.add_columns(chunk_rows.c.data).outerjoin(chunk_rows, chunk_rows.c.chunk == chunks.c.id)
        if len(self.recorded) > RECORDED_MAX:
            return query
        is_recorded, marks = chunks.c.id.in_(self.recorded), chunk_rows.c.key_marks
        if not (self.layout.key_names and self.layout.tracks_rows):
            return query.where(is_recorded)
        group, wanted = mark(self.key)
        room = func.length(marks, type_=Integer) // GROUPS
        is_marked = place_of(wanted, func.substr(marks, 1 + group * room, room)) > 0
        # Chunks that were stored before there were marks have none.
        return query.where(or_(is_recorded, marks.is_(None), is_marked))

    def pick(self, found: Sequence[Row[Any]]) -> dict[int, StoredRows | None]:
        """The rows of those that do hold its bytes or have a record, by chunk."""
        text = self.layout.text_of(self.key)
        picked: dict[int, StoredRows | None] = {chunk.id: None for chunk in found if chunk.id in self.recorded}
        for chunk in found:
            rows = None if chunk.data is None else unpack_rows(chunk.data)
            if rows is not None and (chunk.id in self.recorded or any(rows.near(text))):
                picked[chunk.id] = rows
        return picked


async def _key_search(tx: Connection, layout: RowLayout, key: str) -> _KeySearch:
    # Records hold keys too, and edits may have changed them.
    is_edit = (requests.c.operation == layout.number, requests.c.kind == "edit")
    edited = select(requests.c.chunk).where(*is_edit)
    is_of_key = row_records.c.row_key == cut(key, ROW_KEY_MAX)
    found = await tx.execute(_chunks_with_records(layout, is_of_key).union(edited))
    return _KeySearch(layout, key, frozenset(found.scalars()))
