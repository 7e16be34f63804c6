"""The SQL of chunks: finding, claiming, writing, releasing and closing them. Chunks are owned, rows are not.

Every write of an owner carries its fence and the version it was decided on, so the ownership check and the write are
one compare-and-set, and a write that is repeated because its answer was lost happens once. When it matches no row, the
chunk has a new owner: `Lost` ends the transaction and all that was still to be written.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Collection, Iterable, Mapping
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Insert,
    Select,
    Update,
    bindparam,
    exists,
    func,
    insert,
    literal,
    null,
    or_,
    select,
    update,
)

from penstock.clock import Clock
from penstock.db.connection import Connection
from penstock.db.database import Database
from penstock.operations.chunk.ledger import Ledger
from penstock.operations.chunk.owned import GIVEN_UP, ChunkWrite, OwnedChunk, RowPlaces
from penstock.operations.chunk.persist import persist
from penstock.operations.chunk.records import StepRecord
from penstock.operations.moves import end_chunk, end_raw_chunk, end_validation, finish_if_over, state_of
from penstock.operations.tables import chunk_rows, chunks, history, operations, row_records, workers

__all__ = [
    "NEW_ROWS",
    "READINGS_ALL_MAX",
    "READINGS_MAX",
    "RECORD",
    "RECORD_BUT_OUTPUT",
    "Lost",
    "NewMessages",
    "Stopped",
    "candidates",
    "claim",
    "close",
    "count_poison",
    "filled_up",
    "flush",
    "hand_over",
    "is_dead",
    "is_free",
    "is_written",
    "ledgers_of",
    "load",
    "lock",
    "numbered",
    "one_of",
    "own",
    "records_of",
    "release",
]

SKIPPED_EACH = 8  # lists of ids in a statement grow by so many
READINGS_MAX = 8  # files of operations of one name that a worker reads at once, when some take long
READINGS_ALL_MAX = 2 * READINGS_MAX


class NewMessages(Exception):
    """The chunk has messages that we have not seen: settle them before it is released or closed."""


class Stopped(Exception):
    """The operation is not in the state in which this chunk is worked on."""

    def __init__(self, state: str) -> None:
        super().__init__(state)
        self.state = state


class Lost(Exception):
    """The chunk has another owner, or was changed since: drop it and write nothing."""


def is_dead(db: Database, owner: ColumnElement[Any]) -> ColumnElement[bool]:
    """Whether an owner's lease is over on the database's clock, or it was never there."""
    return ~exists().where(workers.c.id == owner, workers.c.lease_until >= db.now())


def is_free(db: Database, owner: ColumnElement[Any]) -> ColumnElement[bool]:
    """Whether a record has no live owner."""
    return or_(owner.is_(None), is_dead(db, owner))


async def candidates(
    db: Database,
    tx: Connection,
    *,
    names: Collection[str],
    limit: int,
    skip: Collection[int] = (),
    reading: Collection[int] = (),
    aside: Collection[int] = (),
    beside: Collection[int] | None = None,
    operation: int | None = None,
    rank: int = 0,
    workers: int = 1,
) -> list[OwnedChunk]:
    """Chunks that could be claimed now, longest due first; a plain read, so another may claim them first.

    Chunks of a stopping operation can be drained by any worker; the others are for workers that have the operation's
    code (`names`), and raw ones not for the worker that is `reading` the file and left them. Operations set `aside` are
    left out. `beside` these operations only chunks of others are offered, and those in which rows wait. Of several
    workers each looks at a part of its own first, so that they do not all try the same chunks.
    """
    if not limit:
        return []
    skipped = filled_up(skip)
    set_aside = [*aside, *[0] * (-len(aside) % SKIPPED_EACH)]
    read = [*reading, *[0] * (READINGS_ALL_MAX - len(reading))]
    given = {"many": limit, "of": operation, "rank": rank, "workers": workers}
    given |= numbered("skip", skipped) | numbered("name", names)
    given |= numbered("read", read) | numbered("aside", set_aside)
    busy = [] if beside is None else filled_up(beside)
    given |= numbered("busy", busy)
    sizes = len(skipped), len(names), len(set_aside), len(busy)
    found = (await tx.send(db.prepared(_draining, len(skipped), operation is not None), given)).rows
    if names and len(found) < limit and workers > 1:
        found += (await tx.send(db.prepared(_runnable, sizes, True), given)).rows
    if names and not found:
        found = (await tx.send(db.prepared(_runnable, sizes), given)).rows
    return [_owned(dict(zip(_CANDIDATE, row, strict=True))) for row in found[:limit]]


def numbered(name: str, values: Iterable[Any]) -> dict[str, Any]:
    """A list as single parameters, for `one_of`: the length of a list is part of a statement's text."""
    return {f"{name}{place}": value for place, value in enumerate(values)}


