"""Results that come after the chunk went to another worker: they change nothing but a line in the row's history.

The line matters most for an at-most-once call: the row is in doubt, and the line says what came of it.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import Any

from sqlalchemy import insert, update

from penstock.db.connection import Connection
from penstock.db.database import Database
from penstock.errors import Unavailable
from penstock.operations.chunk.ledger import PENDING, STATES, WAITING
from penstock.operations.chunk.owned import OwnedChunk
from penstock.operations.chunk.records import StepRecord
from penstock.operations.messages import cut
from penstock.operations.tables import chunks, history

__all__ = ["late_results", "record_late_results"]


async def record_late_results(db: Database, owned: OwnedChunk, *, owner: str, now: int) -> None:
    """Write the late results, if another owns the chunk; otherwise the next owner finds the rows in flight."""
    lines = late_results(owned, owner=owner, now=now)

    async def write(tx: Connection) -> None:
        # Locked, so that whoever removes the chunk finds the lines.
        is_taken = update(chunks).where(chunks.c.id == owned.id, chunks.c.fence != owned.fence)
        if (await tx.execute(is_taken.values(fence=chunks.c.fence))).rowcount:
            await tx.execute(insert(history), lines)

    if lines:
        with suppress(Unavailable):  # the rows are right without them
            await db.transaction(write, "late_result")


def late_results(owned: OwnedChunk, *, owner: str, now: int) -> list[dict[str, Any]]:
    """A line of history for each row that was in flight when we last wrote and has ended or moved on here since."""
    lines = []
    for i, (was_running, place_then) in enumerate(
        zip(owned.written_places.in_flight, owned.written_places.at, strict=True)
    ):
        place = _ended(owned, i, place_then) if was_running else None
        if place is not None:
            lines.append(_line(owned, i, place, owner=owner, now=now))
    return lines


def _ended(owned: OwnedChunk, i: int, place_then: int) -> int | None:
    """The last step of row i that has ended or begun to wait since; None when there is none, as after validation."""
    ledger, place = owned.ledger, owned.ledger.at[i]
    if not (place and place_then):
        return None
    if place <= ledger.steps and ledger.tracks[place].state[i] != PENDING:
        is_still_waiting = i in owned.written_places.waiting and ledger.tracks[place].state[i] == WAITING
        return None if is_still_waiting else place
    if place > place_then:
        return place - 1
    is_put_off = (owned.first_row + i, place - 1) in owned.changed
    return place if is_put_off else None


def _line(owned: OwnedChunk, i: int, place: int, *, owner: str, now: int) -> dict[str, Any]:
    ledger = owned.ledger
    state = STATES[ledger.tracks[place].state[i]]
    new = StepRecord(owned.id, owned.first_row + i, place - 1, owned.operation, state, now)
    record = replace(owned.record_of(i, place) or new, generation=ledger.generation[i])
    found = f"{state}: {record.message}" if record.message else state
    record.attempt = ledger.tracks[place].attempt[i]
    record.message = cut(f"worker {owner} had lost the row when its attempt ended {found}")
    return record.history_line("late_result", now)
