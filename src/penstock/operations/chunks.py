"""Chunks are owned, rows are not: claiming, writing and letting go of a chunk.

Every write of an owner carries its fence and the version it was decided on, so the ownership check and the write are
one compare-and-set, and a write that is repeated because nobody knows whether it happened cannot happen twice. When it
matches no row, the chunk has a new owner: `Lost` ends the transaction and whatever we still meant to write.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
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
    or_,
    select,
    update,
)

from penstock.db.connection import Connection
from penstock.db.database import Database
from penstock.operations.held import Held, Story, Writing
from penstock.operations.ledger import Ledger
from penstock.operations.referee import end_chunk, end_raw_chunk, end_validation, finish_if_over, state_of
from penstock.operations.tables import chunk_rows, chunks, history, operations, row_records, workers

__all__ = [
    "NEW_ROWS",
    "READINGS_MAX",
    "Lost",
    "NewMail",
    "Stopped",
    "candidates",
    "claim",
    "close",
    "count_poison",
    "flush",
    "hand_over",
    "is_free",
    "is_written",
    "load",
    "load_stories",
    "lock",
    "release",
    "stories_of",
]

SKIPPED_EACH = 8
READINGS_MAX = 2  # files that a worker reads at once


class NewMail(Exception):
    """Word has come since we last looked: settle it before letting go."""


class Stopped(Exception):
    """The operation is no longer in the state in which this chunk is worked on."""

    def __init__(self, state: str) -> None:
        super().__init__(state)
        self.state = state


class Lost(Exception):
    """The chunk has another owner now, or is not as we know it: drop it, keep nothing."""


def is_dead(db: Database, owner: ColumnElement[Any]) -> ColumnElement[bool]:
    """Whether an owner's lease is over on the database's clock, or it was never there."""
    return ~exists().where(workers.c.id == owner, workers.c.lease_until >= db.now())


def is_free(db: Database, owner: ColumnElement[Any]) -> ColumnElement[bool]:
    """Whether nobody holds the record any more."""
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
    operation: int | None = None,
    rank: int = 0,
    workers: int = 1,
) -> list[Held]:
    """Chunks that could be claimed now, longest due first; a plain read, so each may be gone by the time we try.

    Chunks of a stopping operation can be drained by anyone; the others only by who has the operation's code, and those
    to be validated not by who still reads the file and left them. Operations that are set aside do not stand in the
    way of others. Of several workers each looks at a part of the chunks of its own first, so that they do not all try
    for the same ones.
    """
    if not limit:
        return []
    # Room for a few more, so that the statement is the same for a while; no chunk or operation has the number 0.
    skipped = [*skip, *[0] * (SKIPPED_EACH - len(skip) % SKIPPED_EACH)]
    left = [*aside, *[0] * (-len(aside) % SKIPPED_EACH)]
    asked = {"many": limit, "of": operation, "rank": rank, "workers": workers}
    read = [*reading, *[0] * (READINGS_MAX - len(reading))]
    asked |= _numbered("skip", skipped) | _numbered("name", names) | _numbered("read", read) | _numbered("aside", left)
    sizes = len(skipped), len(names), len(left)
    found = (await tx.send(db.prepared(_draining, len(skipped), operation is not None), asked)).rows
    if names and len(found) < limit and workers > 1:
        found += (await tx.send(db.prepared(_runnable, *sizes, True), asked)).rows
    if names and not found:
        found = (await tx.send(db.prepared(_runnable, *sizes), asked)).rows
    return [_held(dict(zip(_CANDIDATE.keys(), row, strict=True))) for row in found[:limit]]


def _numbered(name: str, values: Iterable[Any]) -> dict[str, Any]:
    """A list as single parameters: the length of a list would be part of a statement's text."""
    return {f"{name}{place}": value for place, value in enumerate(values)}


def _one_of(column: ColumnElement[Any], name: str, many: int) -> ColumnElement[bool]:
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
        .where(chunks.c.is_open == 1, is_free(db, chunks.c.owner), ~_one_of(chunks.c.id, "skip", skipped))
        .limit(bindparam("many"))
    )
    return query.where(chunks.c.operation == bindparam("of")) if is_of_one else query


def _draining(db: Database, skipped: int, is_of_one: bool) -> Select[*tuple[Any, ...]]:
    return _claimable(db, skipped, is_of_one).where(operations.c.state == "Stopping").order_by(chunks.c.id)


