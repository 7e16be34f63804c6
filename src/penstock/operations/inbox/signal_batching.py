"""Storing signals in batches: calls that come at once are stored and answered together.

A commit costs the same for one signal as for a hundred, so the call that gets the lock stores all signals in the queue.
None fails because of another: what no database can hold is refused before it is queued, and when ours refuses a batch
all the same, each signal is tried by itself.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, NamedTuple

from sqlalchemy import Insert, Select, Update, bindparam, insert, select, update
from sqlalchemy.exc import IntegrityError, StatementError

from penstock.access.audit import Act, record
from penstock.db.connection import Connection
from penstock.db.database import CommitUnknown, Database
from penstock.db.types import NotStorable, storable
from penstock.db.unit import UnitOfWork
from penstock.errors import Conflict, InvalidInput, NoSuchWait, PenstockError, Unavailable
from penstock.operations.inbox.addressing import (
    ROW_MAX,
    TAKES_NO_SIGNALS,
    Subject,
    refuse_unknown_key,
    subject_of,
    unscope,
)
from penstock.operations.inbox.lookup import free_signals, ready_for_any, waiters
from penstock.operations.inbox.matching import Match, match
from penstock.operations.inbox.payloads import refuse_unfit
from penstock.operations.inbox.settling import wake
from penstock.operations.tables import operations, signals
from penstock.operations.visibility import Visible
from penstock.pipeline import Definition

__all__ = ["PendingSignal", "Receipt", "SignalBatcher", "about_to_be_taken"]

log = logging.getLogger("penstock")

OPERATION_ID_MAX = 36
ID_MAX = ACTOR_MAX = 200
BATCH_MAX = 200  # stored in one transaction
RECEIPTS_MAX = 1000  # signals of one key that are read to answer which row takes one


@dataclass(frozen=True, slots=True)
class Receipt:
    """What became of a signal: delivered to a row that waits, stored for one that will, or known already."""

    outcome: Literal["delivered", "stored", "duplicate"]
    id: str
    row: int | None = None
    step: str | None = None


class StoredSignal(NamedTuple):
    """What is known of a signal that is stored."""

    id: int
    token: str
    dedupe_id: str | None
    key: str
    row: int | None
    outcome: str
    consumed_row: int | None
    consumed_step: int | None


@dataclass(slots=True, eq=False)
class PendingSignal:
    """A signal to be stored. Its token is made before that, so that a repeated store finds it."""

    operation: str
    given_key: str
    given_row: int | None
    dedupe_id: str | None
    token: str
    visible: Visible
    content: dict[str, Any]  # the columns `outcome`, `payload`, `message` and `actor`
    key: str = ""  # as it is stored: without operation and row, once the operation is known
    row: int | None = None
    answer: Receipt | Exception | None = None
    is_begun: bool = False  # a call has tried to store it, and may have succeeded
    is_withdrawn: bool = False  # its call was cancelled

    def columns(self, subject: Subject) -> dict[str, Any]:
        """The signal as it is stored."""
        own = {"token": self.token, "key": self.key, "row": self.row, "dedupe_id": self.dedupe_id}
        return {**self.content, **own, "operation": subject.number}


@dataclass(slots=True)
class SignalBatcher:
    """Stores signals, one batch at a time."""

    db: Database
    hint: Callable[[], None]
    definitions: Mapping[str, Definition]  # of the operations whose code is here, to judge payloads
    _queue: list[PendingSignal] = field(default_factory=list)
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def post(self, pending: PendingSignal) -> Receipt:
        """Store a signal and wake the chunk that takes it; durable when this returns.

        `InvalidInput` when no database could hold it. A call that is cancelled before its signal is being stored
        withdraws it.
        """
        refuse_unstorable(pending)
        self._queue.append(pending)
        try:
            async with self._lock:
                if pending.answer is None:  # no other call has stored it
                    await self._accept(self._batch_of(pending))
        except Exception:
            if pending.answer is None:  # otherwise it is another's signal that could not be stored
                raise
        finally:
            if pending.answer is None:
                pending.is_withdrawn = True
                self._queue = [other for other in self._queue if other is not pending]
        if isinstance(pending.answer, Exception):
            raise pending.answer
        assert pending.answer is not None
        return pending.answer

    async def join(self, pending: PendingSignal, unit: UnitOfWork) -> Receipt:
        """Store a signal in a transaction of the caller's, and wake the chunk that takes it when that is committed."""
        refuse_unstorable(pending)
        tx = unit.connection
        subject, known = await _subject_and_known(self.db, pending.operation, pending.visible, [pending], tx)
        pending.key, pending.row = unscope(subject, pending.given_key, pending.given_row)
        earlier = None if pending.dedupe_id is None else known.get(pending.dedupe_id)
        answer = self._refusal(subject, pending) if earlier is None else _repeated(subject, pending, earlier)
        if isinstance(answer, Exception):
            raise answer
        if answer is not None:
            return answer
        unit.before_commit(partial(self._confirm, subject, pending.token))
        try:
            await tx.send(self.db.prepared(_new_signals), [pending.columns(subject)])
        except IntegrityError as error:
            raise Conflict(
                f"signal id {pending.dedupe_id!r} was used by another at the same time; begin the transaction again"
            ) from error
        await record(self.db, tx, *_acts(subject, [pending]))
        unit.after_commit(partial(self._wake, subject, {pending.key}))
        return Receipt("stored", pending.token)

    async def _confirm(self, subject: Subject, token: str, tx: Connection) -> None:
        """See, right before the commit, that the operation takes the signal; that is when it counts as accepted."""
        if not (await tx.send(_TAKES_SIGNALS, {"number": subject.number})).rows:
            raise NoSuchWait(_is_over(subject), is_over=True)
        await tx.send(self.db.prepared(_accepted_now), {"the_token": token})

    async def _wake(self, subject: Subject, keys: Collection[str]) -> bool:
        """Wake the chunks that take signals on these keys; whether there are any."""
        is_awaited = await self.db.transaction(partial(wake, self.db, subject.number, keys), "wake") > 0
        if is_awaited:
            self.hint()
        return is_awaited

    def _batch_of(self, own: PendingSignal) -> list[PendingSignal]:
        """Our own signal, and those that have been in the queue longest."""
        others = [pending for pending in self._queue if pending is not own]
        self._queue = others[BATCH_MAX - 1 :]
        return [own, *others[: BATCH_MAX - 1]]

    async def _accept(self, batch: Sequence[PendingSignal]) -> None:
        try:
            for target in dict.fromkeys((pending.operation, pending.visible) for pending in batch):
                mine = [pending for pending in batch if (pending.operation, pending.visible) == target]
                await self._accept_for(*target, mine)
        finally:
            # When we are cancelled or the database goes away, the next call stores the others.
            self._queue[:0] = [pending for pending in batch if pending.answer is None and not pending.is_withdrawn]

    async def _accept_for(self, operation: str, visible: Visible, batch: Sequence[PendingSignal]) -> None:
        """Store and answer the signals for one operation, from callers who may know of the same operations."""
        try:
            subject, known = await self.db.glance(partial(_subject_and_known, self.db, operation, visible, batch))
        except NoSuchWait as error:
            reason = str(error)
            _answer(batch, lambda _: NoSuchWait(reason))
            return
        new, stored = list[PendingSignal](), list[PendingSignal]()
        for pending in batch:
            pending.key, pending.row = unscope(subject, pending.given_key, pending.given_row)
            earlier = known.get(pending.dedupe_id)
            if earlier is not None and earlier.token == pending.token:
                stored.append(pending)  # by a call that could not finish
            elif earlier is not None:
                pending.answer = _repeated(subject, pending, earlier)
            elif not pending.is_begun:
                pending.answer = self._refusal(subject, pending)
            if earlier is None and pending.answer is None and not pending.is_withdrawn:
                new.append(pending)
        if new:
            stored += await self._stored(subject, new)
        if not stored:
            return
        try:
            await self._deliver(subject, stored)
        except Unavailable as error:  # they are accepted all the same
            log.warning("waking who waits for a signal is left to the next sweep: %s", error)
            _answer(stored, lambda pending: Receipt("stored", pending.token))

    def _refusal(self, subject: Subject, pending: PendingSignal) -> PenstockError | None:
        """Why no row could ever take the signal, if so."""
        try:
            refuse_unknown_key(subject, pending.key)
            definition = self.definitions.get(subject.name.casefold())
            refuse_unfit(subject, definition, pending.key, pending.content["payload"])
        except PenstockError as error:
            return error
        return None

    async def _stored(self, subject: Subject, batch: Sequence[PendingSignal]) -> Sequence[PendingSignal]:
        """Store signals, and return those that are stored now; the others have their answers."""
        try:
            if await self._store(subject, batch):
                return batch
        except (StatementError, InvalidInput) as error:
            if len(batch) == 1:
                return await self._stored_before(subject, batch[0], error)
            wanted = (each for each in batch if not each.is_withdrawn)
            return [pending for each in wanted for pending in await self._stored(subject, [each])]
        before = {earlier.token for earlier in await self.db.glance(partial(_of_tokens, self.db, batch))}
        over = _is_over(subject)
        _answer((pending for pending in batch if pending.token not in before), lambda _: NoSuchWait(over, is_over=True))
        return [pending for pending in batch if pending.token in before]

    async def _stored_before(
        self, subject: Subject, pending: PendingSignal, refusal: Exception
    ) -> Sequence[PendingSignal]:
        """The signal that the database refused, if it is stored already; otherwise it has its answer."""
        is_known = isinstance(refusal, IntegrityError)
        found = await self.db.look(partial(_known, self.db, subject, pending)) if is_known else []
        if any(earlier.token == pending.token for earlier in found):
            return [pending]  # only the answer to its commit was lost
        pending.answer = _repeated(subject, pending, found[0]) if found else refusal
        return ()

    async def _store(self, subject: Subject, batch: Sequence[PendingSignal]) -> bool:
        """Insert the signals if the operation still takes any; False when not. With this commit they are accepted."""

        async def store(tx: Connection) -> bool:
            if not (await tx.send(_TAKES_SIGNALS, {"number": subject.number})).rows:
                return False
            await tx.send(self.db.prepared(_new_signals), [pending.columns(subject) for pending in batch])
            await record(self.db, tx, *_acts(subject, batch))
            return True

        for pending in batch:
            pending.is_begun = True
        while True:
            try:
                return await self.db.transaction(store, "signal")
            except CommitUnknown:
                continue  # if it did happen, the repeat is refused because of its own token

    async def _deliver(self, subject: Subject, batch: Sequence[PendingSignal]) -> None:
        """Wake the chunks that take the signals, and answer which rows will; behind other signals it is a later row."""
        is_awaited = await self._wake(subject, {pending.key for pending in batch})
        taken = await self.db.look(partial(_takers, self.db, subject, batch, is_awaited))
        _answer(batch, lambda pending: taken.get(pending.token) or Receipt("stored", pending.token))


