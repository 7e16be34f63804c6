"""The owner's side of word from outside: reading what was left for a chunk, and settling it in one transaction."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from sqlalchemy import ColumnElement, Select, Update, bindparam, func, select, update

from penstock.db.connection import Connection
from penstock.db.database import Database
from penstock.operations import chunks as store
from penstock.operations.held import Held, Story, Writing, cancel_unfinished
from penstock.operations.ledger import WAITING
from penstock.operations.referee import finish_if_over, touch
from penstock.operations.rules.settling import (
    Match,
    Request,
    Signal,
    Waiter,
    apply_deadlines,
    apply_requests,
    apply_signals,
    match,
)
from penstock.operations.tables import chunks, operations, requests, row_records, signals

__all__ = ["Overtaken", "Settlement", "drain", "settle", "sweep", "unconsumed", "waiters", "wake"]

SIGNALS_MAX = 1000  # looked at in one transaction; the rest is passed on


class Overtaken(Exception):
    """Another chunk's owner took a signal that we meant to take: roll back and settle again."""


@dataclass(frozen=True, slots=True)
class Settlement:
    """What was decided and written; the owner repeats it on what it holds once it is committed."""

    mail: int
    requests: Sequence[Request]
    matches: Sequence[Match]
    now: int
    writing: Writing
    lines_before: int
    stories: Mapping[tuple[int, int], Story]

    def apply(self, held: Held, raw_of: Callable[[int], Any]) -> None:
        """Bring memory to what is on disk; lines that were added meanwhile stay to be written."""
        for key, story in self.stories.items():
            held.stories.setdefault(key, story)
        later = held.lines[self.lines_before :]
        apply_requests(held, self.requests, raw_of, self.now)
        apply_signals(held, self.matches, self.now)
        apply_deadlines(held, self.now)
        held.mail = self.mail
        held.written(self.writing)
        held.lines = later


async def settle(db: Database, tx: Connection, held: Held, raw_of: Callable[[int], Any], now: int) -> Settlement:
    """Apply requests, then signals, then deadlines, and write it all; the chunk is locked before anything is read.

    `held` is a copy, for rows go on while this runs.
    """
    mail = await store.lock(tx, held)
    asked = await _requests(tx, held.id)
    stories = await store.stories_of(tx, held.id) if asked else {}
    trial = held.copy()
    for key, story in stories.items():
        trial.stories.setdefault(key, replace(story))
    lines_before = len(trial.lines)
    outcomes = apply_requests(trial, asked, raw_of, now)
    matches = await _matches(tx, trial)
    apply_signals(trial, matches, now)
    apply_deadlines(trial, now)
    writing = trial.writing()
    await store.flush(db, tx, held, writing)
    await _consume(db, tx, trial, matches)
    await _answer(tx, outcomes)
    return Settlement(mail, asked, matches, now, writing, lines_before, stories)


async def drain(db: Database, tx: Connection, held: Held, now: int, *, actor: str) -> bool:
    """Give every row of a stopping operation's chunk its verdict and close it; False when it is no longer stopping."""
    head = await touch(
        tx,
        held.operation,
        operations.c.state == "Stopping",
        open_chunks=operations.c.open_chunks - 1,
        raw_chunks=operations.c.raw_chunks - int(held.is_raw),
    )
    if head is None:
        return False
    await store.lock(tx, held)
    trial = held.copy()
    matches = await _matches(tx, trial)
    apply_signals(trial, matches, now)
    cancel_unfinished(trial, now)
    await store.flush(db, tx, held, trial.writing(), is_open=0, is_raw=0, owner=None)
    await _consume(db, tx, trial, matches)
    refused = {request.id: "refused: the operation was stopped" for request in await _requests(tx, held.id)}
    await _answer(tx, refused)
    await finish_if_over(db, tx, head, actor=actor)
    return True


async def _requests(tx: Connection, chunk: int) -> list[Request]:
    query = (
        select(
            requests.c.id,
            requests.c.kind,
            requests.c.row,
            requests.c.confirms_doubt,
            requests.c.data,
            requests.c.accepted_at,
        )
        .where(requests.c.chunk == chunk, requests.c.outcome.is_(None))
        .order_by(requests.c.id)
    )
    return [
        Request(r.id, r.kind, r.row, bool(r.confirms_doubt), r.data, r.accepted_at) for r in await tx.execute(query)
    ]


async def _answer(tx: Connection, outcomes: Mapping[int, str]) -> None:
    for request, outcome in outcomes.items():
        values: dict[str, Any] = {"outcome": outcome}
        if outcome.startswith("refused"):
            values["generation"] = -requests.c.id  # nothing came of it: the row may be asked for again
        await tx.execute(update(requests).where(requests.c.id == request).values(values))


async def _matches(tx: Connection, held: Held) -> list[Match]:
    """The stored signals that end waits of this chunk."""
    mine = waiters_of(held)
    if not mine:
        return []
    found = await _signals(tx, held)
    if not found:
        return []
    heard = {signal.key for signal in found}
    others = await waiters(tx, held.operation, heard, each=2 * len(found) + 100, other_than=held.id)
    matches = match(found, [w for w in mine if w.key in heard] + others)
    return [found for found in matches if found.chunk == held.id]  # the rest is for the owners of the others


def waiters_of(held: Held) -> list[Waiter]:
    """The rows of a chunk that wait for a signal."""
    ledger = held.ledger
    return [
        Waiter(row, step, held.id, story.signal_key, story.since or 0)
        for (row, step), story in held.stories.items()
        if story.signal_key is not None
        and ledger.at[row - held.first_row] == step + 1
        and ledger.tracks[step + 1].state[row - held.first_row] == WAITING
    ]