def _runnable(db: Database, skipped: int, names: int, left: int, is_part: bool = False) -> Select[*tuple[Any, ...]]:
    is_read = _one_of(operations.c.number, "read", READINGS_MAX)
    is_to_validate = (operations.c.state == "Validating") & (chunks.c.is_raw == 1) & ~is_read
    is_due = (
        or_(operations.c.state == "Running", operations.c.state == "Retrying", is_to_validate),
        _one_of(operations.c.name, "name", names),
        chunks.c.due_at <= db.now(),
    )
    query = _claimable(db, skipped, is_of_one=False).where(*is_due).order_by(chunks.c.due_at, chunks.c.id)
    if left:
        query = query.where(~_one_of(operations.c.number, "aside", left))
    return query.where(chunks.c.id % bindparam("workers") == bindparam("rank")) if is_part else query


def _held(row: Mapping[str, Any]) -> Held:
    steps = len(row["plan"]["steps"])
    held = Held(
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
        mail=row["mail"],
        ledger=Ledger.decode(row["ledger"], rows=row["row_count"], steps=steps, base=0),
        data=row["data"],
        has_trouble=row.get("trouble") is not None,
        columns=tuple(row["columns"]) if row.get("columns") else None,
    )
    if held.is_raw and not row["ledger"]:
        held.ledger.await_validation()
    return held


async def claim(db: Database, tx: Connection, held: Held, *, owner: str, write: bool) -> bool:
    """Become the owner of a candidate; with `write` its ledger (our first intent) goes into the same statement.

    The caller raises the fence it holds once this is committed.
    """
    values: dict[str, Any] = {"taker": owner, "seen_mail": held.mail}
    if write:
        values["intent"] = held.ledger.encode()
    done = await tx.send(db.prepared(_claim, write), {**values, **_place(held)})
    return done.matched == 1


def _claim(db: Database, write: bool) -> Update:
    values: dict[str, Any] = {"owner": bindparam("taker"), "fence": chunks.c.fence + 1, "due_at": db.now()}
    if write:
        values |= {"ledger": bindparam("intent"), "version": chunks.c.version + 1}
    return (
        update(chunks)
        .where(
            *_AS_KNOWN,  # an owner whose lease is over may have written since
            chunks.c.is_open == 1,
            chunks.c.mail == bindparam("seen_mail"),
            is_free(db, chunks.c.owner),
        )
        .values(values)
    )


_AS_KNOWN = (
    chunks.c.id == bindparam("the_chunk"),
    chunks.c.fence == bindparam("the_fence"),
    chunks.c.version == bindparam("the_version"),
)


def _place(held: Held) -> dict[str, int]:
    return {"the_chunk": held.id, "the_fence": held.fence, "the_version": held.version}


async def is_written(db: Database, held: Held) -> bool:
    """Whether a write of ours whose answer was lost has happened; it may still be on its way. `Lost` when not ours."""
    async with db.read() as tx:
        query = select(chunks.c.fence, chunks.c.version).where(chunks.c.id == held.id)
        found = (await tx.execute(query)).one_or_none()
    if found is None or found.fence != held.fence:
        raise Lost(f"chunk {held.id} at fence {held.fence}")
    return bool(found.version > held.version)


async def load(tx: Connection, operation: int, *filters: ColumnElement[bool], limit: int) -> list[Held]:
    """Chunks of an operation with their records, in order, as last committed; nobody's to write."""
    query = (
        select(chunks, literal(None).label("data"), operations.c.state.label("operation_state"), operations.c.plan)
        .join(operations, operations.c.number == chunks.c.operation)
        .where(chunks.c.operation == operation, *filters)
        .order_by(chunks.c.id)
        .limit(limit)
    )
    found = [_held(row._asdict()) for row in await tx.execute(query)]
    for held in found:
        await load_stories(tx, held)
    return found


async def load_stories(tx: Connection, held: Held) -> None:
    """Read the records of a chunk's rows; only its owner may rely on them."""
    held.stories = await stories_of(tx, held.id)


async def stories_of(tx: Connection, chunk: int) -> dict[tuple[int, int], Story]:
    """The records of a chunk's rows, by row and step."""
    found = await tx.send(_STORIES_OF, {"the_chunk": chunk})
    return {(row[1], row[2]): Story(*row) for row in found.rows}


# In the order of the fields.
_STORIES_OF = select(*(row_records.c[name] for name in Story.__dataclass_fields__)).where(
    row_records.c.chunk == bindparam("the_chunk")
)


async def count_poison(tx: Connection, operation: int) -> int:
    """How many rows of an operation were failed because their workers died."""
    is_poison = (row_records.c.operation == operation, row_records.c.error_type == "Poison")
    return int((await tx.execute(select(func.count()).select_from(row_records).where(*is_poison))).scalar_one())


