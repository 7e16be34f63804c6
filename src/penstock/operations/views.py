"""Looking at rows. A page opens only the chunks it needs: counters and records say which ones can match."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
from sqlalchemy import ColumnElement, Row, Select, func, or_, select

from penstock.db.connection import Connection
from penstock.errors import InvalidInput, NotFound
from penstock.operations.held import Story, unpack_rows
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
    decompress,
)
from penstock.operations.model import Page, RowView
from penstock.operations.rules.decide import cut
from penstock.operations.sheet import Outline, Sheet
from penstock.operations.tables import chunk_rows, chunks, row_records

__all__ = ["RowFilter", "chunk_at", "load_raws", "parse_cursor", "row", "rows"]

SLAB_MIN, SLAB_MAX = 2, 32  # chunks that are read at once: few for a page in sight, more while nothing matches

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

    def places(self, sheet: Sheet) -> list[int]:
        """The rows of a chunk that fit. Errors and keys need its records, keys its rows too."""
        ledger, first_row = sheet.ledger, sheet.first_row
        end = ledger.rows if self.last is None else min(ledger.rows, self.last - first_row + 1)
        found: Iterable[int] = range(max(0, self.first - first_row), end)
        if self.states is not None:
            found = [i for i in found if ledger.state(i) in self.states]
        if self.step is not None:
            found = [i for i in found if sheet.step(i) == self.step]
        if self.error_type is not None:
            found = [i for i in found if (told := sheet.current(i)) is not None and told.error_type == self.error_type]
        if self.row_key is not None:
            recorded = cut(self.row_key, 200)
            found = [i for i in found if sheet.has_key(i, self.row_key, recorded=recorded)]
        return list(found)

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
        picked: list[tuple[Sheet, list[int]]] = []
        missing = limit + 1 - len(found)
        for sheet in slab:
            places = wanted.places(sheet)[:missing]
            if places:
                picked.append((sheet, places))
                missing -= len(places)
            if not missing:
                break
        await _fill(tx, [sheet for sheet, _ in picked], with_rows=with_data or bool(outline.key_names))
        found += [sheet.view(i, with_data=with_data) for sheet, places in picked for i in places]
        if not missing:
            return Page(found[:limit], str(found[limit - 1].number))
    return Page(found)


async def row(tx: Connection, outline: Outline, number: int) -> RowView:
    """One row with its data and its steps."""
    chunk = await chunk_at(tx, outline, number)
    if chunk is None:
        raise NotFound(
            f"operation {outline.id} has no row {number}; it has {outline.rows_read:,} rows, numbered from 1"
        )
    sheet = _sheet(outline, chunk)
    await _fill(tx, [sheet], with_rows=True)
    return sheet.view(number - sheet.first_row, with_data=True)


async def chunk_at(tx: Connection, outline: Outline, number: int) -> Row[Any] | None:
    """The chunk that holds a row."""
    query = _chunks(outline).where(chunks.c.first_row <= number).order_by(chunks.c.first_row.desc()).limit(1)
    found = (await tx.execute(query)).one_or_none()
    return found if found is not None and number < found.first_row + found.row_count else None


async def load_raws(tx: Connection, ids: Sequence[int]) -> dict[int, list[Any]]:
    """The stored rows of chunks; one whose rows are not tracked is missing."""
    stored = {found.chunk: found.data for found in await _stored_rows(tx, ids)}
    return await asyncio.to_thread(lambda: {chunk: unpack_rows(data) for chunk, data in stored.items()})


# --- slabs: a few chunks at a time, as long as the caller asks for more


async def _slabs(tx: Connection, outline: Outline, wanted: RowFilter) -> AsyncIterator[list[Sheet]]:
    size, start = SLAB_MIN, chunks.c.first_row >= func.coalesce(_first_row_at(outline, wanted.first), 1)
    search = None if wanted.row_key is None else await _key_search(tx, outline, wanted.row_key)
    while True:
        query = _chunks(outline).where(start, *wanted.may_match(outline)).order_by(chunks.c.first_row).limit(size)
        found = (await tx.execute(query)).all()
        if not found:
            return
        start = chunks.c.first_row > found[-1].first_row
        raws = {} if search is None else await search.pick(tx, [chunk.id for chunk in found])
        sheets = await asyncio.to_thread(
            _open, outline, found if search is None else [c for c in found if c.id in raws]
        )
        for sheet in sheets:
            sheet.raws = raws.get(sheet.chunk)
        if wanted.error_type is not None or search is not None:
            await _tell(tx, sheets)
        yield sheets
        size = min(size * 2, SLAB_MAX)


def _chunks(outline: Outline) -> Select[Any]:
    columns = (chunks.c.id, chunks.c.first_row, chunks.c.row_count, chunks.c.ledger)
    return select(*columns).where(chunks.c.operation == outline.number)


def _first_row_at(outline: Outline, number: int) -> ColumnElement[int]:
    """The first row of the chunk that holds a row, by the index alone."""
    query = select(func.max(chunks.c.first_row))
    return query.where(chunks.c.operation == outline.number, chunks.c.first_row <= number).scalar_subquery()


def _open(outline: Outline, found: Sequence[Row[Any]]) -> list[Sheet]:
    return [_sheet(outline, chunk) for chunk in found]


def _sheet(outline: Outline, chunk: Row[Any]) -> Sheet:
    ledger = Ledger.decode(chunk.ledger, rows=chunk.row_count, steps=outline.steps, base=0)
    return Sheet(outline, chunk.id, chunk.first_row, ledger)


async def _fill(tx: Connection, sheets: Sequence[Sheet], *, with_rows: bool) -> None:
    """Add to each chunk its records, and its rows where they are stored."""
    await _tell(tx, sheets)
    missing = [sheet.chunk for sheet in sheets if sheet.raws is None] if with_rows else []
    raws = await load_raws(tx, missing)
    for sheet in sheets:
        sheet.raws = raws.get(sheet.chunk, sheet.raws)


async def _tell(tx: Connection, sheets: Sequence[Sheet]) -> None:
    ids = [sheet.chunk for sheet in sheets if not sheet.stories]
    if not ids:
        return
    told: dict[int, dict[tuple[int, int], Story]] = {}
    for found in await tx.execute(select(row_records).where(row_records.c.chunk.in_(ids))):
        told.setdefault(found.chunk, {})[found.row, found.step] = Story(**found._mapping)
    for sheet in sheets:
        sheet.stories = told.get(sheet.chunk, sheet.stories)


async def _stored_rows(tx: Connection, ids: Sequence[int]) -> Sequence[Row[Any]]:
    return (await tx.execute(select(chunk_rows).where(chunk_rows.c.chunk.in_(ids)))).all() if ids else []


def _chunks_told(outline: Outline, *fits: ColumnElement[bool]) -> Select[Any]:
    return select(row_records.c.chunk).where(row_records.c.operation == outline.number, *fits)


# --- keys: most rows have theirs only in the chunk's data


@dataclass(frozen=True, slots=True)
class _KeySearch:
    """Looks through the stored rows for a key's bytes, so that only a chunk that has them is decoded."""

    needle: bytes
    told: frozenset[int]  # chunks with a record that may be of that key

    async def pick(self, tx: Connection, ids: Sequence[int]) -> dict[int, list[Any] | None]:
        """The chunks that may hold the key, with their rows where those are stored."""
        return await asyncio.to_thread(self._look_through, ids, await _stored_rows(tx, ids))

    def _look_through(self, ids: Sequence[int], stored: Sequence[Row[Any]]) -> dict[int, list[Any] | None]:
        picked: dict[int, list[Any] | None] = {chunk: None for chunk in ids if chunk in self.told}
        for found in stored:
            text = decompress(found.data)
            if self.needle in text or found.chunk in self.told:
                picked[found.chunk] = msgspec.json.decode(text)
        return picked


async def _key_search(tx: Connection, outline: Outline, key: str) -> _KeySearch:
    # Records hold keys too, and edits, which may have changed them.
    is_told = or_(row_records.c.row_key == cut(key, 200), row_records.c.data.is_not(None))
    told = await tx.execute(_chunks_told(outline, is_told))
    # Cells are quoted text. A key of a JSON record may be a number, which is not quoted and has several spellings.
    is_number = outline.columns is None and key.lstrip("-")[:1].isdigit()
    needle = msgspec.json.encode(key)
    return _KeySearch(b"" if is_number else needle, frozenset(told.scalars()))
