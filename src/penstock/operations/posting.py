"""The slot through which signals come in: calls that come at once are stored and answered together.

A commit costs the same for one signal as for a hundred, so whoever finds the slot free takes along all that lie in it.
None of them pays for another: what no database can hold is refused before it lies there, and what ours refuses all
the same is tried by itself.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

from sqlalchemy import Insert, bindparam, insert, select
from sqlalchemy.exc import IntegrityError, StatementError

from penstock.db.connection import Connection
from penstock.db.database import CommitUnknown, Database
from penstock.db.types import NotStorable, storable
from penstock.errors import Conflict, InvalidInput, NoSuchWait, PenstockError
from penstock.operations.addressing import DEAF, ROW_MAX, Subject, refuse_unheard, subject_of, unscope
from penstock.operations.rules.settling import Match, match
from penstock.operations.running.looking import free_signals, ready_for_any, waiters
from penstock.operations.running.mailroom import wake
from penstock.operations.tables import operations, signals

__all__ = ["Posting", "Receipt", "Slot", "about_to_be_taken"]

OPERATION_ID_MAX = 36
ID_MAX = ACTOR_MAX = 200
POSTINGS_MAX = 200  # stored in one transaction
RECEIPTS_MAX = 1000  # signals of one key that are looked at to say who will take one


@dataclass(frozen=True, slots=True)
class Receipt:
    """What became of a signal: delivered to a row that waits, stored for one that will, or known already."""

    outcome: Literal["delivered", "stored", "duplicate"]
    id: str
    row: int | None = None
    step: str | None = None


@dataclass(slots=True, eq=False)
class Posting:
    """One signal on its way in. The token is made before it is stored, so a repeat meets itself."""

    operation: str
    given_key: str
    given_row: int | None
    dedupe_id: str | None
    token: str
    word: dict[str, Any]  # the columns that say what has happened, and who says so
    key: str = ""  # as it is stored: without operation and row, once the operation is known
    row: int | None = None
    answer: Receipt | Exception | None = None
    is_begun: bool = False  # somebody has tried to store it, and may have
    is_withdrawn: bool = False  # its caller has gone

    def columns(self, subject: Subject) -> dict[str, Any]:
        """The signal as it is stored."""
        own = {"token": self.token, "key": self.key, "row": self.row, "dedupe_id": self.dedupe_id}
        return {**self.word, **own, "operation": subject.number}


@dataclass(slots=True)
class Slot:
    """Takes signals in, one batch at a time."""

    db: Database
    hint: Callable[[], None]
    _lying: list[Posting] = field(default_factory=list)
    _turn: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def post(self, posting: Posting) -> Receipt:
        """Store a signal and wake who takes it; durable when this returns. `InvalidInput` when none could hold it.

        A call that is cancelled before anybody has begun to store its signal takes it back.
        """
        refuse_unstorable(posting)
        self._lying.append(posting)
        try:
            async with self._turn:
                if posting.answer is None:  # nobody took it along
                    await self._take_in(self._batch_of(posting))
        finally:
            if posting.answer is None:
                posting.is_withdrawn = True
                self._lying = [other for other in self._lying if other is not posting]
        if isinstance(posting.answer, Exception):
            raise posting.answer
        assert posting.answer is not None
        return posting.answer

    def _batch_of(self, own: Posting) -> list[Posting]:
        """Our own signal, and those that have been lying longest."""
        others = [posting for posting in self._lying if posting is not own]
        self._lying = others[POSTINGS_MAX - 1 :]
        return [own, *others[: POSTINGS_MAX - 1]]

    async def _take_in(self, batch: Sequence[Posting]) -> None:
        try:
            for operation in dict.fromkeys(posting.operation for posting in batch):
                await self._take_in_for(operation, [posting for posting in batch if posting.operation == operation])
        finally:
            # When we are cancelled or the database goes away, the others are taken in by who comes next.
            self._lying[:0] = [posting for posting in batch if posting.answer is None and not posting.is_withdrawn]

    async def _take_in_for(self, operation: str, batch: Sequence[Posting]) -> None:
        """Store and answer the signals for one operation."""
        try:
            subject, known = await self.db.look(partial(_subject_and_known, operation, batch))
        except NoSuchWait as error:
            reason = str(error)
            _answer(batch, lambda _: NoSuchWait(reason))
            return
        new, stored = list[Posting](), list[Posting]()
        for posting in batch:
            posting.key, posting.row = unscope(subject, posting.given_key, posting.given_row)
            earlier = known.get(posting.dedupe_id)
            if earlier is not None and earlier.token == posting.token:
                stored.append(posting)  # by somebody who could not finish
            elif earlier is not None:
                posting.answer = _repeated(subject, posting, earlier)
            elif not posting.is_begun:
                posting.answer = _unheard(subject, posting)
            if earlier is None and posting.answer is None and not posting.is_withdrawn:
                new.append(posting)
        if new:
            stored += await self._stored(subject, new)
        if stored:
            await self._deliver(subject, stored)

    async def _stored(self, subject: Subject, batch: Sequence[Posting]) -> Sequence[Posting]:
        """Store signals, and return those that are stored now; the others have their answers."""
        try:
            if await self._store(subject, batch):
                return batch
        except (StatementError, InvalidInput) as error:
            if len(batch) == 1:
                return await self._stored_before(subject, batch[0], error)
            return [posting for each in batch for posting in await self._stored(subject, [each])]
        before = {earlier.token for earlier in await self.db.look(partial(_of_tokens, batch))}
        over = f"operation {subject.id} is over; it hears no more signals"
        _answer((posting for posting in batch if posting.token not in before), lambda _: NoSuchWait(over, is_over=True))
        return [posting for posting in batch if posting.token in before]

    async def _stored_before(self, subject: Subject, posting: Posting, refusal: Exception) -> Sequence[Posting]:
        """The signal that the database refused, if that is because it is stored already; else it has its answer."""
        found = await self.db.look(partial(_known, subject, posting)) if isinstance(refusal, IntegrityError) else []
        if any(earlier.token == posting.token for earlier in found):
            return [posting]  # only the answer to its commit was lost
        posting.answer = _repeated(subject, posting, found[0]) if found else refusal
        return ()

    async def _store(self, subject: Subject, batch: Sequence[Posting]) -> bool:
        """Insert the signals while the operation can still hear them; this commit is what accepting means."""

        async def store(tx: Connection) -> bool:
            if (await tx.execute(_HEARING, {"number": subject.number})).first() is None:
                return False
            await tx.execute(self.db.prepared(_new_signals), [posting.columns(subject) for posting in batch])
            return True

        for posting in batch:
            posting.is_begun = True
        while True:
            try:
                return await self.db.transaction(store, "signal")
            except CommitUnknown:
                continue  # if it did happen, the repeat meets its own token

    async def _deliver(self, subject: Subject, batch: Sequence[Posting]) -> None:
        """Wake whoever takes the signals, and say who that is; with others before one, that may be a later row."""
        keys = {posting.key for posting in batch}
        if not await self.db.transaction(partial(wake, self.db, subject.number, keys), "wake"):
            _answer(batch, lambda posting: Receipt("stored", posting.token))
            return
        self.hint()
        taken = await self.db.look(partial(_takers, self.db, subject, batch))
        _answer(batch, lambda posting: taken.get(posting.token) or Receipt("stored", posting.token))


def _answer(batch: Iterable[Posting], answer: Callable[[Posting], Receipt | Exception]) -> None:
    for posting in batch:
        posting.answer = answer(posting)


# Locked, so that it does not stop hearing before the signals are there.
_HEARING = (
    select(operations.c.number)
    .where(operations.c.number == bindparam("number"), operations.c.state.not_in(DEAF))
    .with_for_update(read=True)
)
_STORED = select(
    *(
        signals.c[name]
        for name in ("id", "token", "dedupe_id", "key", "row", "outcome", "consumed_row", "consumed_step")
    )
)
_BY_TOKEN = _STORED.where(signals.c.token.in_(bindparam("tokens", expanding=True)))
_BY_ID = _STORED.where(
    signals.c.operation == bindparam("of"), signals.c.dedupe_id.in_(bindparam("ids", expanding=True))
)


def _new_signals(db: Database) -> Insert:
    return insert(signals).values(accepted_at=db.now())


async def _subject_and_known(
    operation: str, batch: Sequence[Posting], tx: Connection
) -> tuple[Subject, dict[str | None, Any]]:
    """The operation, and the signals that were stored before, by the id that they share with one of these."""
    subject = await subject_of(tx, operation)
    ids = [posting.dedupe_id for posting in batch if posting.dedupe_id is not None]
    found = (await tx.execute(_BY_ID, {"of": subject.number, "ids": ids})).all() if ids else []
    return subject, {earlier.dedupe_id: earlier for earlier in found}


async def _of_tokens(batch: Sequence[Posting], tx: Connection) -> Sequence[Any]:
    """Those of these signals that are stored."""
    return (await tx.execute(_BY_TOKEN, {"tokens": [posting.token for posting in batch]})).all()


async def _known(subject: Subject, posting: Posting, tx: Connection) -> Sequence[Any]:
    """The signals that stand in the way of this one: itself, or one of the same id."""
    itself = await _of_tokens([posting], tx)
    same = await tx.execute(_BY_ID, {"of": subject.number, "ids": [posting.dedupe_id]})
    return [*itself, *same]


def _unheard(subject: Subject, posting: Posting) -> PenstockError | None:
    """Why no row could ever take the signal, if so."""
    try:
        refuse_unheard(subject, posting.key)
    except PenstockError as error:
        return error
    return None


def _repeated(subject: Subject, posting: Posting, earlier: Any) -> Receipt | Conflict:
    """The answer to a signal whose id is known: what became of the first, unless it said something else."""
    if (earlier.key, earlier.row, earlier.outcome) != (posting.key, posting.row, posting.word["outcome"]):
        return Conflict(
            f"signal id {posting.dedupe_id!r} was used for {_described(earlier.key, earlier.row, earlier.outcome)}; "
            f"it cannot be used for {_described(posting.key, posting.row, posting.word['outcome'])}"
        )
    step = None if earlier.consumed_step is None else subject.step_name(earlier.consumed_step)
    return Receipt("duplicate", earlier.token, earlier.consumed_row, step)


def _described(key: str, row: int | None, outcome: str) -> str:
    return f"key {key!r}{'' if row is None else f', row {row}'}, {'completed' if outcome == 'ok' else 'failed'}"


async def _takers(db: Database, subject: Subject, batch: Sequence[Posting], tx: Connection) -> dict[str, Receipt]:
    """By token: the rows that have taken these signals, or will."""
    mine = await _of_tokens(batch, tx)
    taken = {
        signal.token: Receipt("delivered", signal.token, signal.consumed_row, subject.step_name(signal.consumed_step))
        for signal in mine
        if signal.consumed_row is not None
    }
    if len(taken) < len(mine):
        token_of = {signal.id: signal.token for signal in mine}
        for found in await about_to_be_taken(db, tx, subject.number, {posting.key for posting in batch}):
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


def refuse_unstorable(posting: Posting) -> None:
    """Raise if no database could hold the signal; then others that are stored with it would not be either."""
    try:
        _refuse_text("an operation's id", posting.operation, most=OPERATION_ID_MAX)
    except InvalidInput:
        raise NoSuchWait(f"operation not found: {posting.operation!r:.60}") from None
    _refuse_text("a signal key", posting.given_key)
    _refuse_text("the actor of a signal", posting.word["actor"], most=ACTOR_MAX)
    if posting.dedupe_id is not None:
        _refuse_text("the id of a signal", posting.dedupe_id, most=ID_MAX)
    if posting.given_row is not None:
        _refuse_row(posting.given_row)


def _refuse_text(what: str, text: Any, *, most: int | None = None) -> None:
    if not isinstance(text, str):
        raise InvalidInput(f"{what} is text; found {text!r:.60}")
    if most is not None and not 1 <= len(text) <= most:
        raise InvalidInput(f"{what} has 1 to {most} characters; found {len(text)}")
    try:
        storable(text)
    except NotStorable as error:
        raise InvalidInput(f"{what} cannot be stored: {error}") from None


def _refuse_row(row: Any) -> None:
    if not isinstance(row, int) or isinstance(row, bool) or not 1 <= row <= ROW_MAX:
        raise InvalidInput(f"the row of a signal is a number from 1 to {ROW_MAX}; found {row!r:.60}")
