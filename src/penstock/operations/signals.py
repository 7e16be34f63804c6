"""Signals: a durable mailbox. Accepted means stored; early, late and repeated signals are all the same case."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any, Literal

import msgspec
from sqlalchemy import ColumnElement, insert, literal, select
from sqlalchemy.exc import IntegrityError

from penstock.clock import Clock, Entropy, from_micros, operation_id
from penstock.db.connection import Connection
from penstock.db.database import CommitUnknown, Database
from penstock.errors import InvalidInput, NoSuchWait, NotFound
from penstock.operations.queries import number_of
from penstock.operations.rules.decide import cut
from penstock.operations.rules.settling import match
from penstock.operations.running.mailroom import unconsumed, waiters, wake
from penstock.operations.states import OPERATION
from penstock.operations.tables import operations, row_records, signals
from penstock.pipeline import KeyTemplate

__all__ = ["Receipt", "Signals", "Unclaimed", "Wait"]

KEY_MAX = 500
PAYLOAD_BYTES_MAX = 64 * 1024


@dataclass(frozen=True, slots=True)
class Receipt:
    """What became of a signal: delivered to a row that waits, stored for one that will, or known already."""

    outcome: Literal["delivered", "stored", "duplicate"]
    id: str
    row: int | None = None
    step: str | None = None


@dataclass(frozen=True, slots=True)
class Wait:
    """A row that waits for a signal."""

    operation_id: str
    row: int
    row_key: str | None
    step: str
    key: str
    since: datetime
    deadline: datetime

    @property
    def signal_key(self) -> str:
        """The key that names this one wait and no other."""
        return f"{self.operation_id}:{self.key}:{self.row}"


@dataclass(frozen=True, slots=True)
class Unclaimed:
    """A stored signal that no row has taken."""

    id: str
    key: str
    outcome: str
    message: str | None
    accepted_at: datetime


@dataclass(frozen=True, slots=True)
class _Subject:
    number: int
    id: str
    state: str
    plan: Any

    def step_name(self, step: int) -> str:
        return str(self.plan["steps"][step]["name"])


class Signals:
    """Word from outside that ends waits."""

    def __init__(self, db: Database, *, clock: Clock, entropy: Entropy, actor: str, hint: Callable[[], None]) -> None:
        self._db, self._clock, self._entropy, self._actor, self._hint = db, clock, entropy, actor, hint

    async def complete(
        self,
        operation: str,
        key: str,
        *,
        payload: Any = None,
        row: int | None = None,
        id: str | None = None,
        actor: str | None = None,
    ) -> Receipt:
        """The awaited thing has happened; `payload` becomes the step's output. Durable when this returns.

        With an `id`, a repeat answers like the first. `NoSuchWait` when no row could ever wait for this key.
        """
        size = len(msgspec.json.encode(payload))
        if size > PAYLOAD_BYTES_MAX:
            raise InvalidInput(f"the payload has {size:,} bytes; at most {PAYLOAD_BYTES_MAX:,} are taken")
        return await self._post(operation, key, "ok", payload=payload, message=None, row=row, id=id, actor=actor)

    async def fail(
        self,
        operation: str,
        key: str,
        message: str,
        *,
        row: int | None = None,
        id: str | None = None,
        actor: str | None = None,
    ) -> Receipt:
        """The awaited thing has failed: so does the step, with this message."""
        text = cut(message or "failed by a signal")
        return await self._post(operation, key, "failed", payload=None, message=text, row=row, id=id, actor=actor)

    async def _post(
        self, operation: str, key: str, outcome: str, *, row: int | None, id: str | None, **word: Any
    ) -> Receipt:
        async with self._db.read() as tx:
            subject = await _subject(tx, operation)
            if id is not None and (earlier := await _earlier(tx, subject, signals.c.dedupe_id == id)) is not None:
                return earlier
        key, row = _unscope(subject, key, row)
        _refuse_unheard(subject, key)
        token = operation_id(self._clock, self._entropy)
        word["actor"] = word["actor"] or self._actor
        values = word | {"token": token, "key": key, "row": row, "outcome": outcome, "dedupe_id": id}
        try:
            await self._store(subject, values)
        except IntegrityError:
            is_same = signals.c.token == token
            if id is not None:
                is_same |= signals.c.dedupe_id == id
            async with self._db.read() as tx:
                earlier = await _earlier(tx, subject, is_same)
            assert earlier is not None, "only a signal of the same id or token can be in the way"
            return earlier
        return await self._deliver(subject, key, token)

    async def _store(self, subject: _Subject, values: dict[str, Any]) -> None:
        """Insert the signal while the operation can still hear it; this commit is what accepting means."""

        async def store(tx: Connection) -> int:
            columns = {**values, "operation": subject.number}
            source = select(
                *(literal(value, signals.c[name].type) for name, value in columns.items()), self._db.now()
            ).where(operations.c.number == subject.number, operations.c.state.not_in(_DEAF))
            done = await tx.execute(insert(signals).from_select([*columns, "accepted_at"], source))
            return done.rowcount

        while True:
            try:
                stored = await self._db.transaction(store, "signal")
                break
            except CommitUnknown:
                continue  # if it did happen, the repeat meets its own token
        if stored != 1:
            raise NoSuchWait(f"operation {subject.id} is over; it hears no more signals", is_over=True)

    async def _deliver(self, subject: _Subject, key: str, token: str) -> Receipt:
        """Wake whoever takes the signal, and say who that is; with others before it, that may be a later row."""
        if not await self._db.transaction(partial(wake, self._db, subject.number, [key]), "wake"):
            return Receipt("stored", token)
        self._hint()
        async with self._db.read() as tx:
            mine = (await tx.execute(select(signals).where(signals.c.token == token))).one()
            if mine.consumed_at is not None:
                return Receipt("delivered", token, mine.consumed_row, subject.step_name(mine.consumed_step))
            ready = await unconsumed(tx, subject.number, signals.c.key == key)
            waits = await waiters(tx, subject.number, [key], each=2 * len(ready) + 100)
        taken = next((found for found in match(ready, waits) if found.signal.id == mine.id), None)
        if taken is None:
            return Receipt("stored", token)
        return Receipt("delivered", token, taken.row, subject.step_name(taken.step))

    async def waiting(
        self, operation: str | None = None, *, key: str | None = None, after: int = 0, limit: int = 100
    ) -> Sequence[Wait]:
        """Rows that wait for a signal, in row order; of one operation or of all."""
        query = (
            select(row_records, operations.c.id.label("operation_id"), operations.c.plan)
            .join(operations, operations.c.number == row_records.c.operation)
            .where(
                row_records.c.state == "WaitingForCompletion",
                row_records.c.signal_key.is_not(None),
                row_records.c.row > after,
            )
            .order_by(row_records.c.operation, row_records.c.row)
            .limit(limit)
        )
        async with self._db.read() as tx:
            if operation is not None:
                subject = await _subject(tx, operation)
                query = query.where(row_records.c.operation == subject.number)
                if key is not None:
                    key, row = _unscope(subject, key, None)
                    query = query.where(row_records.c.row == row) if row is not None else query
            if key is not None:
                query = query.where(row_records.c.signal_key == key)
            return [
                Wait(
                    r.operation_id,
                    r.row,
                    r.row_key,
                    r.plan["steps"][r.step]["name"],
                    r.signal_key,
                    from_micros(r.at),
                    from_micros(r.deadline),
                )
                for r in await tx.execute(query)
            ]

    async def unclaimed(self, operation: str, *, limit: int = 100) -> Sequence[Unclaimed]:
        """Stored signals of an operation that no row has taken, oldest first."""
        async with self._db.read() as tx:
            subject = await _subject(tx, operation)
            found = await tx.execute(
                select(signals)
                .where(signals.c.operation == subject.number, signals.c.consumed_at.is_(None))
                .order_by(signals.c.id)
                .limit(limit)
            )
            return [Unclaimed(s.token, s.key, s.outcome, s.message, from_micros(s.accepted_at)) for s in found]


_DEAF = ("Stopping", *sorted(OPERATION.settled))


async def _subject(tx: Connection, operation: str) -> _Subject:
    try:
        number = await number_of(tx, operation)
    except NotFound as error:
        raise NoSuchWait(str(error)) from None
    row = (
        await tx.execute(
            select(operations.c.number, operations.c.id, operations.c.state, operations.c.plan).where(
                operations.c.number == number
            )
        )
    ).one()
    return _Subject(*row)


def _unscope(subject: _Subject, key: str, row: int | None) -> tuple[str, int | None]:
    """The user's part of a key given as operationId:key:rowNumber, and that row; other keys as they are."""
    prefix, _, number = key.rpartition(":")
    if not prefix.startswith(f"{subject.id}:") or not number.isdecimal():
        return key, row
    own = [KeyTemplate.parse(t) for t in _templates(subject) if t is not None and "{operation_id}" in t]
    if any(template.matches(key) for template in own):
        return key, row
    return prefix.removeprefix(f"{subject.id}:"), int(number)


