"""Settling the messages of a chunk: its owner reads them, applies them and writes the result in one transaction."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from sqlalchemy import ColumnElement, Select, Update, bindparam, exists, select, update

from penstock.db.connection import Connection
from penstock.db.database import Database
from penstock.operations.chunk import store
from penstock.operations.chunk.ledger import WAITING
from penstock.operations.chunk.owned import ChunkWrite, OwnedChunk, cancel_unfinished
from penstock.operations.chunk.records import StepRecord
from penstock.operations.inbox import matching
from penstock.operations.inbox.applying import Request, SignalContent, apply_deadlines, apply_requests, apply_signals
from penstock.operations.inbox.lookup import (
    contents_of,
    found_on_keys,
    free_signals,
    ready_after,
    ready_for_chunk,
    ready_keys,
    waiters,
)
from penstock.operations.inbox.matching import Match, Waiter, match
from penstock.operations.inbox.payloads import SignalledSteps, with_refusals
from penstock.operations.moves import finish_if_over, touch
from penstock.operations.tables import chunks, operations, requests, row_records, signals

__all__ = ["AT_WORK", "Overtaken", "Settlement", "drain", "settle", "sweep", "wake"]

LOOK_GROWTH = 4  # so many times more signals an owner reads when those it read were not for its rows
AT_WORK = ("Running", "Retrying")  # states of an operation in which its chunks are claimed when they are due


class Overtaken(Exception):
    """Another chunk's owner took a signal that we meant to take: roll back and settle again."""


@dataclass(frozen=True, slots=True)
class Settlement:
    """What was decided and written; the owner applies it to its chunk in memory once it is committed."""

    message_count: int
    requests: Sequence[Request]
    matches: Mapping[Match, SignalContent]
    now: int
    writing: ChunkWrite
    lines_before: int
    records: Mapping[tuple[int, int], StepRecord]

    def apply(self, owned: OwnedChunk, raw_of: Callable[[int], Any]) -> None:
        """Make the chunk in memory what it is on disk; lines that were added meanwhile are still to be written."""
        for key, record in self.records.items():
            owned.records.setdefault(key, record)
        later = owned.lines[self.lines_before :]
        apply_requests(owned, self.requests, raw_of, self.now)
        apply_signals(owned, self.matches, self.now)
        apply_deadlines(owned, self.now)
        owned.message_count = self.message_count
        owned.written(self.writing)
        owned.lines = later


async def settle(
    db: Database,
    tx: Connection,
    owned: OwnedChunk,
    raw_of: Callable[[int], Any],
    now: int,
    *,
    steps: SignalledSteps,
) -> Settlement:
    """Apply requests, then signals, then deadlines, and write it all; the chunk is locked before anything is read.

    `owned` is a copy, because rows go on while this runs. `steps` judge the payloads of signals.
    """
    message_count = await store.lock(tx, owned)
    requested = await _requests(tx, owned.id)
    records = await store.records_of(tx, owned.id) if requested else {}
    trial = owned.copy()
    for key, record in records.items():
        trial.records.setdefault(key, replace(record))
    lines_before = len(trial.lines)
    outcomes = apply_requests(trial, requested, raw_of, now)
    matches = with_refusals(await _matches(db, tx, trial), steps)
    apply_signals(trial, matches, now)
    apply_deadlines(trial, now)
    writing = trial.writing()
    await store.flush(db, tx, owned, writing)
    await _consume(db, tx, trial, matches)
    await _answer(tx, outcomes)
    return Settlement(message_count, requested, matches, now, writing, lines_before, records)


