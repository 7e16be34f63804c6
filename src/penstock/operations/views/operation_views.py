"""Looking at operations: one, many, and what happened to them. Lists are paged by key, newest or oldest first."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, RowMapping, bindparam, case, exists, func, or_, select, tuple_

from penstock.blobs.model import StoredBytes
from penstock.clock import from_micros, micros
from penstock.db.connection import Connection
from penstock.db.database import Database
from penstock.db.types import storable
from penstock.errors import InvalidInput, NotFound
from penstock.journal import queries as journal
from penstock.journal.tables import transitions
from penstock.listing import named, parse_number_cursor
from penstock.operations.counts import Counts
from penstock.operations.model import Event, Operation, Page
from penstock.operations.operation_ids import IS_THERE, find
from penstock.operations.row_keys import key_names
from penstock.operations.states import OPERATION
from penstock.operations.tables import chunks, operations, workers
from penstock.operations.views.chunk_view import RowLayout
from penstock.operations.visibility import EVERYTHING, Visible
from penstock.operations.worker_records import WorkerCode, code_of_live_workers, misfits
from penstock.pipeline import Definition

__all__ = [
    "OperationFilter",
    "count_by_status",
    "count_operations",
    "events",
    "file_of",
    "get",
    "is_time_counted",
    "latest_instant",
    "layout",
    "list_operations",
    "stored_metadata",
    "tallies",
]

FEED_READ = 500

Stored = Mapping[str, Any] | RowMapping
"""The columns of an operation."""

_SORT_COLUMNS = {
    "created_at": operations.c.number,
    "name": operations.c.name,
    "status": operations.c.state,
    "total_rows": operations.c.total_rows,
}


# Statements that are asked for often are made once.
_WHOLE = select(operations)
_METADATA = select(operations.c.metadata, operations.c.encrypted_metadata).where(
    operations.c.number == bindparam("number")
)
_LAYOUT = select(*(operations.c[name] for name in ("number", "id", "name", "rows_read", "columns", "plan")))


async def latest_instant(tx: Connection, lease_s: float) -> int:
    """The latest instant that is known to have passed: of the last move of an operation, or of a worker's last beat."""
    last = select(func.max(transitions.c.sequence)).scalar_subquery()
    moved = (await tx.execute(select(transitions.c.at).where(transitions.c.sequence == last))).scalar()
    leased = (await tx.execute(select(func.max(workers.c.lease_until)))).scalar()
    return max(moved or 0, (leased or 0) - round(lease_s * 1e6))


async def is_time_counted(tx: Connection, db: Database) -> bool:
    """Whether any worker has a lease, or any operation is under way, in which rows may wait until a deadline."""
    has_workers = exists().where(workers.c.lease_until >= db.now())
    has_operations = exists().where(operations.c.state.not_in(OPERATION.settled))
    return bool((await tx.execute(select(or_(has_workers, has_operations)))).scalar())


async def get(db: Database, tx: Connection, operation: str, visible: Visible = EVERYTHING) -> Operation:
    """The operation with this id."""
    row = await find(tx, _WHOLE, operation, visible)
    found = (await tx.send(_SUMS_OF_ONE, {"number": row["number"]})).rows
    tallied = _tallied(*found[0]) if found else Tallied()
    return _operation(row, tallied, await _live_code(db, tx, [row]))


async def layout(
    tx: Connection, operation: str, definitions: Mapping[str, Definition], visible: Visible = EVERYTHING
) -> RowLayout:
    """What it takes to read the operation's rows; `definitions`, where it is among them, know its key's other names."""
    row = await find(tx, _LAYOUT, operation, visible)
    known = definitions.get(row["name"].casefold())
    plan, columns = row["plan"], row["columns"]
    return RowLayout(
        number=row["number"],
        id=row["id"],
        name=row["name"],
        rows_read=row["rows_read"],
        columns=None if columns is None else tuple(columns),
        plan=plan,
        key_names=key_names(plan["row_key"], known.row.fields if known else ()),
        secret_names=tuple({*plan.get("secret_fields", ()), *(known.row.secret_names if known else ())}),
    )


async def stored_metadata(tx: Connection, number: int) -> tuple[Any, str | None]:
    """An operation's metadata as it is shown, and encrypted as a whole where it holds secrets."""
    shown, encrypted = (await tx.send(_METADATA, {"number": number})).one()
    return shown, encrypted


