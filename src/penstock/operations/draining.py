"""Ending a stopping operation; this needs none of its code, so any process may do it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from sqlalchemy import Select, bindparam, select

from penstock.clock import Clock
from penstock.db.connection import Connection
from penstock.db.database import Database
from penstock.operations.chunk import store
from penstock.operations.chunk.owned import OwnedChunk, recover
from penstock.operations.chunk.packing import unpack_rows
from penstock.operations.chunk.persist import persist
from penstock.operations.chunk.store import Lost
from penstock.operations.inbox import settling
from penstock.operations.inbox.payloads import signalled_steps
from penstock.operations.inbox.settling import Overtaken
from penstock.operations.moves import HEAD, Head, finish_if_over, touch
from penstock.operations.row_keys import key_names, key_of
from penstock.operations.tables import operations
from penstock.pipeline import Definition

__all__ = ["abandon_readings", "drain", "drain_chunk", "give_back_reading"]

DRAIN_PATIENCE_S = 1.0  # a chunk that was claimed and not drained is claimed by another when our lease is over


async def drain(
    db: Database, number: int, *, owner: str, clock: Clock, definitions: Mapping[str, Definition], within_s: float
) -> None:
    """Drain the chunks of a stopping operation that no live worker owns, for at most `within_s`."""
    until = clock.monotonic() + within_s
    await abandon_readings(db, actor=owner, operation=number)
    while clock.monotonic() < until:
        async with db.read() as tx:
            found = await store.candidates(db, tx, names=(), limit=10, operation=number)
        if not found:
            return
        for owned in found:
            await drain_chunk(db, owned, owner=owner, clock=clock, definitions=definitions)


async def drain_chunk(
    db: Database, owned: OwnedChunk, *, owner: str, clock: Clock, definitions: Mapping[str, Definition]
) -> bool:
    """Claim a chunk of a stopping operation and give its rows their verdicts; False when another was first.

    `definitions` are asked for other names of the row key and for the types of outputs, if the operation is among them.
    """
    if not await store.own(db, owned, owner=owner, state="Stopping", clock=clock):
        return False
    async with db.connection() as tx:
        owned.records = await store.records_of(tx, owned.id)
    now = clock.now_us()
    owned.key_of = _keys(owned, definitions)
    steps = signalled_steps(definitions.get(owned.plan["operation"].casefold()), owned.plan)
    recover(owned, now)
    while True:
        try:
            await persist(
                db,
                lambda tx: settling.drain(db, tx, owned, now, steps=steps, actor=owner),
                "drain",
                has_happened=partial(store.is_written, db, owned),
                clock=clock,
                patience_s=DRAIN_PATIENCE_S,
            )
        except Overtaken:
            continue
        except Lost:
            pass
        return True


def _keys(owned: OwnedChunk, definitions: Mapping[str, Definition]) -> Callable[[int], str | None]:
    """A function that reads the key of a row of the chunk."""
    known = definitions.get(owned.plan["operation"].casefold())
    names = key_names(owned.plan["row_key"], known.row.fields if known else ())
    rows = unpack_rows(owned.data) if names and owned.data is not None else None

    def key(i: int) -> str | None:
        edited = owned.record_of(i, 0)
        if edited is not None and edited.data is not None:
            return key_of(edited.data, names, owned.columns)
        return None if rows is None else key_of(rows[i], names, owned.columns)

    return key


async def abandon_readings(db: Database, *, actor: str, operation: int | None = None) -> int:
    """End the reading of stopping operations that no live worker reads; returns how many."""
    query = db.prepared(_stopping, operation is not None)
    async with db.connection() as tx:
        heads = [Head(*row) for row in (await tx.send(query, {} if operation is None else {"of": operation})).rows]
    for head in heads:
        await db.transaction(partial(abandon, db, head, actor=actor), "abandon")
    return len(heads)


def _stopping(db: Database, is_of_one: bool) -> Select[*tuple[Any, ...]]:
    query = select(*HEAD).where(
        operations.c.state == "Stopping", operations.c.reading == "open", store.is_free(db, operations.c.owner)
    )
    return query.where(operations.c.number == bindparam("of")) if is_of_one else query


async def abandon(db: Database, head: Head, tx: Connection, *, actor: str) -> Head | None:
    """End the reading of a stopping operation; the rest of its file stays unread. None if it is not stopping."""
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
    """Let another worker go on reading, or end the reading when the operation is stopping."""

    async def give_back(tx: Connection) -> None:
        if await abandon(db, head, tx, actor=actor) is None:
            await touch(tx, head.number, operations.c.fence == head.fence, owner=None)

    await db.transaction(give_back, "give_back_reading")
