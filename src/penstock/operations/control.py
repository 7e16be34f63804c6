"""Cancel, pause and resume: they move the operation and write no chunk; owners of chunks see it within a second."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from penstock.db.connection import Connection
from penstock.db.database import CommitUnknown, Database
from penstock.errors import IllegalMove, NotFound
from penstock.operations.auditing import log_act
from penstock.operations.moves import Head, head_of, move, note, touch
from penstock.operations.operation_ids import IS_THERE
from penstock.operations.states import OPERATION
from penstock.operations.tables import operations

__all__ = ["cancel", "hold", "pause", "release", "resume"]


async def cancel(db: Database, number: int, *, actor: str, cause: str | None = None) -> Head:
    """Stop an operation for good; cancelling twice is cancelling once."""

    async def stop(tx: Connection) -> Head | None:
        head = await move(
            db, tx, number, "cancelled", operations.c.state == "Pending",
            actor=actor, cause=cause, reading="abandoned", open_chunks=0,
        )  # fmt: skip
        return head or await move(
            db, tx, number, "cancel_requested", actor=actor, cause=cause, stop_outcome="Cancelled"
        )

    done = ("Stopping", "Cancelled")
    return await _moved(db, number, stop, "cancel_requested", "cancel", actor=actor, cause=cause, is_done=done)


async def pause(db: Database, number: int, *, actor: str, cause: str | None = None) -> Head:
    """Begin nothing more until `resume`; running steps end, deadlines go on. Pausing twice is pausing once."""

    async def stop(tx: Connection) -> Head | None:
        return await move(db, tx, number, "paused", actor=actor, cause=cause)

    return await _moved(db, number, stop, "paused", "pause", actor=actor, cause=cause, is_done=("Paused",))


async def resume(db: Database, number: int, *, actor: str, cause: str | None = None) -> Head:
    """Go on where a paused operation stopped; one that is not paused goes on anyway."""
    is_read = (operations.c.reading == "complete") & (operations.c.raw_chunks == 0)
    is_paused = operations.c.state == "Paused"

    async def go_on(tx: Connection) -> Head | None:
        head = await move(db, tx, number, "resumed", is_paused, is_read, actor=actor, cause=cause)
        return head or await move(db, tx, number, "reading_resumed", ~is_read, actor=actor, cause=cause)

    running = ("Pending", "Validating", "Running", "Retrying")
    return await _moved(db, number, go_on, "resumed", "resume", actor=actor, cause=cause, is_done=running)


async def hold(db: Database, number: int, reason: str, *, actor: str) -> None:
    """Let nothing of an operation be removed; `NotFound` when its removal has begun."""

    async def place(tx: Connection) -> None:
        head = await touch(tx, number, IS_THERE, hold=reason)
        if head is None:
            raise NotFound("the operation has been removed")
        await note(db, tx, head, "held", actor=actor, cause=reason)
        await log_act(db, tx, number, "hold", actor=actor, details={"reason": reason})

    await db.transaction(place, "hold")


async def release(db: Database, number: int, *, actor: str, cause: str | None) -> None:
    """End a hold; releasing twice is releasing once."""

    async def end(tx: Connection) -> None:
        head = await touch(tx, number, operations.c.hold.is_not(None), hold=None)
        if head is not None:
            await note(db, tx, head, "released", actor=actor, cause=cause)
            await log_act(db, tx, number, "release", actor=actor, details=_cause(cause))

    await db.transaction(end, "hold")


async def _moved(
    db: Database,
    number: int,
    work: Callable[[Connection], Awaitable[Head | None]],
    event: str,
    action: str,
    *,
    actor: str,
    cause: str | None,
    is_done: tuple[str, ...],
) -> Head:
    """Move an operation and note the act; one that is in a state of `is_done` is left as it is.

    `IllegalMove` in any other state that does not admit the event.
    """

    async def notify(tx: Connection) -> Head | None:
        await db.ring(tx)
        head = await work(tx)
        if head is not None:
            await log_act(db, tx, number, action, actor=actor, details=_cause(cause))
        return head

    async def notify_once() -> Head | None:
        while True:
            try:
                return await db.transaction(notify, event)
            except CommitUnknown:
                continue  # if it did happen, the repeat finds it done

    head = await notify_once()
    if head is not None:
        return head
    async with db.connection() as tx:
        head = await head_of(tx, number)
    if head.state not in is_done:
        raise IllegalMove(OPERATION.name, f"operation {head.id}", head.state, event, OPERATION.allowed(head.state))
    return head


def _cause(cause: str | None) -> dict[str, str] | None:
    return None if cause is None else {"cause": cause}