@dataclass(frozen=True, slots=True)
class OperationFilter:
    """Which operations are wanted; one must fit everything that is given."""

    name: str | None = None
    status: Iterable[str] | None = None
    created_by: str | None = None
    created_from: datetime | None = None
    created_to: datetime | None = None
    visible: Visible = EVERYTHING

    def conditions(self) -> list[ColumnElement[bool]]:
        """What must be true of an operation."""
        wanted: list[ColumnElement[bool]] = [IS_THERE, *self.visible.conditions]
        if self.name is not None:
            wanted.append(_contains(operations.c.name, self.name))
        if self.created_by is not None:
            wanted.append(_contains(operations.c.created_by, self.created_by))
        if self.status is not None:
            wanted.append(operations.c.state.in_(named(self.status, OPERATION.states, "status")))
        if self.created_from is not None:
            wanted.append(operations.c.created_at >= _instant("created_from", self.created_from))
        if self.created_to is not None:
            wanted.append(operations.c.created_at < _instant("created_to", self.created_to))
        return wanted


def _contains(column: ColumnElement[str], text: str) -> ColumnElement[bool]:
    """Whether a text is in a column, ignoring case; that of letters beyond ASCII only where the database knows it."""
    lower = func.lower(column)
    as_written = storable(text).encode().lower().decode()  # but for ASCII
    return or_(*(lower.contains(each, autoescape=True) for each in {text.lower(), as_written}))


def _instant(name: str, given: datetime) -> int:
    if given.tzinfo is None:
        raise InvalidInput(f"{name} takes an instant with its time zone, such as datetime.now(UTC)")
    return micros(given)


async def count_operations(tx: Connection, filters: OperationFilter) -> int:
    """How many operations match."""
    query = select(func.count()).select_from(operations).where(*filters.conditions())
    return int((await tx.execute(query)).scalar_one())


async def file_of(tx: Connection, operation: str, visible: Visible = EVERYTHING) -> tuple[str, StoredBytes]:
    """The name of the file, and where its bytes are; `NotFound` once they were removed."""
    row = await find(tx, _WHOLE, operation, visible)
    if "files" in (row["pruned"] or {}):
        raise NotFound(f"the file of operation {row['id']} was removed")
    stored = (row[name] for name in ("file_key", "file_bytes", "file_sha256", "file_version"))
    return row["file_name"], StoredBytes(*stored)


async def list_operations(
    db: Database,
    tx: Connection,
    filters: OperationFilter,
    *,
    sort: str,
    descending: bool,
    cursor: str | None,
    offset: int,
    limit: int,
) -> Page[Operation]:
    """Operations that match every filter given; names and creators match when they contain the text, ignoring case."""
    if sort not in _SORT_COLUMNS:
        raise InvalidInput(f"operations cannot be sorted by {sort!r}; they can by: {', '.join(_SORT_COLUMNS)}")
    query = select(operations).where(*filters.conditions())
    by = _SORT_COLUMNS[sort]
    if cursor is not None:
        place = tuple_(by, operations.c.number)
        mark = _parse_cursor(cursor, is_number=sort in ("created_at", "total_rows"))
        query = query.where(place < mark if descending else place > mark)
    order = (by.desc(), operations.c.number.desc()) if descending else (by.asc(), operations.c.number.asc())
    rows = [row._mapping for row in await tx.execute(query.order_by(*order).offset(offset).limit(limit + 1))]
    next_cursor = None
    if len(rows) > limit:
        last = rows[limit - 1]
        next_cursor = f"{last['number']}:{last[by.name]}"
    shown = rows[:limit]
    counts = await tallies(tx, [row["number"] for row in shown])
    live = await _live_code(db, tx, shown)
    return Page([_operation(row, counts.get(row["number"], Tallied()), live) for row in shown], next_cursor)


async def count_by_status(tx: Connection, visible: Visible = EVERYTHING) -> dict[str, int]:
    """How many operations are in which state."""
    mine = (IS_THERE, *visible.conditions)
    query = select(operations.c.state, func.count()).where(*mine).group_by(operations.c.state)
    return {state: int(number) for state, number in await tx.execute(query)}


@dataclass(frozen=True, slots=True)
class Tallied:
    """An operation's counters: its verdicts, and how far its rows have come."""

    counts: Counts = field(default_factory=Counts)
    rows_over: int = 0  # rows of closed chunks, but for those that were cancelled
    steps_done: int = 0  # of rows of open chunks


_COUNTERS = [counter.name for counter in fields(Counts)]
_IS_OVER = chunks.c.is_open == 0
# Made once, because it is asked for often. In this order SQLite does not read past the ledgers of closed chunks.
_SUMS = select(
    chunks.c.operation,
    func.sum(case((_IS_OVER, chunks.c.row_count - chunks.c.cancelled), else_=0)),
    func.sum(case((_IS_OVER, 0), else_=func.coalesce(chunks.c.steps_done, 0))),
    *(func.sum(chunks.c[name]) for name in _COUNTERS),
).group_by(chunks.c.operation)
_SUMS_OF_ONE = _SUMS.where(chunks.c.operation == bindparam("number"))
_SUMS_OF_MANY = _SUMS.where(chunks.c.operation.in_(bindparam("numbers", expanding=True)))


