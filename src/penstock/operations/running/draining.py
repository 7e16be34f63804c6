"""Bringing a stopping operation to its end; needs none of its code, so any process may do it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from sqlalchemy import select

from penstock.clock import Clock
from penstock.db.connection import Connection
from penstock.db.database import Database
from penstock.operations import chunks as store
from penstock.operations.chunks import Lost
from penstock.operations.held import Held, recover, unpack_rows
from penstock.operations.keys import key_names, key_of
from penstock.operations.referee import HEAD, Head, finish_if_over, touch
from penstock.operations.running import mailroom
from penstock.operations.running.mailroom import Overtaken
from penstock.operations.running.owning import own
from penstock.operations.running.persist import persist
from penstock.operations.tables import operations
from penstock.pipeline import Definition

__all__ = ["abandon_readings", "drain_chunk", "give_back_reading"]

DRAIN_PATIENCE_S = 1.0  # a chunk that was claimed and not drained is another's when our lease is over


async def drain_chunk(
    db: Database, held: Held, *, owner: str, clock: Clock, definitions: Mapping[str, Definition]
) -> bool:
    """Claim a chunk of a stopping operation and give its rows their verdicts; False when another was first.

    `definitions`, where the operation is among them, know its key's other names.
    """
    if not await own(db, held, owner=owner, state="Stopping", clock=clock):
        return False
    async with db.read() as tx:
        await store.load_stories(tx, held)
    now = clock.now_us()
    held.key_of = _keys(held, definitions)
    recover(held, now)
    while True:
        try:
            await persist(
                db,
                lambda tx: mailroom.drain(db, tx, held, now, actor=owner),
                "drain",
                has_happened=partial(store.is_written, db, held),
                clock=clock,
                patience_s=DRAIN_PATIENCE_S,
            )
        except Overtaken:
            continue
        except Lost:
            pass
        return True


def _keys(held: Held, definitions: Mapping[str, Definition]) -> Callable[[int], str | None]:
    """The keys of a chunk's rows, of which only those are read that are asked for."""
    known = definitions.get(held.plan["operation"].casefold())
    names = key_names(held.plan["row_key"], known.row.fields if known else ())
    rows = unpack_rows(held.data) if names and held.data is not None else None

    def key(i: int) -> str | None:
        edited = held.told(i, 0)
        if edited is not None and edited.data is not None:
            return key_of(edited.data, names, held.columns)
        return None if rows is None else key_of(rows[i], names, held.columns)

    return key


async def abandon_readings(db: Database, *, actor: str, operation: int | None = None) -> int:
    """End the reading of stopping operations that nobody reads any more; says how many."""
    async with db.read() as tx:
        query = select(*HEAD).where(
            operations.c.state == "Stopping", operations.c.reading == "open", store.is_free(db, operations.c.owner)
        )
        if operation is not None:
            query = query.where(operations.c.number == operation)
        heads = [Head(**row._mapping) for row in await tx.execute(query)]
    for head in heads:
        await db.transaction(partial(abandon, db, head, actor=actor), "abandon")
    return len(heads)


async def abandon(db: Database, head: Head, tx: Connection, *, actor: str) -> Head | None:
    """Give up reading a stopping operation; the rest of its file stays unread."""
    now = await touch(
        tx,
        head.number,
        operations.c.fence == head.fence,
        operations.c.state == "Stopping",
        operations.c.reading == "open",
        reading="abandoned",
        owner=None,
        fence=operations.c.fence + 1,
        total_rows=operations.c.rows_read,
        open_chunks=operations.c.open_chunks - 1,
    )
    return None if now is None else await finish_if_over(db, tx, now, actor=actor)


async def give_back_reading(db: Database, head: Head, *, actor: str) -> None:
    """Let somebody else go on reading, or nobody when the operation is stopping."""

    async def give_back(tx: Connection) -> None:
        if await abandon(db, head, tx, actor=actor) is None:
            await touch(tx, head.number, operations.c.fence == head.fence, owner=None)

    await db.transaction(give_back, "give_back_reading")