def filled_up(ids: Collection[int]) -> list[int]:
    """Ids and zeros, which are no ids, so that a statement stays the same while a list grows a little."""
    return [*ids, *[0] * (SKIPPED_EACH - len(ids) % SKIPPED_EACH)]


def one_of(column: ColumnElement[Any], name: str, many: int) -> ColumnElement[bool]:
    """Whether a column has one of the values that are sent as `numbered(name, …)`."""
    return column.in_([bindparam(f"{name}{place}", type_=column.type) for place in range(many)])


_CANDIDATE = {
    **chunks.c,
    "data": chunk_rows.c.data,
    "operation_state": operations.c.state,
    "plan": operations.c.plan,
    "trouble": operations.c.trouble,
    "columns": operations.c.columns,
}


def _claimable(db: Database, skipped: int, is_of_one: bool) -> Select[*tuple[Any, ...]]:
    query = (
        select(*_CANDIDATE.values())
        .join(operations, operations.c.number == chunks.c.operation)
        .outerjoin(chunk_rows, chunk_rows.c.chunk == chunks.c.id)
        .where(chunks.c.is_open == 1, is_free(db, chunks.c.owner), ~one_of(chunks.c.id, "skip", skipped))
        .limit(bindparam("many"))
    )
    return query.where(chunks.c.operation == bindparam("of")) if is_of_one else query


def _draining(db: Database, skipped: int, is_of_one: bool) -> Select[*tuple[Any, ...]]:
    return _claimable(db, skipped, is_of_one).where(operations.c.state == "Stopping").order_by(chunks.c.id)


def _runnable(db: Database, sizes: tuple[int, int, int, int], is_part: bool = False) -> Select[*tuple[Any, ...]]:
    skipped, names, aside, busy = sizes
    is_read = one_of(operations.c.number, "read", READINGS_ALL_MAX)
    is_to_validate = (operations.c.state == "Validating") & (chunks.c.is_raw == 1) & ~is_read
    is_due = (
        or_(operations.c.state == "Running", operations.c.state == "Retrying", is_to_validate),
        one_of(operations.c.name, "name", names),
        chunks.c.due_at <= db.now(),
    )
    query = _claimable(db, skipped, is_of_one=False).where(*is_due).order_by(chunks.c.due_at, chunks.c.id)
    if aside:
        query = query.where(~one_of(operations.c.number, "aside", aside))
    if busy:
        query = query.where(or_(chunks.c.waiting > 0, ~one_of(operations.c.number, "busy", busy)))
    return query.where(chunks.c.id % bindparam("workers") == bindparam("rank")) if is_part else query


def _owned(row: Mapping[str, Any]) -> OwnedChunk:
    steps = len(row["plan"]["steps"])
    owned = OwnedChunk(
        plan=row["plan"],
        id=row["id"],
        operation=row["operation"],
        operation_state=row["operation_state"],
        first_row=row["first_row"],
        row_count=row["row_count"],
        source_offset=row["source_offset"],
        fence=row["fence"],
        version=row["version"],
        is_open=bool(row["is_open"]),
        is_raw=bool(row["is_raw"]),
        unsuccessful=row["invalid"] + row["failed"] + row["timed_out"],
        message_count=row["message_count"],
        ledger=Ledger.decode(row["ledger"], rows=row["row_count"], steps=steps, base=0),
        data=row["data"],
        was_given_up=row["owner"] == GIVEN_UP,
        has_trouble=row.get("trouble") is not None,
        columns=tuple(row["columns"]) if row.get("columns") else None,
    )
    if owned.is_raw and not row["ledger"]:
        owned.ledger.await_validation()
    return owned


async def claim(db: Database, tx: Connection, owned: OwnedChunk, *, owner: str, write: bool) -> bool:
    """Become the owner of a candidate; with `write` its ledger (our first intent) goes into the same statement.

    The caller raises the fence of `owned` once this is committed.
    """
    values: dict[str, Any] = {"taker": owner, "seen_messages": owned.message_count}
    if write:
        values["intent"] = owned.ledger.encode()
    done = await tx.send(db.prepared(_claim, write), {**values, **_place(owned)})
    return done.matched == 1


class NotClaimed(Exception):
    """Another was first, or the operation has moved on since we looked."""