def _is_over(subject: Subject) -> str:
    return f"operation {subject.id} is over; it takes no more signals"


def _acts(subject: Subject, batch: Iterable[PendingSignal]) -> list[Act]:
    """The signals as the audit log tells of them: those of one sender together. Keys and payloads are personal."""
    by_actor: dict[str, list[Any]] = {}
    for pending in batch:
        told = {"id": pending.token, "row": pending.row, "outcome": pending.content["outcome"]}
        by_actor.setdefault(pending.content["actor"], []).append(told)
    return [
        Act(subject.tenant or "", actor, "operation.signal", subject.id, {"signals": told})
        for actor, told in by_actor.items()
    ]


def _answer(batch: Iterable[PendingSignal], answer: Callable[[PendingSignal], Receipt | Exception]) -> None:
    for pending in batch:
        pending.answer = answer(pending)


# Locked, so that the operation does not end before the signals are stored.
_TAKES_SIGNALS = (
    select(operations.c.number)
    .where(operations.c.number == bindparam("number"), *(operations.c.state != state for state in TAKES_NO_SIGNALS))
    .with_for_update(read=True)
)
_STORED = select(*(signals.c[name] for name in StoredSignal._fields))


def _by_token(db: Database) -> Select[Any]:
    return _STORED.where(db.dialect.among(signals.c.token, "tokens"))