async def drain(
    db: Database, tx: Connection, owned: OwnedChunk, now: int, *, steps: SignalledSteps, actor: str
) -> bool:
    """Give every row of a stopping operation's chunk its verdict and close it; False when it is no longer stopping."""
    head = await touch(
        tx,
        owned.operation,
        operations.c.state == "Stopping",
        open_chunks=operations.c.open_chunks - 1,
        raw_chunks=operations.c.raw_chunks - int(owned.is_raw),
    )
    if head is None:
        return False
    await store.lock(tx, owned)
    trial = owned.copy()
    matches = with_refusals(await _matches(db, tx, trial), steps)
    apply_signals(trial, matches, now)
    cancel_unfinished(trial, now)
    await store.flush(db, tx, owned, trial.writing(), is_open=0, is_raw=0, owner=None)
    await _consume(db, tx, trial, matches)
    refused = {request.id: "refused: the operation was stopped" for request in await _requests(tx, owned.id)}
    await _answer(tx, refused)
    await finish_if_over(db, tx, head, actor=actor)
    return True


async def _requests(tx: Connection, chunk: int) -> list[Request]:
    return [Request(*row) for row in (await tx.send(_OPEN_REQUESTS, {"the_chunk": chunk})).rows]


_OPEN_REQUESTS = (
    select(*(requests.c[name] for name in Request.__dataclass_fields__))
    .where(requests.c.chunk == bindparam("the_chunk"), requests.c.outcome.is_(None))
    .order_by(requests.c.id)
)


async def _answer(tx: Connection, outcomes: Mapping[int, str]) -> None:
    for request, outcome in outcomes.items():
        values: dict[str, Any] = {"outcome": outcome}
        if outcome.startswith("refused"):
            values["generation"] = -requests.c.id  # nothing came of it: the row may be asked for again
        await tx.execute(update(requests).where(requests.c.id == request).values(values))


async def _matches(db: Database, tx: Connection, owned: OwnedChunk) -> dict[Match, SignalContent]:
    """All free signals that end waits of this chunk: all, because a row that gets none may time out now."""
    waiting = waiters_of(owned)
    keys = await ready_for_chunk(db, tx, owned.operation, owned.id) if waiting else {}
    if not keys:
        return {}
    mine = [waiter for waiter in waiting if waiter.key in keys]
    each = max(Counter(waiter.key for waiter in mine).values())
    while True:
        found = await free_signals(db, tx, owned.operation, keys, each=each)
        others = await waiters(db, tx, owned.operation, keys, each=2 * len(found) + 100, other_than=owned.id)
        matches = [one for one in match(found, mine + others) if one.chunk == owned.id]  # the rest is for other owners
        served, seen = {one.row for one in matches}, Counter(signal.key for signal in found)
        if all(waiter.row in served or seen[waiter.key] < each for waiter in mine):
            break
        each *= LOOK_GROWTH  # the signals that we read of a key were not for our row, and there are more
    contents = await contents_of(db, tx, (one.signal.id for one in matches)) if matches else {}
    return {one: contents[one.signal.id] for one in matches}


def waiters_of(owned: OwnedChunk) -> list[Waiter]:
    """The rows of a chunk that wait for a signal."""
    ledger = owned.ledger
    return [
        Waiter(row, step, owned.id, record.signal_key, record.since or 0)
        for (row, step), record in owned.records.items()
        if record.signal_key is not None
        and ledger.at[row - owned.first_row] == step + 1
        and ledger.tracks[step + 1].state[row - owned.first_row] == WAITING
    ]


async def _consume(db: Database, tx: Connection, owned: OwnedChunk, matches: Collection[Match]) -> None:
    """Take the signals for their rows; `Overtaken` unless all of them were still free."""
    if not matches:
        return
    ids = sorted(found.signal.id for found in matches)
    done = await tx.send_listed(db.prepared(_take), {"ids": ids})
    if done.matched != len(ids):
        raise Overtaken
    takers: list[Mapping[str, Any]] = [
        {
            "the_signal": found.signal.id,
            "consumed_row": found.row,
            "consumed_step": found.step,
            "consumed_generation": owned.ledger.generation[found.row - owned.first_row],
        }
        for found in matches
    ]
    await tx.send(_TAKEN_BY, takers)


def _take(db: Database) -> Update:
    is_free = (db.dialect.among(signals.c.id, "ids"), signals.c.consumed_at.is_(None))
    return update(signals).where(*is_free).values(consumed_at=db.now())