async def own(db: Database, owned: OwnedChunk, *, owner: str, state: str, clock: Clock, write: bool = False) -> bool:
    """Claim a candidate while its operation is in `state`; with `write`, its ledger (our first intent) is stored too.

    False when another was first, or the operation has moved on.
    """

    async def claim_it(tx: Connection) -> None:
        is_ours = await claim(db, tx, owned, owner=owner, write=write)
        if not is_ours or await state_of(tx, owned.operation) != state:
            raise NotClaimed

    async def has_happened() -> bool:
        async with db.connection() as tx:
            found = await tx.execute(select(chunks.c.owner, chunks.c.fence).where(chunks.c.id == owned.id))
            return found.one_or_none() == (owner, owned.fence + 1)

    try:
        await persist(db, claim_it, "claim", has_happened=has_happened, clock=clock, patience_s=0)
    except NotClaimed:
        return False
    owned.fence += 1
    owned.version += int(write)
    owned.written_places = RowPlaces.of(owned.ledger) if write else RowPlaces()
    return True


def _claim(db: Database, write: bool) -> Update:
    values: dict[str, Any] = {"owner": bindparam("taker"), "fence": chunks.c.fence + 1, "due_at": db.now()}
    if write:
        values |= {"ledger": bindparam("intent"), "version": chunks.c.version + 1}
    return (
        update(chunks)
        .where(
            *_AS_KNOWN,  # an owner whose lease is over may have written since
            chunks.c.is_open == 1,
            chunks.c.message_count == bindparam("seen_messages"),
            is_free(db, chunks.c.owner),
        )
        .values(values)
    )


_AS_KNOWN = (
    chunks.c.id == bindparam("the_chunk"),
    chunks.c.fence == bindparam("the_fence"),
    chunks.c.version == bindparam("the_version"),
)


def _place(owned: OwnedChunk) -> dict[str, int]:
    return {"the_chunk": owned.id, "the_fence": owned.fence, "the_version": owned.version}


async def is_written(db: Database, owned: OwnedChunk) -> bool:
    """Whether a write of ours whose answer was lost has happened; False may mean not yet. `Lost` when not ours."""
    async with db.connection() as tx:
        query = select(chunks.c.fence, chunks.c.version).where(chunks.c.id == owned.id)
        found = (await tx.execute(query)).one_or_none()
    if found is None or found.fence != owned.fence:
        raise Lost(f"chunk {owned.id} at fence {owned.fence}")
    return bool(found.version > owned.version)


async def load(tx: Connection, operation: int, *filters: ColumnElement[bool], limit: int) -> list[OwnedChunk]:
    """Chunks of an operation with their records, in order, as last committed; for reading only, and without outputs."""
    columns = _CANDIDATE | {"data": literal(None)}  # the rows are not needed
    query = (
        select(*columns.values())
        .join(operations, operations.c.number == chunks.c.operation)
        .where(chunks.c.operation == operation, *filters)
        .order_by(chunks.c.id)
        .limit(limit)
    )
    found = [_owned(dict(zip(columns, row, strict=True))) for row in await tx.execute(query)]
    for owned in found:
        owned.records = await _records(tx, _RECORDS_BUT_OUTPUTS, owned.id)
    return found


async def records_of(tx: Connection, chunk: int) -> dict[tuple[int, int], StepRecord]:
    """The records of a chunk's rows, by row and step; only its owner may rely on them."""
    return await _records(tx, _RECORDS_OF, chunk)


async def _records(tx: Connection, query: Select[Any], chunk: int) -> dict[tuple[int, int], StepRecord]:
    found = await tx.send(query, {"the_chunk": chunk})
    return {(row[1], row[2]): StepRecord(*row) for row in found.rows}


# The columns in the order of the fields; and without what steps returned, which may be megabytes of a chunk.
RECORD = tuple(row_records.c[name] for name in StepRecord.__dataclass_fields__)
RECORD_BUT_OUTPUT = tuple(null().label(c.name) if c is row_records.c.output else c for c in RECORD)
_OF_CHUNK = row_records.c.chunk == bindparam("the_chunk")
_RECORDS_OF, _RECORDS_BUT_OUTPUTS = (select(*columns).where(_OF_CHUNK) for columns in (RECORD, RECORD_BUT_OUTPUT))


async def ledgers_of(
    tx: Connection, operation: int, *, steps: int, each: int
) -> AsyncGenerator[tuple[int, Ledger], None]:
    """The ledgers of an operation's chunks that were ever written, by chunk; so many are read at once."""
    query = select(chunks.c.id, chunks.c.row_count, chunks.c.ledger).where(chunks.c.operation == operation)
    query, last = query.order_by(chunks.c.id).limit(each), 0
    while found := (await tx.execute(query.where(chunks.c.id > last))).all():
        for chunk, rows, ledger in found:
            if ledger:
                yield chunk, Ledger.decode(ledger, rows=rows, steps=steps, base=0)
        last = found[-1].id