def _by_dedupe_id(db: Database) -> Select[Any]:
    return _STORED.where(db.dialect.among_of(signals.c.operation, "of", signals.c.dedupe_id, "ids"))


def _new_signals(db: Database) -> Insert:
    return insert(signals).values(accepted_at=db.now())


def _accepted_now(db: Database) -> Update:
    return update(signals).where(signals.c.token == bindparam("the_token")).values(accepted_at=db.now())


async def _subject_and_known(
    db: Database, operation: str, visible: Visible, batch: Sequence[PendingSignal], tx: Connection
) -> tuple[Subject, dict[str | None, StoredSignal]]:
    """The operation, and the signals that are stored with the id of one of these, by that id."""
    subject = await subject_of(tx, operation, visible)
    ids = [pending.dedupe_id for pending in batch if pending.dedupe_id is not None]
    return subject, {earlier.dedupe_id: earlier for earlier in await _of_ids(db, subject, ids, tx)}


async def _of_ids(db: Database, subject: Subject, ids: Sequence[str], tx: Connection) -> Sequence[StoredSignal]:
    """The signals of an operation that are stored with one of these ids."""
    if not ids:
        return ()
    found = await tx.send_listed(db.prepared(_by_dedupe_id), {"of": subject.number, "ids": ids})
    return [StoredSignal(*row) for row in found.rows]


