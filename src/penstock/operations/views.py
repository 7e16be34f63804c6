"""Looking at rows. A page opens only the chunks it needs: counters, records and marks say which ones can match."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from sqlalchemy import ColumnElement, Integer, Row, Select, func, or_, select

from penstock.db.connection import Connection
from penstock.db.dialects import place_of
from penstock.errors import InvalidInput, NotFound
from penstock.operations.held import StoredRows, Story, unpack_rows
from penstock.operations.keys import GROUPS, mark
from penstock.operations.ledger import (
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
from penstock.operations.model import Page, RowView
from penstock.operations.rules.decide import cut
from penstock.operations.sheet import Outline, Sheet
from penstock.operations.tables import chunk_rows, chunks, requests, row_records

__all__ = ["RowFilter", "chunk_at", "first_row_at", "load_raws", "parse_cursor", "row", "rows"]

SLAB_MIN, SLAB_MAX = 4, 32  # chunks that are read at once: few for a page in sight, more while nothing matches
SLAB_KEY = 8  # to begin with, where some will merely look right
TOLD_MAX = 1000  # where so many chunks have records of a key, all are looked at rather than these named

_STORY = tuple(row_records.c[name] for name in Story.__dataclass_fields__)
Stories = dict[tuple[int, int], Story]
Picked = tuple[Sheet, list[int]]  # a chunk and the places of some rows in it

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

    def places(self, sheet: Sheet) -> Iterator[int]:
        """The rows of a chunk that fit. Errors and keys need its records, keys its rows too."""
        ledger, first_row = sheet.ledger, sheet.first_row
        end = ledger.rows if self.last is None else min(ledger.rows, self.last - first_row + 1)
        found: Iterable[int] = range(max(0, self.first - first_row), end)
        if self.row_key is not None:
            keyed = sheet.places_of(self.row_key, recorded=cut(self.row_key, 200))
            found = [i for i in keyed if i in found]
        if self.states is not None:
            states, at, steps = self.states, ledger.at, ledger.steps
            if COMPLETED not in states:  # most rows are, and are seen to be at a glance
                found = (i for i in found if at[i] <= steps)
            found = (i for i in found if ledger.state(i) in states)
        if self.step is not None:
            found = (i for i in found if sheet.step(i) == self.step)
        if self.error_type is not None:
            found = (i for i in found if (told := sheet.current(i)) is not None and told.error_type == self.error_type)
        return iter(found)

    def may_match(self, outline: Outline) -> list[ColumnElement[bool]]:
        """What must be true of a chunk that holds a row we want."""
        guards: list[ColumnElement[bool]] = []
        if self.last is not None:
            guards.append(chunks.c.first_row <= self.last)
        if self.states is not None:
            guards.append(or_(*(_MAY_HOLD[state] for state in sorted(self.states))))
        if self.step is not None and self.step < outline.steps - 1:
            guards.append(chunks.c.row_count > chunks.c.succeeded)
        if self.error_type is not None:
            guards.append(chunks.c.id.in_(_chunks_told(outline, row_records.c.error_type == self.error_type)))
        return guards


def parse_cursor(cursor: str | None) -> int:
    """The number of the last row of the page before."""
    if cursor is None:
        return 0
    if not (cursor.isascii() and cursor.isdigit()):
        raise InvalidInput(f"{cursor!r} is not a cursor of this list")
    return int(cursor)


async def rows(tx: Connection, outline: Outline, wanted: RowFilter, *, limit: int, with_data: bool) -> Page[RowView]:
    """The first `limit` rows that fit, in order; the cursor of the next page is the number of the last one."""
    found: list[RowView] = []
    async for slab in _slabs(tx, outline, wanted):
        picked = await asyncio.to_thread(slab.pick, wanted, limit + 1 - len(found))
        await _fill(tx, picked, with_data=with_data)
        found += [sheet.view(i, with_data=with_data) for sheet, places in picked for i in places]
        if len(found) > limit:
            return Page(found[:limit], str(found[limit - 1].number))
    return Page(found)


async def row(tx: Connection, outline: Outline, number: int) -> RowView:
    """One row with its data and its steps."""
    chunk = await chunk_at(tx, outline, number)
    if chunk is None:
        held = f"its rows are numbered 1 to {outline.rows_read}" if outline.rows_read else "it has no rows"
        raise NotFound(f"operation {outline.id} has no row {number}; {held}")
    sheet, i = _sheet(outline, chunk), number - chunk.first_row
    await _fill(tx, [(sheet, [i])], with_data=True)
    return sheet.view(i, with_data=True)


async def chunk_at(tx: Connection, outline: Outline, number: int) -> Row[Any] | None:
    """The chunk that holds a row."""
    query = _chunks(outline).where(chunks.c.first_row <= number).order_by(chunks.c.first_row.desc()).limit(1)
    found = (await tx.execute(query)).one_or_none()
    return found if found is not None and number < found.first_row + found.row_count else None


def first_row_at(outline: Outline, number: int) -> ColumnElement[int]:
    """The first row of the chunk that holds a row, found by the index alone."""
    query = select(func.max(chunks.c.first_row))
    found = query.where(chunks.c.operation == outline.number, chunks.c.first_row <= number).scalar_subquery()
    return func.coalesce(found, 1)


async def load_raws(tx: Connection, ids: Sequence[int]) -> dict[int, StoredRows]:
    """The stored rows of chunks; one whose rows are not tracked is missing."""
    if not ids:
        return {}
    query = select(chunk_rows.c.chunk, chunk_rows.c.data).where(chunk_rows.c.chunk.in_(ids))
    stored = (await tx.execute(query)).all()
    return await asyncio.to_thread(lambda: {found.chunk: unpack_rows(found.data) for found in stored})


# --- slabs: a few chunks at a time, as long as the caller asks for more


@dataclass(frozen=True, slots=True)
class _Slab:
    """Chunks to look for rows in, with their records and rows where those decide."""

    outline: Outline
    chunks: Sequence[Row[Any]]
    stories: Mapping[int, Stories]
    raws: Mapping[int, StoredRows | None]

    def pick(self, wanted: RowFilter, missing: int) -> list[Picked]:
        """The first rows that fit; the chunks behind them are not even opened."""
        picked: list[Picked] = []
        for chunk in self.chunks:
            sheet = _sheet(self.outline, chunk)
            sheet.stories, sheet.raws = self.stories.get(chunk.id, {}), self.raws.get(chunk.id)
            places = list(islice(wanted.places(sheet), missing))
            missing -= len(places)
            if places:
                picked.append((sheet, places))
            if not missing:
                break
        return picked


async def _slabs(tx: Connection, outline: Outline, wanted: RowFilter) -> AsyncIterator[_Slab]:
    search = None if wanted.row_key is None else await _key_search(tx, outline, wanted.row_key)
    start = chunks.c.first_row >= first_row_at(outline, wanted.first)
    query, size = _chunks(outline).where(*wanted.may_match(outline)).order_by(chunks.c.first_row), SLAB_MIN
    if search is not None:
        query, size = search.narrowed(query), SLAB_KEY
    while True:
        found = (await tx.execute(query.where(start).limit(size))).all()
        raws = {} if search is None else await asyncio.to_thread(search.pick, found)
        hopeful = found if search is None else [chunk for chunk in found if chunk.id in raws]
        decides = wanted.error_type is not None or search is not None
        stories = await _stories(tx, [chunk.id for chunk in hopeful]) if decides else {}
        yield _Slab(outline, hopeful, stories, raws)
        if len(found) < size:
            return
        start = chunks.c.first_row > found[-1].first_row
        size = min(size * 2, SLAB_MAX)


def _chunks(outline: Outline) -> Select[Any]:
    columns = (chunks.c.id, chunks.c.first_row, chunks.c.row_count, chunks.c.ledger)
    return select(*columns).where(chunks.c.operation == outline.number)


def _sheet(outline: Outline, chunk: Row[Any]) -> Sheet:
    ledger = Ledger.decode(chunk.ledger, rows=chunk.row_count, steps=outline.steps, base=0)
    return Sheet(outline, chunk.id, chunk.first_row, ledger)


async def _fill(tx: Connection, picked: Sequence[Picked], *, with_data: bool) -> None:
    """Add what the rows' views need: their records, and the chunks' rows unless the records have every key."""
    untold = [sheet for sheet, _ in picked if not sheet.stories]
    if untold:
        numbers = [sheet.first_row + i for sheet, places in picked for i in places]
        is_near = row_records.c.row.between(numbers[0], numbers[-1])
        told = await _stories(tx, [sheet.chunk for sheet in untold], is_near)
        for sheet in untold:
            sheet.stories = told.get(sheet.chunk, {})
    unread = [sheet for sheet, places in picked if sheet.raws is None and (with_data or sheet.lacks_a_key(places))]
    raws = await load_raws(tx, [sheet.chunk for sheet in unread])
    for sheet in unread:
        sheet.raws = raws.get(sheet.chunk)


async def _stories(tx: Connection, ids: Sequence[int], *fits: ColumnElement[bool]) -> dict[int, Stories]:
    """The records of chunks, those that fit."""
    told: dict[int, Stories] = {}
    if ids:
        for found in await tx.execute(select(*_STORY).where(row_records.c.chunk.in_(ids), *fits)):
            told.setdefault(found.chunk, {})[found.row, found.step] = Story(*found)
    return told


def _chunks_told(outline: Outline, *fits: ColumnElement[bool]) -> Select[Any]:
    return select(row_records.c.chunk).where(row_records.c.operation == outline.number, *fits)


# --- keys: most rows have theirs only in the chunk's data


@dataclass(frozen=True, slots=True)
class _KeySearch:
    """Looks for a key: by the marks of chunks, then by its bytes in their rows; only what has them is decoded."""

    outline: Outline
    key: str
    told: frozenset[int]  # chunks with a record that may be of that key

    def narrowed(self, query: Select[Any]) -> Select[Any]:
        """The chunks that may hold the key, with their rows where those are stored."""
        query = query.add_columns(chunk_rows.c.data).outerjoin(chunk_rows, chunk_rows.c.chunk == chunks.c.id)
        if len(self.told) > TOLD_MAX:
            return query
        is_told, marks = chunks.c.id.in_(self.told), chunk_rows.c.key_marks
        if not (self.outline.key_names and self.outline.tracks_rows):
            return query.where(is_told)
        group, wanted = mark(self.key)
        room = func.length(marks, type_=Integer) // GROUPS
        is_marked = place_of(wanted, func.substr(marks, 1 + group * room, room)) > 0
        # Chunks that were stored before there were marks have none.
        return query.where(or_(is_told, marks.is_(None), is_marked))

    def pick(self, found: Sequence[Row[Any]]) -> dict[int, StoredRows | None]:
        """The rows of those that do hold its bytes or have a record, by chunk."""
        text = self.outline.text_of(self.key)
        picked: dict[int, StoredRows | None] = {chunk.id: None for chunk in found if chunk.id in self.told}
        for chunk in found:
            rows = None if chunk.data is None else unpack_rows(chunk.data)
            if rows is not None and (chunk.id in self.told or any(rows.near(text))):
                picked[chunk.id] = rows
        return picked


async def _key_search(tx: Connection, outline: Outline, key: str) -> _KeySearch:
    # Records hold keys too, and edits may have changed them.
    is_edit = (requests.c.operation == outline.number, requests.c.kind == "edit")
    edited = select(requests.c.chunk).where(*is_edit)
    told = await tx.execute(_chunks_told(outline, row_records.c.row_key == cut(key, 200)).union(edited))
    return _KeySearch(outline, key, frozenset(told.scalars()))
