"""Sending signals, and listing waits and signals. Accepted means stored, whether or not a row waits already."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import msgspec
from sqlalchemy import ColumnElement, and_, or_, select

from penstock.clock import Clock, Entropy, from_micros, operation_id
from penstock.db.connection import Connection
from penstock.db.database import Database
from penstock.db.unit import UnitOfWork
from penstock.errors import InvalidInput, NoSuchWait, NotFound
from penstock.listing import Page
from penstock.operations.inbox.addressing import is_row_number, subject_of, unscope
from penstock.operations.inbox.matching import has_signal
from penstock.operations.inbox.signal_batching import PendingSignal, Receipt, SignalBatcher, about_to_be_taken
from penstock.operations.messages import cut
from penstock.operations.operation_ids import number_of
from penstock.operations.tables import operations, row_records, signals
from penstock.operations.views import operation_views, row_views
from penstock.operations.visibility import EVERYTHING, Visible
from penstock.pipeline import Definition
from penstock.pipeline.signal_tokens import WaitAddress, unseal
from penstock.secret_keys import SecretKeys

__all__ = ["Receipt", "Signals", "Unclaimed", "Wait", "signal_key"]

PAYLOAD_BYTES_MAX = 64 * 1024
LISTED_AT_ONCE = 500
BY_ADDRESS = "callback address"  # who sent a signal that came by one
NO_WAIT = "there is no wait with this address, or it is over"
DECIDED = ("Completed", "Skipped", "Failed", "TimedOut", "Cancelled")


def signal_key(operation_id: str, key: str, row: int) -> str:
    """The key that names one row's wait and no other."""
    return f"{operation_id}:{key}:{row}"


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
        return signal_key(self.operation_id, self.key, self.row)

    @property
    def cursor(self) -> str:
        """The place of this wait in a list of one operation or of all: give it as `after` to go on behind it."""
        return f"{self.operation_id}:{self.row}"


@dataclass(frozen=True, slots=True)
class Unclaimed:
    """A stored signal that no row has taken."""

    id: str
    key: str
    outcome: str
    message: str | None
    accepted_at: datetime