# The columns that are sent along (row, step, generation) are set.
_TAKEN_BY = update(signals).where(signals.c.id == bindparam("the_signal"))


async def wake(
    db: Database, operation: int, keys: Collection[str], tx: Connection, *, is_asked_again: bool = False
) -> int:
    """Wake the chunks of the lowest rows that wait on these keys and have a signal; returns how many there are.

    In a transaction of its own, after the commit that gave a reason for it: store, commit, then look. An owner whose
    lease is over may come back, so it gets a message too; unless the caller asks again and again.
    """
    lowest = _lowest_for_sweep if is_asked_again else _lowest
    found = await found_on_keys(db, tx, lowest, {"of": operation, "keys": list(keys)})
    is_claimable = {chunk: bool(is_due) for chunk, is_due in found}
    # Whoever claims a chunk in which a row waits reads its messages first. A chunk that was due and free when we read
    # this is claimed later, so its owner sees what was committed before: it needs no message.
    woken = sorted(chunk for chunk, is_due in is_claimable.items() if not is_due)
    if woken:
        await tx.send(db.prepared(_wake), [{"the_chunk": chunk} for chunk in woken])
        await db.ring(tx)
    return len(is_claimable)


def _lowest(db: Database, are_few: bool) -> Select[*tuple[Any, ...]]:
    return _lowest_chunks(db, are_few, chunks.c.owner.is_(None))


def _lowest_for_sweep(db: Database, are_few: bool) -> Select[*tuple[Any, ...]]:
    # Otherwise, while nobody can claim it, the chunk of a dead owner would get a message from every sweep.
    return _lowest_chunks(db, are_few, store.is_free(db, chunks.c.owner))


def _lowest_chunks(db: Database, are_few: bool, is_free: ColumnElement[bool]) -> Select[*tuple[Any, ...]]:
    """The chunks of the lowest rows that wait on each of some keys and have a signal; and whether each can be claimed.

    Key by key through the key's index: thousands of rows may wait on one.
    """
    ready = ready_keys(db, are_few).subquery("ready")
    lowest = (
        select(row_records.c.chunk)
        .where(
            row_records.c.operation == bindparam("of"),
            row_records.c.signal_key == ready.c.key,
            row_records.c.state == "WaitingForCompletion",
            matching.has_signal(),
        )
        .order_by(row_records.c.row)
        .limit(1)
        .correlate(ready)
        .scalar_subquery()
    )
    # Distinct, so that a planner does not make one join of it all.
    awaited = select(lowest.label("chunk")).select_from(ready).distinct().subquery("awaited")
    is_due = is_free & (chunks.c.due_at <= db.now())
    return select(chunks.c.id, is_due.label("is_due")).join(awaited, awaited.c.chunk == chunks.c.id)


def _wake(db: Database) -> Update:
    due_at = db.dialect.least(chunks.c.due_at, db.now())
    return (
        update(chunks)
        .where(chunks.c.id == bindparam("the_chunk"))
        .values(message_count=chunks.c.message_count + 1, due_at=due_at)
    )


async def sweep(db: Database) -> int:
    """Wake every chunk in which a row waits though its signal is stored; returns how many there are.

    Chunks of operations that are not at work are left: whoever claims them later looks for signals first.
    """
    woken = 0
    for operation in await db.look(_with_waits_and_signals):
        after: str | None = ""
        while after is not None:
            keys, after = await db.look(partial(ready_after, db, operation, after))
            if keys:
                woken += await db.transaction(partial(wake, db, operation, keys, is_asked_again=True), "sweep")
    return woken


async def _with_waits_and_signals(tx: Connection) -> list[int]:
    """The operations at work in which rows wait and that have free signals."""
    has_waits = exists().where(chunks.c.operation == operations.c.number, chunks.c.is_open == 1, chunks.c.waiting > 0)
    has_signals = exists().where(signals.c.operation == operations.c.number, signals.c.consumed_row.is_(None))
    query = select(operations.c.number).where(operations.c.state.in_(AT_WORK), has_waits, has_signals)
    return list((await tx.execute(query.order_by(operations.c.number))).scalars())
