"""Reading free signals and the rows that wait for them. A signal is free until a row has taken it.

An owner reads this way before it ends waits; so does the call that answers which row will take a signal.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from sqlalchemy import BigInteger, Column, FromClause, Select, bindparam, func, or_, select

from penstock.db.connection import Connection
from penstock.db.database import Database
from penstock.operations.inbox import matching
from penstock.operations.inbox.applying import SignalContent
from penstock.operations.inbox.matching import Signal, Waiter
from penstock.operations.tables import row_records, signals

__all__ = [
    "contents_of",
    "found_on_keys",
    "free_signals",
    "ready_after",
    "ready_for_any",
    "ready_for_chunk",
    "ready_keys",
    "waiters",
]

KEYS_MAX = 1000  # read at once by a sweep
FEW = 200  # keys that are looked up one by one; more are compared with all that the operation has


async def ready_for_chunk(db: Database, tx: Connection, operation: int, chunk: int) -> dict[str, int]:
    """The keys that rows of a chunk wait for and that have a free signal, with the earliest `since` of their waits."""
    found = await tx.send(db.prepared(_ready_for_chunk), {"of": operation, "the_chunk": chunk})
    return dict(found.rows)


async def ready_for_any(db: Database, tx: Connection, operation: int, keys: Collection[str]) -> dict[str, int]:
    """The same for some keys, and any row of the operation."""
    return dict(await found_on_keys(db, tx, ready_keys, {"of": operation, "keys": list(keys)}))


async def found_on_keys(
    db: Database, tx: Connection, build: Callable[..., Select[Any]], given: Mapping[str, Any]
) -> list[tuple[Any, ...]]:
    """What a statement finds on the `keys` that are given; `build` makes it for few keys, or for many."""
    if len(given["keys"]) <= FEW:
        return (await tx.send_listed(db.prepared(build, True), given)).rows
    return [tuple(row) for row in await tx.execute(db.prepared(build, False), given)]


async def ready_after(db: Database, operation: int, after: str, tx: Connection) -> tuple[list[str], str | None]:
    """Keys behind `after` that are ready for any row of the operation, and the key to go on after; None at the end."""
    found = (await tx.send(db.prepared(_ready_after), {"of": operation, "after": after})).rows
    ready = [key for key, newest, since in found if since is not None and newest >= since]
    return ready, (found[-1][0] if len(found) == KEYS_MAX else None)


# A key is ready when its earliest wait accepts its newest free signal, whatever row that names. So each signal and each
# wait of a key is read once, not each signal for each wait; which row accepts which signal is decided after that. The
# correlated part is an aggregate, so that no planner makes a join of it: without statistics, that would go through all
# signals, or all waits, of the operation.
_IS_FREE = (signals.c.operation == bindparam("of"), signals.c.consumed_at.is_(None))
_IS_WAITING = (row_records.c.operation == bindparam("of"), row_records.c.state == "WaitingForCompletion")


def _ready_for_chunk(db: Database) -> Select[*tuple[Any, ...]]:
    awaited = (
        select(row_records.c.signal_key, func.min(matching.since()).label("since"))
        .where(*_IS_WAITING, row_records.c.chunk == bindparam("the_chunk"), row_records.c.signal_key.is_not(None))
        .group_by(row_records.c.signal_key)
        .subquery("awaited")
    )
    newest = (
        select(func.max(signals.c.accepted_at))
        .where(*_IS_FREE, signals.c.key == awaited.c.signal_key)
        .correlate(awaited)
    )
    return select(awaited).where(newest.scalar_subquery() >= awaited.c.since)


def ready_keys(db: Database, are_few: bool) -> Select[*tuple[Any, ...]]:
    """The statement of `ready_for_any`."""
    shown = [signals.c[name] for name in ("key", "accepted_at", "consumed_at")]
    on_keys = _on_keys(db, are_few, shown, signals.c.operation, signals.c.key)
    awaited = _awaited(on_keys, select(on_keys.c.key).where(on_keys.c.consumed_at.is_(None))).subquery()
    return select(awaited.c.key, awaited.c.since).where(awaited.c.newest >= awaited.c.since)


def _on_keys(
    db: Database, are_few: bool, shown: Sequence[Column[Any]], operation: Column[Any], key: Column[Any]
) -> FromClause:
    """An operation's signals, or its waits, on some keys."""
    if are_few:
        return db.dialect.listed_rows(shown, operation, "of", key, "keys")
    is_on_key = key.in_(bindparam("keys", expanding=True))
    return select(*shown).where(operation == bindparam("of"), is_on_key).subquery("listed")