async def _of_tokens(db: Database, batch: Sequence[PendingSignal], tx: Connection) -> Sequence[StoredSignal]:
    """Those of these signals that are stored."""
    found = await tx.send_listed(db.prepared(_by_token), {"tokens": [pending.token for pending in batch]})
    return [StoredSignal(*row) for row in found.rows]


async def _known(db: Database, subject: Subject, pending: PendingSignal, tx: Connection) -> Sequence[StoredSignal]:
    """The stored signals because of which this one was refused: itself, or one of the same id."""
    ids = [] if pending.dedupe_id is None else [pending.dedupe_id]
    return [*await _of_tokens(db, [pending], tx), *await _of_ids(db, subject, ids, tx)]


def _repeated(subject: Subject, pending: PendingSignal, earlier: StoredSignal) -> Receipt | Conflict:
    """The answer to a signal whose id was used before: what became of the first, or `Conflict` when they differ."""
    if (earlier.key, earlier.row, earlier.outcome) != (pending.key, pending.row, pending.content["outcome"]):
        return Conflict(
            f"signal id {pending.dedupe_id!r} was used for {_described(earlier.key, earlier.row, earlier.outcome)}; "
            f"it cannot be used for {_described(pending.key, pending.row, pending.content['outcome'])}"
        )
    step = None if earlier.consumed_step is None else subject.step_name(earlier.consumed_step)
    return Receipt("duplicate", earlier.token, earlier.consumed_row, step)


def _described(key: str, row: int | None, outcome: str) -> str:
    return f"key {key!r}{'' if row is None else f', row {row}'}, {'completed' if outcome == 'ok' else 'failed'}"


async def _takers(
    db: Database, subject: Subject, batch: Sequence[PendingSignal], is_awaited: bool, tx: Connection
) -> dict[str, Receipt]:
    """By token: the rows that have taken these signals or, where any is awaited, will.

    An owner that looks for another reason may have taken them before anybody was woken for them.
    """
    mine = await _of_tokens(db, batch, tx)
    taken = {
        signal.token: Receipt("delivered", signal.token, signal.consumed_row, subject.step_name(signal.consumed_step))
        for signal in mine
        if signal.consumed_step is not None
    }
    if is_awaited and len(taken) < len(mine):
        token_of = {signal.id: signal.token for signal in mine}
        for found in await about_to_be_taken(db, tx, subject.number, {pending.key for pending in batch}):
            token = token_of.get(found.signal.id)
            if token is not None:
                taken[token] = Receipt("delivered", token, found.row, subject.step_name(found.step))
    return taken


async def about_to_be_taken(db: Database, tx: Connection, operation: int, keys: Collection[str]) -> list[Match]:
    """The free signals on these keys that rows which wait now will take, with those rows."""
    ready_keys = await ready_for_any(db, tx, operation, keys)
    ready = await free_signals(db, tx, operation, ready_keys, each=RECEIPTS_MAX) if ready_keys else []
    named = {signal.row for signal in ready if signal.row is not None}
    waits = await waiters(db, tx, operation, ready_keys, each=2 * len(ready) + 100, named=named)
    return match(ready, waits)


# --- what no database could hold


def refuse_unstorable(pending: PendingSignal) -> None:
    """Raise if no database could hold the signal: it would keep the others of its batch from being stored."""
    try:
        _refuse_text("an operation's id", pending.operation, most=OPERATION_ID_MAX)
    except InvalidInput:
        raise NoSuchWait(f"operation not found: {pending.operation!r:.60}") from None
    _refuse_text("a signal key", pending.given_key)
    _refuse_text("the actor of a signal", pending.content["actor"], most=ACTOR_MAX)
    if pending.dedupe_id is not None:
        _refuse_text("the id of a signal", pending.dedupe_id, most=ID_MAX)
    row: Any = pending.given_row
    if row is not None and (not isinstance(row, int) or isinstance(row, bool) or not 1 <= row <= ROW_MAX):
        raise InvalidInput(f"the row of a signal is a number from 1 to {ROW_MAX}; found {row!r:.60}")


def _refuse_text(what: str, text: Any, *, most: int | None = None) -> None:
    if not isinstance(text, str):
        raise InvalidInput(f"{what} is text; found {text!r:.60}")
    if most is not None and not 1 <= len(text) <= most:
        raise InvalidInput(f"{what} has 1 to {most} characters; found {len(text)}")
    try:
        storable(text)
    except NotStorable as error:
        raise InvalidInput(f"{what} cannot be stored: {error}") from None