async def count_poison(tx: Connection, operation: int) -> int:
    """How many rows of an operation were failed because their workers died."""
    is_poison = (row_records.c.operation == operation, row_records.c.error_type == "Poison")
    return int((await tx.execute(select(func.count()).select_from(row_records).where(*is_poison))).scalar_one())


async def flush(db: Database, tx: Connection, owned: OwnedChunk, writing: ChunkWrite, **extra: Any) -> None:
    """Write the ledger, the counters, what changed in the records, and `extra` columns; `Lost` when it is not ours."""
    values = {**writing.columns(), **_place(owned)}
    if extra:
        matched = (await tx.execute(_FLUSH.values(extra), values)).rowcount
    else:
        matched = (await tx.send(_FLUSH, values)).matched
    if matched != 1:
        raise Lost(f"chunk {owned.id} at fence {owned.fence}")
    await _write_records(db, tx, writing)


async def _write_records(db: Database, tx: Connection, writing: ChunkWrite) -> None:
    if writing.rows is not None:
        await tx.send(NEW_ROWS, writing.rows)
    if writing.records:
        await tx.send(db.prepared(_upsert_records), list(writing.records.values()))
    if writing.lines:
        await tx.send(_NEW_LINES, list(writing.lines))


# The columns that are sent along (the ledger, the counts) are set too.
_FLUSH = update(chunks).where(*_AS_KNOWN).values(version=chunks.c.version + 1)
_RELEASE = _FLUSH.where(chunks.c.message_count == bindparam("seen_messages")).values(owner=None)
_CLOSE = _RELEASE.values(is_open=0)
_NEW_LINES = insert(history)
NEW_ROWS = insert(chunk_rows)


async def lock(tx: Connection, owned: OwnedChunk) -> int:
    """Lock a chunk we own until the commit, so that no message is added; returns their number. `Lost` when not ours."""
    if (await tx.send(_LOCK, _place(owned))).matched != 1:
        raise Lost(f"chunk {owned.id} at fence {owned.fence}")
    return int((await tx.send(_MESSAGE_COUNT, {"the_chunk": owned.id})).one()[0])


_LOCK = update(chunks).where(*_AS_KNOWN).values(fence=chunks.c.fence)
_MESSAGE_COUNT = select(chunks.c.message_count).where(chunks.c.id == bindparam("the_chunk"))


async def release(tx: Connection, owned: OwnedChunk, *, due_at: int) -> None:
    """Give the chunk up until something is due; `NewMessages` when it has some that we have not seen."""
    await _give_up(tx, _RELEASE, owned, due_at=due_at)


async def close(db: Database, tx: Connection, owned: OwnedChunk, writing: ChunkWrite, *, actor: str) -> None:
    """Close a chunk whose rows all have verdicts, and with the last one the operation; `NewMessages` as above."""
    head = await end_chunk(tx, owned.operation)
    if head is None:
        raise Lost("the operation is over")
    await _give_up(tx, _CLOSE, owned, **writing.columns())
    await _write_records(db, tx, writing)
    await finish_if_over(db, tx, head, actor=actor)


async def hand_over(db: Database, tx: Connection, owned: OwnedChunk, writing: ChunkWrite, *, actor: str) -> None:
    """Give up a raw chunk whose rows are validated; they run when all chunks are. `NewMessages` as above."""
    is_over = owned.ledger.is_over
    head = await end_raw_chunk(tx, owned.operation, is_over=is_over)
    if head is None:
        raise Stopped(await state_of(tx, owned.operation))
    values = {**writing.columns(), "is_open": int(not is_over)}
    await _give_up(tx, db.prepared(_hand_over), owned, **values)
    await _write_records(db, tx, writing)
    await end_validation(db, tx, head, actor=actor)


def _hand_over(db: Database) -> Update:
    return _RELEASE.values(is_raw=0, due_at=db.now())


async def _give_up(tx: Connection, statement: Update, owned: OwnedChunk, **values: Any) -> None:
    """End our ownership by a write that is made only if all messages were seen; `NewMessages` when there are others."""
    if (await tx.send(statement, {**values, "seen_messages": owned.message_count, **_place(owned)})).matched == 1:
        return
    query = select(chunks.c.fence, chunks.c.version).where(chunks.c.id == owned.id)
    found = (await tx.execute(query)).one_or_none()
    if found is not None and tuple(found) == (owned.fence, owned.version):
        raise NewMessages
    raise Lost(f"chunk {owned.id} at fence {owned.fence}, version {owned.version}")


def _upsert_records(db: Database) -> Insert:
    key = ("chunk", "row", "step")
    return db.dialect.upsert(row_records, key=key, update=[c.name for c in row_records.c if c.name not in key])