async def _signals(tx: Connection, held: Held) -> list[Signal]:
    """Unconsumed signals for the keys that rows of this chunk wait on, oldest first."""
    awaited = select(row_records.c.signal_key).where(
        row_records.c.chunk == held.id, row_records.c.state == "WaitingForCompletion"
    )
    return await unconsumed(tx, held.operation, signals.c.key.in_(awaited))


async def unconsumed(tx: Connection, operation: int, *filters: ColumnElement[bool]) -> list[Signal]:
    """Signals that no row has taken, oldest first."""
    query = (
        select(*(signals.c[name] for name in Signal.__dataclass_fields__))
        .where(signals.c.operation == operation, signals.c.consumed_at.is_(None), *filters)
        .order_by(signals.c.id)
        .limit(SIGNALS_MAX)
    )
    return [Signal(*row) for row in await tx.execute(query)]


async def waiters(
    tx: Connection, operation: int, keys: Collection[str], *, each: int, other_than: int = 0
) -> list[Waiter]:
    """The lowest rows that wait on these keys, so many of each key, but for those of one chunk."""
    place = func.row_number().over(partition_by=row_records.c.signal_key, order_by=row_records.c.row)
    waiting = (
        select(
            row_records.c.row,
            row_records.c.step,
            row_records.c.chunk,
            row_records.c.signal_key,
            row_records.c.since,
            place.label("place"),
        )
        .where(
            row_records.c.operation == operation,
            row_records.c.signal_key.in_(keys),
            row_records.c.state == "WaitingForCompletion",
            row_records.c.chunk != other_than,
        )
        .subquery()
    )
    found = await tx.execute(select(waiting).where(waiting.c.place <= each))
    return [Waiter(r.row, r.step, r.chunk, r.signal_key, r.since or 0) for r in found]


async def _consume(db: Database, tx: Connection, held: Held, matches: Sequence[Match]) -> None:
    for found in sorted(matches, key=lambda found: found.signal.id):
        i = found.row - held.first_row
        done = await tx.execute(
            update(signals)
            .where(signals.c.id == found.signal.id, signals.c.consumed_at.is_(None))
            .values(
                consumed_row=found.row,
                consumed_step=found.step,
                consumed_generation=held.ledger.generation[i],
                consumed_at=db.now(),
            )
        )
        if done.rowcount != 1:
            raise Overtaken


def _has_signal() -> ColumnElement[bool]:
    """Waits for which an unconsumed signal of their generation lies ready."""
    return (
        select(signals.c.id)
        .where(
            signals.c.operation == row_records.c.operation,
            signals.c.key == row_records.c.signal_key,
            signals.c.consumed_at.is_(None),
            signals.c.accepted_at >= func.coalesce(row_records.c.since, 0),
            (signals.c.row.is_(None)) | (signals.c.row == row_records.c.row),
        )
        .exists()
    )


async def wake(db: Database, operation: int, keys: Collection[str], tx: Connection) -> int:
    """Recall the owners of the lowest rows that wait on these keys and have a signal; says how many chunks.

    A transaction of its own, after the commit it follows: store, commit, then look.
    """
    found = await tx.execute(_LOWEST, {"of": operation, "keys": list(keys)})
    woken = sorted({chunk for chunk in found.scalars() if chunk is not None})
    if woken:
        await tx.execute(db.prepared(_recall), [{"the_chunk": chunk} for chunk in woken])
        await db.ring(tx)
    return len(woken)


def _lowest() -> Select[*tuple[Any, ...]]:
    """For each of some keys, the chunk of the lowest row that waits on it and has a signal, or null.

    Key by key through the key's index: thousands of rows may wait on one.
    """
    heard = (
        select(signals.c.key)
        .where(
            signals.c.operation == bindparam("of"),
            signals.c.key.in_(bindparam("keys", expanding=True)),
            signals.c.consumed_at.is_(None),
        )
        .distinct()
        .subquery("heard")
    )
    lowest = (
        select(row_records.c.chunk)
        .where(
            row_records.c.operation == bindparam("of"),
            row_records.c.signal_key == heard.c.key,
            row_records.c.state == "WaitingForCompletion",
            _has_signal(),
        )
        .order_by(row_records.c.row)
        .limit(1)
        .correlate(heard)
    )
    return select(lowest.scalar_subquery()).select_from(heard)


def _recall(db: Database) -> Update:
    due_at = db.dialect.least(chunks.c.due_at, db.now())
    return update(chunks).where(chunks.c.id == bindparam("the_chunk")).values(mail=chunks.c.mail + 1, due_at=due_at)


_LOWEST = _lowest()


async def sweep(db: Database) -> int:
    """Wake every wait beside which a signal lies that nobody has come for; says how many chunks were woken."""
    query = (
        select(row_records.c.operation, row_records.c.signal_key)
        .distinct()
        .where(row_records.c.state == "WaitingForCompletion", row_records.c.signal_key.is_not(None), _has_signal())
        .limit(SIGNALS_MAX)
    )
    async with db.read() as tx:
        found = [(operation, key) for operation, key in await tx.execute(query)]
    woken = 0
    for operation in sorted({operation for operation, _ in found}):
        keys = [key for of, key in found if of == operation]
        woken += await db.transaction(partial(wake, db, operation, keys), "sweep")
    return woken
