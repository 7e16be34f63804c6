"""Reading free signals and the rows that wait for them. A signal is free until a row has taken it.

An owner reads this way before it ends waits; so does the call that answers which row will take a signal.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from sqlalchemy import BigInteger, Select, bindparam, func, or_, select

from penstock.db.connection import Connection
from penstock.db.database import Database
from penstock.operations.inbox import matching
from penstock.operations.inbox.applying import SignalContent
from penstock.operations.inbox.matching import Signal, Waiter
from penstock.operations.tables import row_records, signals

__all__ = [
    "contents_of",
    "free_signals",
    "ready_after",
    "ready_for_any",
    "ready_for_chunk",
    "ready_keys",
    "waiters",
]

KEYS_MAX = 1000  # read at once by a sweep


async def ready_for_chunk(db: Database, tx: Connection, operation: int, chunk: int) -> dict[str, int]:
    """The keys that rows of a chunk wait for and that have a free signal, with the earliest `since` of their waits."""
    found = await tx.send(db.prepared(_ready_for_chunk), {"of": operation, "the_chunk": chunk})
    return dict(found.rows)


async def ready_for_any(db: Database, tx: Connection, operation: int, keys: Collection[str]) -> dict[str, int]:
    """The same for some keys, and any row of the operation."""
    found = await tx.execute(db.prepared(ready_keys), {"of": operation, "keys": list(keys)})
    return {row.key: row.since for row in found}


async def ready_after(db: Database, operation: int, after: str, tx: Connection) -> tuple[list[str], str | None]:
    """Keys behind `after` that are ready for any row of the operation, and the key to go on after; None at the end."""
    found = (await tx.execute(db.prepared(_ready_after), {"of": operation, "after": after})).all()
    ready = [key for key, newest, since in found if since is not None and newest >= since]
    return ready, (found[-1].key if len(found) == KEYS_MAX else None)


# A key is ready when its earliest wait accepts its newest free signal, whatever row that names. So each signal and each
# wait of a key is read once, not each signal for each wait; which row accepts which signal is decided after that. The
# correlated part is an aggregate, so that no planner makes a join of it: without statistics, that would go through all
# signals, or all waits, of the operation.
_IS_FREE = (signals.c.operation == bindparam("of"), signals.c.consumed_at.is_(None))
_IS_WAITING = (row_records.c.operation == bindparam("of"), row_records.c.state == "WaitingForCompletion")
_NEWEST = func.max(signals.c.accepted_at)


def _ready_for_chunk(db: Database) -> Select[*tuple[Any, ...]]:
    awaited = (
        select(row_records.c.signal_key, func.min(matching.since()).label("since"))
        .where(*_IS_WAITING, row_records.c.chunk == bindparam("the_chunk"), row_records.c.signal_key.is_not(None))
        .group_by(row_records.c.signal_key)
        .subquery("awaited")
    )
    newest = select(_NEWEST).where(*_IS_FREE, signals.c.key == awaited.c.signal_key).correlate(awaited)
    return select(awaited).where(newest.scalar_subquery() >= awaited.c.since)


def ready_keys(db: Database) -> Select[*tuple[Any, ...]]:
    """The statement of `ready_for_any`."""
    awaited = _awaited(select(signals.c.key).where(signals.c.key.in_(bindparam("keys", expanding=True)))).subquery()
    return select(awaited.c.key, awaited.c.since).where(awaited.c.newest >= awaited.c.since)


def _ready_after(db: Database) -> Select[*tuple[Any, ...]]:
    # Implied by _IS_FREE, but this column has an index.
    is_next = (signals.c.key > bindparam("after"), signals.c.consumed_row.is_(None))
    return _awaited(select(signals.c.key).where(*is_next).order_by(signals.c.key).limit(KEYS_MAX))


def _awaited(keys: Select[*tuple[str]]) -> Select[*tuple[Any, ...]]:
    """Keys of free signals, with the time of the newest and the earliest `since` of the waits, null without any."""
    free = keys.add_columns(_NEWEST.label("newest")).where(*_IS_FREE).group_by(signals.c.key).subquery("free")
    is_on_key = row_records.c.signal_key == free.c.key
    since = select(func.min(matching.since())).where(*_IS_WAITING, is_on_key).correlate(free).scalar_subquery()
    return select(free.c.key, free.c.newest, since.label("since")).order_by(free.c.key)


async def free_signals(
    db: Database, tx: Connection, operation: int, keys: Mapping[str, int], *, each: int
) -> list[Signal]:
    """Free signals of keys that are ready, oldest first; at most `each` of a key, so that no key hides another."""
    given = {"of": operation, "keys": list(keys), "since": min(keys.values()), "each": each}
    return [Signal(*row) for row in await tx.execute(db.prepared(_free), given)]


def _free(db: Database) -> Select[*tuple[Any, ...]]:
    columns = [signals.c[name] for name in Signal.__dataclass_fields__]
    place = func.row_number().over(partition_by=signals.c.key, order_by=signals.c.id)
    free = (
        select(*columns, place.label("place"))
        .where(
            *_IS_FREE,
            signals.c.key.in_(bindparam("keys", expanding=True)),
            signals.c.accepted_at >= bindparam("since"),
        )
        .subquery("free")
    )
    shown = [free.c[column.name] for column in columns]
    return select(*shown).where(free.c.place <= bindparam("each", type_=BigInteger)).order_by(free.c.id)


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
    found = await tx.execute(db.prepared(_waiting), given)
    return [Waiter(row, step, chunk, key, since or 0) for row, step, chunk, key, since in found]


def _waiting(db: Database) -> Select[*tuple[Any, ...]]:
    columns = [row_records.c[name] for name in ("row", "step", "chunk", "signal_key", "since")]
    place = func.row_number().over(partition_by=row_records.c.signal_key, order_by=row_records.c.row)
    waiting = (
        select(*columns, place.label("place"))
        .where(
            *_IS_WAITING,
            row_records.c.signal_key.in_(bindparam("keys", expanding=True)),
            row_records.c.chunk != bindparam("other_than"),
        )
        .subquery("waiting")
    )
    is_named = waiting.c.row.in_(bindparam("named", expanding=True))
    is_low = waiting.c.place <= bindparam("each", type_=BigInteger)
    return select(*(waiting.c[column.name] for column in columns)).where(or_(is_low, is_named))


async def contents_of(tx: Connection, ids: Iterable[int]) -> dict[int, SignalContent]:
    """What signals say, by their ids."""
    found = await tx.execute(_CONTENTS, {"ids": list(ids)})
    return {id: SignalContent(*content) for id, *content in found}


_CONTENTS = select(signals.c.id, *(signals.c[name] for name in SignalContent.__dataclass_fields__)).where(
    signals.c.id.in_(bindparam("ids", expanding=True))
)
