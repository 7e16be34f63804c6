"""Claiming a chunk: the one way to own it, to run its rows or to drain it."""

from __future__ import annotations

from sqlalchemy import select

from penstock.clock import Clock
from penstock.db.connection import Connection
from penstock.db.database import Database
from penstock.operations.chunk import store
from penstock.operations.chunk.owned import OwnedChunk, RowPlaces
from penstock.operations.chunk.persist import persist
from penstock.operations.moves import state_of
from penstock.operations.tables import chunks

__all__ = ["own"]


class NotClaimed(Exception):
    """Another was first, or the operation has moved on since we looked."""


async def own(db: Database, owned: OwnedChunk, *, owner: str, state: str, clock: Clock, write: bool = False) -> bool:
    """Claim a candidate while its operation is in `state`; with `write`, its ledger (our first intent) is stored too.

    False when another was first, or the operation has moved on.
    """

    async def claim(tx: Connection) -> None:
        is_ours = await store.claim(db, tx, owned, owner=owner, write=write)
        if not is_ours or await state_of(tx, owned.operation) != state:
            raise NotClaimed

    async def has_happened() -> bool:
        async with db.read() as tx:
            found = await tx.execute(select(chunks.c.owner, chunks.c.fence).where(chunks.c.id == owned.id))
            return found.one_or_none() == (owner, owned.fence + 1)

    try:
        await persist(db, claim, "claim", has_happened=has_happened, clock=clock, patience_s=0)
    except NotClaimed:
        return False
    owned.fence += 1
    owned.version += int(write)
    owned.written_places = RowPlaces.of(owned.ledger) if write else RowPlaces()
    return True