def _templates(subject: _Subject) -> list[str | None]:
    return [step["options"]["key"] for step in subject.plan["steps"] if step["kind"] == "signal"]


def _refuse_unheard(subject: _Subject, key: str) -> None:
    if not key or len(key) > KEY_MAX:
        raise InvalidInput(f"a signal key has 1 to {KEY_MAX} characters; found {len(key)}")
    if subject.state in _DEAF:
        raise NoSuchWait(f"operation {subject.id} is {subject.state}; it hears no more signals", is_over=True)
    templates = _templates(subject)
    if not templates:
        raise NoSuchWait(f"operation {subject.id} has no step that waits for a signal")
    if all(template is not None and not KeyTemplate.parse(template).matches(key) for template in templates):
        raise NoSuchWait(f"no row could wait for {key!r}; keys look like: {', '.join(map(repr, templates))}")


async def _earlier(tx: Connection, subject: _Subject, is_same: ColumnElement[bool]) -> Receipt | None:
    """The receipt of a signal that is stored already, with what became of it."""
    found = (await tx.execute(select(signals).where(signals.c.operation == subject.number, is_same))).first()
    if found is None:
        return None
    step = None if found.consumed_step is None else subject.step_name(found.consumed_step)
    return Receipt("duplicate", found.token, found.consumed_row, step)
