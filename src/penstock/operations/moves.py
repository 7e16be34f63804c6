"""Moves of an operation: the only module that writes its state.

Every transaction that opens or closes a chunk, or moves the operation, begins with an UPDATE of the operation's row,
never with a SELECT, and decides from `open_chunks` after that statement. So of two last chunks that end at once, the
second sees zero.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, bindparam, case, func, select, update

from penstock.db.connection import Connection
from penstock.db.database import Database
from penstock.errors import NotFound
from penstock.journal import moving
from penstock.journal import queries as journal
from penstock.operations.counts import Counts, Tally
from penstock.operations.states import NOTES, OPERATION
from penstock.operations.tables import chunks, operations

__all__ = [
    "HEAD",
    "Head",
    "break_operation",
    "end_chunk",
    "end_raw_chunk",
    "end_validation",
    "ending",
    "finish_if_over",
    "head_of",
    "move",
    "note",
    "state_of",
    "sum_counts",
    "tally",
    "touch",
]

Guard = ColumnElement[bool]


@dataclass(frozen=True, slots=True)
class Head:
    """The columns of an operation that decisions are made from."""

    number: int
    id: str
    name: str
    state: str
    previous_state: str | None
    reading: str
    open_chunks: int
    raw_chunks: int
    generation: int
    stop_outcome: str | None
    owner: str | None
    fence: int
    position: str | None
    crashes: int
    suspect_until: int | None
    rows_read: int


_MOVED = moving.Moved(OPERATION, operations, key=operations.c.number, subject=operations.c.id)
HEAD = [operations.c[name] for name in Head.__dataclass_fields__]
_HEAD_OF = select(*HEAD).where(operations.c.number == bindparam("number"))
_STATE_OF = select(operations.c.state).where(operations.c.number == bindparam("number"))
_SUMS = select(*(func.coalesce(func.sum(chunks.c[name]), 0) for name in Counts.__dataclass_fields__)).where(
    chunks.c.operation == bindparam("counted_in")
)
_CHUNK_ENDED = (
    update(operations)
    .where(operations.c.number == bindparam("ended_in"), operations.c.open_chunks > 0)
    .values(revision=operations.c.revision + 1, open_chunks=operations.c.open_chunks - 1)
)
_RAW_CHUNK_ENDED = (
    update(operations)
    .where(
        operations.c.number == bindparam("ended_in"),
        operations.c.state == "Validating",
        operations.c.raw_chunks > 0,
    )
    .values(
        revision=operations.c.revision + 1,
        raw_chunks=operations.c.raw_chunks - 1,
        open_chunks=operations.c.open_chunks - bindparam("closed"),
    )
)


async def touch(tx: Connection, number: int, *guards: Guard, **values: Any) -> Head | None:
    """Update the operation row without moving it; None when a guard does not hold."""
    values = {"revision": operations.c.revision + 1, **values}
    done = await tx.execute(update(operations).where(operations.c.number == number, *guards).values(values))
    return await head_of(tx, number) if done.rowcount == 1 else None


async def end_raw_chunk(tx: Connection, number: int, *, is_over: bool) -> Head | None:
    """Count a chunk of the operation as validated; None when it is not being validated any more."""
    done = await tx.send(_RAW_CHUNK_ENDED, {"ended_in": number, "closed": int(is_over)})
    return await head_of(tx, number) if done.matched == 1 else None


async def end_chunk(tx: Connection, number: int) -> Head | None:
    """Count a chunk of the operation as closed; None when it has none open."""
    done = await tx.send(_CHUNK_ENDED, {"ended_in": number})
    return await head_of(tx, number) if done.matched == 1 else None


async def move(
    db: Database,
    tx: Connection,
    number: int,
    event: str,
    *guards: Guard,
    actor: str,
    cause: str | None = None,
    **values: Any,
) -> Head | None:
    """Move the operation by `event` and log it; None when its state does not admit it or a guard does not hold."""
    settles = any(OPERATION.is_settled(target) for target in OPERATION.targets(event).values())
    values = {"finished_at": db.now() if settles else None, **values}
    row = await moving.move(
        db, tx, _MOVED, number, event, guards=guards, values=values, reading=HEAD, actor=actor, cause=cause
    )
    return None if row is None else Head(*row[: len(HEAD)])


async def note(db: Database, tx: Connection, head: Head, event: str, *, actor: str, cause: str | None) -> None:
    """Log something of an operation that does not change its state; its row was updated in this transaction."""
    assert event in NOTES
    await journal.record(
        db,
        tx,
        machine=OPERATION.name,
        subject=head.id,
        source=head.state,
        event=event,
        target=head.state,
        actor=actor,
        cause=cause,
    )


async def end_validation(db: Database, tx: Connection, head: Head, *, actor: str) -> None:
    """Let the rows run once all of the file is read and validated.

    Call this in every transaction that ends the reading of the file or the validation of a chunk.
    """
    if head.reading != "complete" or head.raw_chunks:
        return
    running = await move(db, tx, head.number, "validated", actor=actor)
    if running is not None:
        await finish_if_over(db, tx, running, actor=actor)


async def finish_if_over(db: Database, tx: Connection, head: Head, *, actor: str) -> Head:
    """End the operation when its last chunk has closed; call this in every transaction that closes one."""
    if head.open_chunks:
        return head
    event = ending(head, await sum_counts(tx, head.number))
    return await move(db, tx, head.number, event, actor=actor) or head


async def break_operation(db: Database, tx: Connection, number: int, reason: str, *, actor: str) -> Head | None:
    """Stop the operation, because it cannot go on; only the first caller does, None for the others."""
    return await move(db, tx, number, "broke", actor=actor, cause=reason, stop_outcome="Failed", error=reason)


def ending(head: Head, counts: Counts) -> str:
    """The event that ends an operation with these verdicts."""
    if head.state == "Stopping":
        return "cancelled" if head.stop_outcome == "Cancelled" else "failed"
    return "finished_with_errors" if counts.unsuccessful or counts.cancelled else "finished"


async def sum_counts(tx: Connection, number: int) -> Counts:
    """The operation's counters: sums over its chunks."""
    return Counts(*map(int, (await tx.send(_SUMS, {"counted_in": number})).one()))


async def tally(tx: Connection, number: int) -> Tally:
    """The operation's rows, as far as its error limits are concerned."""
    # A chunk's first intent raises its version; one without a valid row is closed when it is stored.
    is_begun = (chunks.c.version > 0) | (chunks.c.is_open == 0)
    failed = chunks.c.failed + chunks.c.timed_out
    found = select(
        func.coalesce(func.sum(chunks.c.row_count), 0),
        func.coalesce(func.sum(chunks.c.invalid), 0),
        func.coalesce(func.sum(failed), 0),
        func.coalesce(func.sum(case((is_begun, chunks.c.row_count - chunks.c.invalid), else_=0)), 0),
        func.coalesce(func.sum(case((is_begun, failed), else_=0)), 0),
    ).where(chunks.c.operation == number)
    return Tally(*map(int, (await tx.execute(found)).one()))


async def state_of(tx: Connection, number: int) -> str:
    """The operation's state as this transaction sees it."""
    return str((await tx.send(_STATE_OF, {"number": number})).one()[0])


async def head_of(tx: Connection, number: int) -> Head:
    """The head as this transaction sees it; for a decision, update the row first."""
    found = (await tx.send(_HEAD_OF, {"number": number})).rows
    if not found:
        raise NotFound("the operation has been removed")
    return Head(*found[0])