async def flush(db: Database, tx: Connection, held: Held, writing: Writing, **extra: Any) -> None:
    """Write the ledger, the counters and what changed in the records; `Lost` when the chunk is no longer ours."""
    values = writing.columns()
    if extra:
        await _write(tx, held, **values, **extra)
    elif (await tx.send(_FLUSH, {**values, **_place(held)})).matched != 1:
        raise Lost(f"chunk {held.id} at fence {held.fence}")
    await _write_records(db, tx, writing)


async def _write_records(db: Database, tx: Connection, writing: Writing) -> None:
    if writing.rows is not None:
        await tx.send(NEW_ROWS, writing.rows)
    if writing.stories:
        await tx.send(db.prepared(_upsert_stories), list(writing.stories.values()))
    if writing.lines:
        await tx.send(_NEW_LINES, list(writing.lines))


# What is sent with them, the ledger and the counts, is set too.
_FLUSH = update(chunks).where(*_AS_KNOWN).values(version=chunks.c.version + 1)
_LET_GO = _FLUSH.where(chunks.c.mail == bindparam("seen_mail")).values(owner=None)
_CLOSE = _LET_GO.values(is_open=0)
_NEW_LINES = insert(history)
NEW_ROWS = insert(chunk_rows)


async def lock(tx: Connection, held: Held) -> int:
    """Lock a chunk we own against new mail until the commit; returns how much mail it has. `Lost` when not ours."""
    if (await tx.send(_LOCK, _place(held))).matched != 1:
        raise Lost(f"chunk {held.id} at fence {held.fence}")
    return int((await tx.send(_MAIL_OF, {"the_chunk": held.id})).one()[0])


_LOCK = update(chunks).where(*_AS_KNOWN).values(fence=chunks.c.fence)
_MAIL_OF = select(chunks.c.mail).where(chunks.c.id == bindparam("the_chunk"))


async def release(tx: Connection, held: Held, *, due_at: int) -> None:
    """Let go until something is due; `NewMail` when word has come, so that it must be looked at first."""
    await _let_go(tx, _LET_GO, held, due_at=due_at)


async def close(db: Database, tx: Connection, held: Held, writing: Writing, *, actor: str) -> None:
    """End a chunk whose rows all have their verdicts, and the operation with its last one; `NewMail` as for release."""
    head = await end_chunk(tx, held.operation)
    if head is None:
        raise Lost("the operation is over")
    await _let_go(tx, _CLOSE, held, **writing.columns())
    await _write_records(db, tx, writing)
    await finish_if_over(db, tx, head, actor=actor)


async def hand_over(db: Database, held: Held, writing: Writing, actor: str, tx: Connection) -> None:
    """A raw chunk's rows are validated: let it go, to run when all are; `NewMail` as for release."""
    is_over = held.ledger.is_over
    head = await end_raw_chunk(tx, held.operation, is_over=is_over)
    if head is None:
        raise Stopped(await state_of(tx, held.operation))
    values = {**writing.columns(), "is_open": int(not is_over)}
    await _let_go(tx, db.prepared(_hand_over), held, **values)
    await _write_records(db, tx, writing)
    await end_validation(db, tx, head, actor=actor)


def _hand_over(db: Database) -> Update:
    return _LET_GO.values(is_raw=0, due_at=db.now())


async def _let_go(tx: Connection, statement: Update, held: Held, **values: Any) -> None:
    if (await tx.send(statement, {**values, "seen_mail": held.mail, **_place(held)})).matched != 1:
        await _refused(tx, held)


async def _write(tx: Connection, held: Held, *guards: ColumnElement[bool], **values: Any) -> None:
    done = await tx.execute(
        update(chunks)
        .where(chunks.c.id == held.id, chunks.c.fence == held.fence, chunks.c.version == held.version, *guards)
        .values(version=chunks.c.version + 1, **values)
    )
    if done.rowcount != 1:
        await _refused(tx, held)


async def _refused(tx: Connection, held: Held) -> None:
    """Why a guarded write changed nothing: word has come, or the chunk is no longer as we know it."""
    query = select(chunks.c.fence, chunks.c.version).where(chunks.c.id == held.id)
    found = (await tx.execute(query)).one_or_none()
    if found is not None and tuple(found) == (held.fence, held.version):
        raise NewMail
    raise Lost(f"chunk {held.id} at fence {held.fence}, version {held.version}")


def _upsert_stories(db: Database) -> Insert:
    key = ("chunk", "row", "step")
    return db.dialect.upsert(row_records, key=key, update=[c.name for c in row_records.c if c.name not in key])