def _ready_after(db: Database) -> Select[*tuple[Any, ...]]:
    # Implied by _IS_FREE, but this column has an index.
    is_next = (signals.c.key > bindparam("after"), signals.c.consumed_row.is_(None))
    keys = select(signals.c.key).where(*_IS_FREE, *is_next).order_by(signals.c.key).limit(KEYS_MAX)
    return _awaited(signals, keys)


def _awaited(of: FromClause, keys: Select[*tuple[Any, ...]]) -> Select[*tuple[Any, ...]]:
    """These keys of free signals, with the time of the newest and the earliest `since` of the waits, else null."""
    free = keys.add_columns(func.max(of.c.accepted_at).label("newest")).group_by(of.c.key).subquery("free")
    is_on_key = row_records.c.signal_key == free.c.key
    since = select(func.min(matching.since())).where(*_IS_WAITING, is_on_key).correlate(free).scalar_subquery()
    return select(free.c.key, free.c.newest, since.label("since")).order_by(free.c.key)


async def free_signals(
    db: Database, tx: Connection, operation: int, keys: Mapping[str, int], *, each: int
) -> list[Signal]:
    """Free signals of keys that are ready, oldest first; at most `each` of a key, so that no key hides another."""
    given = {"of": operation, "keys": list(keys), "since": min(keys.values()), "each": each}
    return [Signal(*row) for row in await found_on_keys(db, tx, _free, given)]


def _free(db: Database, are_few: bool) -> Select[*tuple[Any, ...]]:
    names = tuple(Signal.__dataclass_fields__)
    shown = [signals.c[name] for name in (*names, "consumed_at")]
    on_keys = _on_keys(db, are_few, shown, signals.c.operation, signals.c.key)
    place = func.row_number().over(partition_by=on_keys.c.key, order_by=on_keys.c.id)
    free = (
        select(on_keys, place.label("place"))
        .where(on_keys.c.consumed_at.is_(None), on_keys.c.accepted_at >= bindparam("since"))
        .subquery("free")
    )
    return (
        select(*(free.c[name] for name in names))
        .where(free.c.place <= bindparam("each", type_=BigInteger))
        .order_by(free.c.id)
    )


async def waiters(
    db: Database,
    tx: Connection,
    operation: int,
    keys: Collection[str],
    *,
    each: int,
    named: Collection[int] = (),
    other_than: int = 0,
) -> list[Waiter]:
    """The `each` lowest rows that wait on each of these keys, and the `named` ones; none of the chunk `other_than`."""
    given = {"of": operation, "keys": list(keys), "each": each, "named": list(named), "other_than": other_than}
    found = await found_on_keys(db, tx, _waiting, given)
    return [Waiter(row, step, chunk, key, since or 0) for row, step, chunk, key, since in found]


def _waiting(db: Database, are_few: bool) -> Select[*tuple[Any, ...]]:
    names = ("row", "step", "chunk", "signal_key", "since")
    shown = [row_records.c[name] for name in (*names, "state")]
    on_keys = _on_keys(db, are_few, shown, row_records.c.operation, row_records.c.signal_key)
    place = func.row_number().over(partition_by=on_keys.c.signal_key, order_by=on_keys.c.row)
    waiting = (
        select(on_keys, place.label("place"))
        .where(on_keys.c.state == "WaitingForCompletion", on_keys.c.chunk != bindparam("other_than"))
        .subquery("waiting")
    )
    is_named = db.dialect.among(waiting.c.row, "named")
    is_low = waiting.c.place <= bindparam("each", type_=BigInteger)
    return select(*(waiting.c[name] for name in names)).where(or_(is_low, is_named))


async def contents_of(db: Database, tx: Connection, ids: Iterable[int]) -> dict[int, SignalContent]:
    """What signals say, by their ids."""
    found = await tx.send_listed(db.prepared(_contents), {"ids": list(ids)})
    return {id: SignalContent(*content) for id, *content in found.rows}


def _contents(db: Database) -> Select[*tuple[Any, ...]]:
    columns = (signals.c[name] for name in ("id", *SignalContent.__dataclass_fields__))
    return select(*columns).where(db.dialect.among(signals.c.id, "ids"))
