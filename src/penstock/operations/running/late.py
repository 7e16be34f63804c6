"""What a worker learns after its chunk went to another: it changes nothing, and leaves a line in the row's history.

The line matters most for a call that must not be repeated: the row is in doubt, and here is what came of it.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from sqlalchemy import insert, update

from penstock.db.connection import Connection
from penstock.db.database import Database
from penstock.errors import Unavailable
from penstock.operations.held import Held
from penstock.operations.ledger import PENDING, STATES, WAITING
from penstock.operations.rules.decide import cut
from penstock.operations.tables import chunks, history

__all__ = ["late_results", "tell_late_results"]


async def tell_late_results(db: Database, held: Held, *, owner: str, now: int) -> None:
    """Tell what ended here in vain, if another has the chunk; what nobody took over, the next owner finds in flight."""
    lines = late_results(held, owner=owner, now=now)

    async def tell(tx: Connection) -> None:
        # Locked, so that a purge that removes the chunk finds the lines.
        is_taken = update(chunks).where(chunks.c.id == held.id, chunks.c.fence != held.fence)
        if (await tx.execute(is_taken.values(fence=chunks.c.fence))).rowcount:
            await tx.execute(insert(history), lines)

    if lines:
        with suppress(Unavailable):  # then nobody hears it; the rows are right all the same
            await db.transaction(tell, "late_result")


def late_results(held: Held, *, owner: str, now: int) -> list[dict[str, Any]]:
    """A line for each row that was in flight when we last wrote, and has left its place here since."""
    lines = []
    for i, (was_running, place_then) in enumerate(zip(held.begun.in_flight, held.begun.at, strict=True)):
        place = _ended(held, i, place_then) if was_running else None
        if place is not None:
            lines.append(_line(held, i, place, owner=owner, now=now))
    return lines


def _ended(held: Held, i: int, place_then: int) -> int | None:
    """The last step of row i that has ended or begun to wait since; None when there is none, as after validation."""
    ledger, place = held.ledger, held.ledger.at[i]
    if not (place and place_then):
        return None
    if place <= ledger.steps and ledger.tracks[place].state[i] != PENDING:
        is_still_waiting = i in held.begun.waiting and ledger.tracks[place].state[i] == WAITING
        return None if is_still_waiting else place
    if place > place_then:
        return place - 1
    is_put_off = (held.first_row + i, place - 1) in held.changed
    return place if is_put_off else None


def _line(held: Held, i: int, place: int, *, owner: str, now: int) -> dict[str, Any]:
    ledger, story = held.ledger, held.told(i, place)
    state = STATES[ledger.tracks[place].state[i]]
    trouble = None if story is None else story.message
    found = f"{state}: {trouble}" if trouble else state
    return {
        "operation": held.operation,
        "row": held.first_row + i,
        "step": place - 1,
        "generation": ledger.generation[i],
        "attempt": ledger.tracks[place].attempt[i],
        "event": "late_result",
        "error_type": None if story is None else story.error_type,
        "message": cut(f"worker {owner} had lost the row when its attempt ended {found}"),
        "data": None,
        "at": now,
    }
