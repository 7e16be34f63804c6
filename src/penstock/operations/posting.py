"""The slot through which signals come in: calls that come at once are stored and answered together.

A commit costs the same for one signal as for a hundred, so whoever finds the slot free takes along all that lie in it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

from sqlalchemy import Insert, Select, bindparam, insert, select
from sqlalchemy.exc import IntegrityError

from penstock.db.connection import Connection
from penstock.db.database import CommitUnknown, Database
from penstock.errors import InvalidInput, NoSuchWait, NotFound, PenstockError
from penstock.operations.queries import number_of
from penstock.operations.rules.settling import match
from penstock.operations.running.mailroom import unconsumed, waiters, wake
from penstock.operations.states import OPERATION
from penstock.operations.tables import operations, signals
from penstock.pipeline import KeyTemplate

__all__ = ["Posting", "Receipt", "Slot", "Subject", "subject_of", "unscope"]

KEY_MAX = 500
POSTINGS_MAX = 200  # stored in one transaction


@dataclass(frozen=True, slots=True)
class Receipt:
    """What became of a signal: delivered to a row that waits, stored for one that will, or known already."""

    outcome: Literal["delivered", "stored", "duplicate"]
    id: str
    row: int | None = None
    step: str | None = None


@dataclass(frozen=True, slots=True)
class Subject:
    """The operation that a signal is for."""

    number: int
    id: str
    state: str
    plan: Any

    def step_name(self, step: int) -> str:
        """What the step with this index is called."""
        return str(self.plan["steps"][step]["name"])


@dataclass(slots=True)
class Posting:
    """One signal on its way in. The token is made before it is stored, so a repeat meets itself."""

    operation: str
    key: str
    row: int | None
    dedupe_id: str | None
    token: str
    word: dict[str, Any]
    answer: Receipt | PenstockError | None = None

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
        """Store a signal and wake who takes it; durable when this returns."""
        self._lying.append(posting)
        async with self._turn:
            if posting.answer is None:  # nobody took it along
                batch, self._lying = self._lying[:POSTINGS_MAX], self._lying[POSTINGS_MAX:]
                try:
                    await self._take_in(batch)
                finally:
                    # When we are cancelled or the database goes away, the others are taken in by who comes next.
                    self._lying[:0] = [other for other in batch if other.answer is None and other is not posting]
        if isinstance(posting.answer, PenstockError):
            raise posting.answer
        assert posting.answer is not None
        return posting.answer

    async def _take_in(self, batch: Sequence[Posting]) -> None:
        for operation in dict.fromkeys(posting.operation for posting in batch):
            await self._take_in_for(operation, [posting for posting in batch if posting.operation == operation])

    async def _take_in_for(self, operation: str, batch: Sequence[Posting]) -> None:
        """Store and answer the signals for one operation."""
        try:
            subject, known = await self.db.look(partial(_subject_and_known, operation, batch))
        except NoSuchWait as error:
            reason = str(error)
            _answer(batch, lambda _: NoSuchWait(reason))
            return
        for posting in batch:
            try:
                posting.key, posting.row = unscope(subject, posting.key, posting.row)
                posting.answer = known.get(posting.dedupe_id) if posting.dedupe_id else None
                if posting.answer is None:
                    _refuse_unheard(subject, posting.key)
            except PenstockError as error:
                posting.answer = error
        new = [posting for posting in batch if posting.answer is None]
        if not new:
            return
        try:
            stored = await self._store(subject, new)
        except IntegrityError:
            await self._apart(subject, new)
            return
        if stored:
            await self._deliver(subject, new)
        else:
            over = f"operation {subject.id} is over; it hears no more signals"
            _answer(new, lambda _: NoSuchWait(over, is_over=True))

    async def _apart(self, subject: Subject, batch: Sequence[Posting]) -> None:
        """One of them is stored already, by its id or, when an answer was lost, by its token: each by itself."""
        if len(batch) > 1:
            for posting in batch:
                await self._take_in_for(posting.operation, [posting])
            return
        (posting,) = batch
        is_same = signals.c.token == posting.token
        if posting.dedupe_id is not None:
            is_same |= signals.c.dedupe_id == posting.dedupe_id
        found = await self.db.look(
            lambda tx: _stored(tx, select(signals).where(signals.c.operation == subject.number, is_same))
        )
        assert found, "only a signal of the same id or token can be in the way"
        if found[0].token == posting.token:
            await self._deliver(subject, batch)  # it is ours: only the answer to its commit was lost
        else:
            posting.answer = _earlier(subject, found[0])

    async def _store(self, subject: Subject, batch: Sequence[Posting]) -> bool:
        """Insert the signals while the operation can still hear them; this commit is what accepting means."""

        async def store(tx: Connection) -> bool:
            if (await tx.execute(_HEARING, {"number": subject.number})).first() is None:
                return False
            await tx.execute(self.db.prepared(_new_signals), [posting.columns(subject) for posting in batch])
            return True

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
        taken = await self.db.look(partial(_takers, subject, keys, [posting.token for posting in batch]))
        _answer(batch, lambda posting: taken.get(posting.token) or Receipt("stored", posting.token))


def _answer(batch: Iterable[Posting], answer: Callable[[Posting], Receipt | PenstockError]) -> None:
    for posting in batch:
        posting.answer = answer(posting)


_DEAF = ("Stopping", *sorted(OPERATION.settled))
# Locked, so that it does not stop hearing before the signals are there.
_HEARING = (
    select(operations.c.number)
    .where(operations.c.number == bindparam("number"), operations.c.state.not_in(_DEAF))
    .with_for_update(read=True)
)
_SUBJECT = select(operations.c.number, operations.c.id, operations.c.state, operations.c.plan).where(
    operations.c.number == bindparam("number")
)
_BY_TOKEN = select(signals).where(signals.c.token.in_(bindparam("tokens", expanding=True)))


def _new_signals(db: Database) -> Insert:
    return insert(signals).values(accepted_at=db.now())


async def subject_of(tx: Connection, operation: str) -> Subject:
    """The operation a signal is for; `NoSuchWait` when there is none."""
    try:
        number = await number_of(tx, operation)
    except NotFound as error:
        raise NoSuchWait(str(error)) from None
    return Subject(*(await tx.execute(_SUBJECT, {"number": number})).one())


async def _subject_and_known(
    operation: str, batch: Sequence[Posting], tx: Connection
) -> tuple[Subject, dict[str, Receipt]]:
    """The operation, and the receipts of signals that were stored under the same ids before."""
    subject = await subject_of(tx, operation)
    ids = [posting.dedupe_id for posting in batch if posting.dedupe_id is not None]
    if not ids:
        return subject, {}
    same = select(signals).where(signals.c.operation == subject.number, signals.c.dedupe_id.in_(ids))
    return subject, {found.dedupe_id: _earlier(subject, found) for found in await _stored(tx, same)}


async def _stored(tx: Connection, query: Select[*tuple[Any, ...]]) -> Sequence[Any]:
    return (await tx.execute(query)).all()


def _earlier(subject: Subject, found: Any) -> Receipt:
    """The receipt of a signal that is stored already, with what became of it."""
    step = None if found.consumed_step is None else subject.step_name(found.consumed_step)
    return Receipt("duplicate", found.token, found.consumed_row, step)


async def _takers(subject: Subject, keys: set[str], tokens: Sequence[str], tx: Connection) -> dict[str, Receipt]:
    """By token: the rows that have taken these signals, or will."""
    mine = (await tx.execute(_BY_TOKEN, {"tokens": tokens})).all()
    taken = {
        signal.token: Receipt("delivered", signal.token, signal.consumed_row, subject.step_name(signal.consumed_step))
        for signal in mine
        if signal.consumed_at is not None
    }
    if len(taken) < len(mine):
        ready = await unconsumed(tx, subject.number, signals.c.key.in_(keys))
        waits = await waiters(tx, subject.number, keys, each=2 * len(ready) + 100)
        token_of = {signal.id: signal.token for signal in mine}
        for found in match(ready, waits):
            token = token_of.get(found.signal.id)
            if token is not None:
                taken[token] = Receipt("delivered", token, found.row, subject.step_name(found.step))
    return taken


def unscope(subject: Subject, key: str, row: int | None) -> tuple[str, int | None]:
    """The user's part of a key given as operationId:key:rowNumber, and that row; other keys as they are."""
    prefix, _, number = key.rpartition(":")
    if not prefix.startswith(f"{subject.id}:") or not number.isdecimal():
        return key, row
    own = [KeyTemplate.parse(t) for t in _templates(subject) if t is not None and "{operation_id}" in t]
    if any(template.matches(key) for template in own):
        return key, row
    return prefix.removeprefix(f"{subject.id}:"), int(number)


def _templates(subject: Subject) -> list[str | None]:
    return [step["options"]["key"] for step in subject.plan["steps"] if step["kind"] == "signal"]


def _refuse_unheard(subject: Subject, key: str) -> None:
    if not key or len(key) > KEY_MAX:
        raise InvalidInput(f"a signal key has 1 to {KEY_MAX} characters; found {len(key)}")
    if subject.state in _DEAF:
        raise NoSuchWait(f"operation {subject.id} is {subject.state}; it hears no more signals", is_over=True)
    templates = _templates(subject)
    if not templates:
        raise NoSuchWait(f"operation {subject.id} has no step that waits for a signal")
    if all(template is not None and not KeyTemplate.parse(template).matches(key) for template in templates):
        raise NoSuchWait(f"no row could wait for {key!r}; keys look like: {', '.join(map(repr, templates))}")