class Signals:
    """Send signals, which end waits, and look at waits and signals."""

    def __init__(
        self,
        db: Database,
        definitions: Mapping[str, Definition],
        *,
        clock: Clock,
        entropy: Entropy,
        actor: str,
        hint: Callable[[], None],
        secret_keys: SecretKeys,
    ) -> None:
        self._secret_keys = secret_keys
        self._db, self._clock, self._entropy, self._actor = db, clock, entropy, actor
        self._batcher = SignalBatcher(db, hint=hint, definitions=definitions)
        self._visible = EVERYTHING

    def seen_by(self, visible: Visible, *, actor: str) -> Signals:
        """The same for somebody who knows of these operations only; for them the others do not exist."""
        scoped = copy(self)
        scoped._visible, scoped._actor = visible, actor
        return scoped

    async def complete(
        self,
        operation: str,
        key: str,
        *,
        payload: Any = None,
        row: int | None = None,
        id: str | None = None,
        actor: str | None = None,
        tx: UnitOfWork | None = None,
    ) -> Receipt:
        """The awaited thing has happened; `payload` becomes the step's output. Durable when this returns.

        With an `id`, a repeat answers like the first; `Conflict` when the id was used for another key, row or outcome.
        `NoSuchWait` when no row could ever wait for this key; `InvalidInput` when the payload fits no step that could.
        In a process without the operation's code, a payload that does not fit fails the row that takes it.

        With the `tx` of `penstock.transaction()` it is stored once that is committed, and the row goes on after that.
        """
        return await self._post(operation, key, _success(payload), row=row, id=id, actor=actor, tx=tx)

    async def fail(
        self,
        operation: str,
        key: str,
        message: str,
        *,
        row: int | None = None,
        id: str | None = None,
        actor: str | None = None,
        tx: UnitOfWork | None = None,
    ) -> Receipt:
        """The awaited thing has failed: so does the step, with this message."""
        return await self._post(operation, key, _failure(message), row=row, id=id, actor=actor, tx=tx)

    async def complete_wait(self, token: str, *, payload: Any = None) -> Receipt:
        """As `complete`, for the one wait whose callback address (`ctx.signal_url`) has this token. Once: a repeat
        answers like the first. `NoSuchWait` when the token is wrong or the wait is over.
        """
        return await self._post_to(token, _success(payload))

    async def fail_wait(self, token: str, message: str) -> Receipt:
        """As `fail`, for the one wait whose callback address has this token."""
        return await self._post_to(token, _failure(message))

    async def _post_to(self, token: str, content: dict[str, Any]) -> Receipt:
        address = unseal(self._secret_keys, token)
        if address is None:
            raise NoSuchWait(NO_WAIT)
        async with self._db.read() as tx:
            await _require_wait(tx, address)
        return await self._post(
            address.operation, address.key, content, row=address.row, id=address.signal_id, actor=BY_ADDRESS, tx=None
        )

    async def _post(
        self,
        operation: str,
        key: str,
        content: dict[str, Any],
        *,
        row: int | None,
        id: str | None,
        actor: str | None,
        tx: UnitOfWork | None,
    ) -> Receipt:
        token = operation_id(self._clock, self._entropy)
        content = {**content, "actor": actor or self._actor}
        pending = PendingSignal(operation, key, row, id, token, self._visible, content)
        return await (self._batcher.post(pending) if tx is None else self._batcher.join(pending, tx))

    async def waiting(
        self, operation: str | None = None, *, key: str | None = None, after: int | str = 0, limit: int = 100
    ) -> Sequence[Wait]:
        """Rows that wait for a signal, in row order; of one operation or of all, the oldest operation first.

        `after` goes on behind a wait: give its `cursor`, or within one operation its row.
        """
        query = (
            select(row_records, operations.c.id.label("operation_id"), operations.c.plan)
            .join(operations, operations.c.number == row_records.c.operation)
            .where(row_records.c.state == "WaitingForCompletion", row_records.c.signal_key.is_not(None))
            .where(*self._visible.conditions)
            .order_by(row_records.c.operation, row_records.c.row)
            .limit(limit)
        )
        async with self._db.read() as tx:
            number = None
            if operation is not None:
                subject = await subject_of(tx, operation, self._visible)
                number = subject.number
                query = query.where(row_records.c.operation == number)
                if key is not None:
                    key, row = unscope(subject, key, None)
                    query = query.where(row_records.c.row == row) if row is not None else query
            if key is not None:
                query = query.where(row_records.c.signal_key == key)
            if after:
                query = query.where(await _is_behind(tx, after, number, self._visible))
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

    async def waiting_page(
        self, operation: str | None = None, *, key: str | None = None, cursor: str | None = None, limit: int = 100
    ) -> Page[Wait]:
        """The same as part of a list."""
        found = await self.waiting(operation, key=key, after=cursor or 0, limit=limit + 1)
        shown = found[:limit]
        if len(found) <= limit:
            return Page(shown)
        return Page(shown, shown[-1].cursor if operation is None else str(shown[-1].row))

    async def unclaimed_page(self, operation: str, *, cursor: str | None = None, limit: int = 100) -> Page[Unclaimed]:
        """The signals that no row has taken as part of a list."""
        found = await self.unclaimed(operation, after=cursor, limit=limit + 1)
        shown = found[:limit]
        return Page(shown, shown[-1].id if len(found) > limit else None)

    async def unclaimed(self, operation: str, *, after: str | None = None, limit: int = 100) -> Sequence[Unclaimed]:
        """Stored signals of an operation that no row has taken or, waiting now, will take; oldest first.

        `after` goes on behind a signal: give its `id`.
        """
        left: list[Unclaimed] = []
        async with self._db.read() as tx:
            subject = await subject_of(tx, operation, self._visible)
            mine = (signals.c.operation == subject.number, signals.c.consumed_at.is_(None))
            free = select(signals).where(*mine).order_by(signals.c.id).limit(LISTED_AT_ONCE)
            last = 0 if after is None else await _number_of_signal(tx, subject.number, after)
            while len(left) < limit:
                page = (await tx.execute(free.where(signals.c.id > last))).all()
                if not page:
                    break
                matches = await about_to_be_taken(self._db, tx, subject.number, {s.key for s in page})
                taken = {found.signal.id for found in matches}
                left += [
                    Unclaimed(s.token, s.key, s.outcome, s.message, from_micros(s.accepted_at))
                    for s in page
                    if s.id not in taken
                ]
                last = page[-1].id
        return left[:limit]

    async def are_all_outstanding(self, operation: str) -> bool:
        """Whether each row that waits does so for a signal that nobody has sent: none is polled, none will go on."""
        async with self._db.read() as tx:
            subject = await subject_of(tx, operation, self._visible)
            is_waiting = (
                row_records.c.operation == subject.number,
                row_records.c.state == "WaitingForCompletion",
            )
            goes_on = or_(row_records.c.signal_key.is_(None), has_signal())
            return (await tx.execute(select(row_records.c.row).where(*is_waiting, goes_on).limit(1))).first() is None


