"""Signals that come by a callback address (`ctx.signal_url`): each is for one wait, and is taken once."""

from __future__ import annotations

from typing import Any

from sqlalchemy import select

from penstock.db.connection import Connection
from penstock.errors import NoSuchWait, NotFound
from penstock.operations.operation_ids import number_of
from penstock.operations.tables import row_records, signals
from penstock.operations.views import operation_views, row_views
from penstock.pipeline.signal_tokens import WaitAddress

__all__ = ["NO_WAIT", "require_wait"]

NO_WAIT = "there is no wait with this address, or it is over"
DECIDED = ("Completed", "Skipped", "Failed", "TimedOut", "Cancelled")


async def require_wait(tx: Connection, address: WaitAddress) -> None:
    """`NoSuchWait` unless the row waits at this address, will do so, or was ended by a signal that came by it.

    A retry that comes between this look and the signal is no danger: a signal is for waits of its own generation.
    """
    try:
        number = await number_of(tx, address.operation)
    except NotFound:
        raise NoSuchWait(NO_WAIT) from None
    if await _waits(tx, number, address) or await _was_used(tx, number, address):
        return
    try:
        layout = await operation_views.layout(tx, address.operation, {})
        row = await row_views.row(tx, layout, address.row)
    except NotFound:
        raise NoSuchWait(NO_WAIT) from None
    state = next((step.state for step in row.steps if step.index == address.step), None)
    if row.generation != address.generation or state in DECIDED:
        raise NoSuchWait(NO_WAIT, is_over=True)


async def _waits(tx: Connection, number: int, address: WaitAddress) -> bool:
    """Whether the row waits now; asked first, because it needs no more than an index."""
    record: Any = row_records.c
    query = select(record.row).where(
        record.operation == number,
        record.signal_key == address.key,
        record.row == address.row,
        record.step == address.step,
        record.generation == address.generation,
        record.state == "WaitingForCompletion",
    )
    return (await tx.execute(query)).first() is not None


async def _was_used(tx: Connection, number: int, address: WaitAddress) -> bool:
    query = select(signals.c.id).where(signals.c.operation == number, signals.c.dedupe_id == address.signal_id)
    return (await tx.execute(query)).first() is not None