async def tallies(tx: Connection, numbers: Sequence[int]) -> dict[int, Tallied]:
    """The counters of several operations; one without chunks is missing."""
    return {sums[0]: _tallied(*sums) for sums in await tx.execute(_SUMS_OF_MANY, {"numbers": [*numbers]})}


def _tallied(_operation: int, rows_over: int, steps_done: int, *counts: int) -> Tallied:
    """A row of `_SUMS`."""
    return Tallied(Counts(*map(int, counts)), int(rows_over), int(steps_done))


def _parse_cursor(cursor: str, *, is_number: bool) -> tuple[Any, int]:
    number, _, value = cursor.partition(":")
    place = parse_number_cursor(number)
    return (parse_number_cursor(value) if is_number else value), place


async def events(
    tx: Connection,
    *,
    operation: str | None = None,
    since: int | None = 0,
    limit: int = 100,
    visible: Visible = EVERYTHING,
) -> list[Event]:
    """The numbered moves of one operation, or of all, after `since`, by number; without it the newest."""
    if operation is not None:
        operation = (await find(tx, _LAYOUT, operation, visible))["id"]
    found = await _moves(tx, operation, since, limit, visible)
    ids = {entry.subject for entry in found}
    named = await tx.execute(select(operations.c.id, operations.c.name).where(operations.c.id.in_(ids)))
    names = {row.id: row.name for row in named}
    return [
        Event(
            sequence=e.position or 0,
            operation_id=e.subject,
            source=e.source,
            event=e.event,
            target=e.target,
            at=from_micros(e.at),
            actor=e.actor,
            cause=e.cause,
            operation_name=names.get(e.subject, ""),
        )
        for e in found
    ]


async def _moves(
    tx: Connection, operation: str | None, since: int | None, limit: int, visible: Visible
) -> Sequence[journal.Entry]:
    """The feed without the moves of operations that are not visible."""
    of: dict[str, Any] = {"machine": OPERATION.name, "subject": operation}
    if operation is not None or visible is EVERYTHING:
        if since is None:
            return (await journal.newest(tx, **of, limit=limit))[::-1]
        return await journal.feed(tx, **of, since=since, limit=limit)
    found: list[journal.Entry] = []
    place = journal.LAST if since is None else since
    while len(found) < limit:
        if since is None:
            some = await journal.newest(tx, **of, before=place, limit=FEED_READ)
        else:
            some = await journal.feed(tx, **of, since=place, limit=FEED_READ)
        ids = {entry.subject for entry in some}
        query = select(operations.c.id).where(operations.c.id.in_(ids), *visible.conditions)
        seen = set((await tx.execute(query)).scalars())
        found += [entry for entry in some if entry.subject in seen]
        if len(some) < FEED_READ:
            break
        place = some[-1].position or place
    return found[:limit][::-1] if since is None else found[:limit]


async def _live_code(db: Database, tx: Connection, rows: Sequence[Stored]) -> Sequence[WorkerCode]:
    """What live workers say of their code, where one of these operations is still to be worked on."""
    is_open = any(not OPERATION.is_settled(row["state"]) for row in rows)
    return await code_of_live_workers(db, tx) if is_open else ()


def _operation(row: Stored, tallied: Tallied, live: Sequence[WorkerCode]) -> Operation:
    def instant(name: str) -> datetime | None:
        return None if row[name] is None else from_micros(row[name])

    plan, counts, is_settled = row["plan"], tallied.counts, OPERATION.is_settled(row["state"])
    return Operation(
        id=row["id"],
        name=row["name"],
        status=row["state"],
        total_rows=row["total_rows"],
        rows_read=row["rows_read"],
        successful_rows=counts.succeeded,
        failed_rows=counts.unsuccessful,
        invalid_rows=counts.invalid,
        timed_out_rows=counts.timed_out,
        cancelled_rows=counts.cancelled,
        waiting_rows=counts.waiting,
        generation=row["generation"],
        retry_count=row["retry_count"],
        error=row["error"],
        metadata=row["metadata"],
        file_name=row["file_name"],
        file_bytes=row["file_bytes"],
        file_sha256=row["file_sha256"],
        created_by=row["created_by"],
        created_at=from_micros(row["created_at"]),
        started_at=instant("started_at"),
        finished_at=instant("finished_at"),
        steps=tuple(step["name"] for step in plan["steps"]),
        steps_done=tallied.rows_over * len(plan["steps"]) + tallied.steps_done,
        options=plan["options"],
        trouble=None if is_settled else row["trouble"],
        version=plan.get("version"),
        misfits=() if is_settled else misfits(row["name"], plan, live)[0],
        keep=row["keep"] or {},
        pruned=tuple(row["pruned"] or ()),
        hold=row["hold"],
        blob_id=row["blob"],
    )