async def _number_of_signal(tx: Connection, operation: int, token: str) -> int:
    mine = (signals.c.operation == operation, signals.c.token == token)
    found = (await tx.execute(select(signals.c.id).where(*mine))).scalar()
    if found is None:
        raise InvalidInput(f"{token!r} is not a cursor of this list")
    return int(found)


async def _is_behind(tx: Connection, after: int | str, listed: int | None, visible: Visible) -> ColumnElement[bool]:
    """Waits behind a row of the listed operation, or behind the wait that has this cursor."""
    of, _, row = str(after).rpartition(":")
    try:
        number = await number_of(tx, of, visible) if of else listed
    except (NotFound, InvalidInput):
        number = None
    if number is None or number != (listed or number) or not is_row_number(row):
        raise InvalidInput(f"{after!r} is not a cursor of this list")
    is_later = and_(row_records.c.operation == number, row_records.c.row > int(row))
    return or_(row_records.c.operation > number, is_later) if listed is None else is_later


def _success(payload: Any) -> dict[str, Any]:
    return {"outcome": "ok", "payload": None if payload is None else _encoded(payload), "message": None}


def _failure(message: str) -> dict[str, Any]:
    return {"outcome": "failed", "payload": None, "message": cut(message or "failed by a signal")}


def _encoded(payload: Any) -> msgspec.Raw:
    """The payload as JSON."""
    try:
        encoded = msgspec.json.encode(payload)
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidInput(f"the payload cannot be written as JSON: {error}") from error
    if len(encoded) > PAYLOAD_BYTES_MAX:
        raise InvalidInput(f"the payload has {len(encoded):,} bytes; at most {PAYLOAD_BYTES_MAX:,} are taken")
    return msgspec.Raw(encoded)


# --- callback addresses: each is for one wait, and is taken once


async def _require_wait(tx: Connection, address: WaitAddress) -> None:
    """`NoSuchWait` unless the row waits at this address, will do so, or was ended by a signal that came by it.

    A retry that comes between this look and the signal is no danger: a signal is for waits of its own generation.
    """
    try:
        number = await number_of(tx, address.operation)
    except NotFound:
        raise NoSuchWait(NO_WAIT) from None
    if await _waits(tx, number, address) or await _was_used(tx, number, address):
        return
    try:
        layout = await operation_views.layout(tx, address.operation, {})
        row = await row_views.row(tx, layout, address.row)
    except NotFound:
        raise NoSuchWait(NO_WAIT) from None
    state = next((step.state for step in row.steps if step.index == address.step), None)
    if row.generation != address.generation or state in DECIDED:
        raise NoSuchWait(NO_WAIT, is_over=True)


async def _waits(tx: Connection, number: int, address: WaitAddress) -> bool:
    """Whether the row waits now; asked first, because it needs no more than an index."""
    record: Any = row_records.c
    query = select(record.row).where(
        record.operation == number,
        record.signal_key == address.key,
        record.row == address.row,
        record.step == address.step,
        record.generation == address.generation,
        record.state == "WaitingForCompletion",
    )
    return (await tx.execute(query)).first() is not None


async def _was_used(tx: Connection, number: int, address: WaitAddress) -> bool:
    query = select(signals.c.id).where(signals.c.operation == number, signals.c.dedupe_id == address.signal_id)
    return (await tx.execute(query)).first() is not None
