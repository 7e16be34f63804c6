"""What others are told of operations: the facts beside each move, handlers of an application's own, notifications."""

from __future__ import annotations

import inspect
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal

from sqlalchemy import select

from penstock.db.connection import Connection
from penstock.errors import DeclarationError, InvalidInput
from penstock.operations.counts import Counts
from penstock.operations.model import Page, RowError
from penstock.operations.states import OPERATION
from penstock.operations.tables import operations
from penstock.operations.views.operation_views import Tallied, tallies
from penstock.outbox.events import Facts, operation_event
from penstock.outbox.threads import LimitedThreads
from penstock.pipeline.definition import HANDLERS
from penstock.pipeline.signatures import Signature, is_async

__all__ = ["Handlers", "Notify", "RowFailure", "describe", "handler_types", "handlers_of", "notify_types", "time_of"]

TYPE = f"penstock.{OPERATION.name}"
ROWS_TYPE = f"{TYPE}.rows_failed"
ROWS_EACH = 100

Trigger = Literal["completed", "completed_with_errors", "failed", "cancelled", "settled", "every_change"]
STATUSES: Mapping[Trigger, tuple[str, ...]] = {
    "completed": ("Completed",),
    "completed_with_errors": ("CompletedWithErrors",),
    "failed": ("Failed",),
    "cancelled": ("Cancelled",),
    "settled": tuple(sorted(OPERATION.settled)),
    "every_change": OPERATION.states,
}
SENSES: Mapping[str, tuple[str, ...]] = {
    "on_status_changed": OPERATION.states,
    "on_completed": ("Completed", "CompletedWithErrors"),
    "on_failed": ("Failed",),
    "on_row_failed": ("Completed", "CompletedWithErrors", "Failed", "Cancelled"),
}


@dataclass(frozen=True, slots=True)
class Notify:
    """Somebody who is told of one operation: by `https://…` with the secret, `slack+https://…` or `mailto:…`.

    `on` says of what: "failed" and "completed_with_errors" unless told otherwise.
    """

    url: str
    on: Trigger | Sequence[Trigger] = ("failed", "completed_with_errors")
    secret: str | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class RowFailure:
    """What `on_row_failed` is told. `id` is the same when it is told again."""

    id: str
    operation_id: str
    operation_name: str
    row: RowError


def time_of(document: Mapping[str, Any]) -> datetime:
    """When the event of a document happened."""
    return datetime.fromisoformat(document["time"])


async def describe(tx: Connection, ids: Collection[str]) -> Mapping[str, Facts]:
    """What is told of operations beside their moves: their names, and how many rows they have by now."""
    columns = [
        operations.c[name] for name in ("number", "id", "name", "tenant", "file_name", "created_by", "total_rows")
    ]
    found = (await tx.execute(select(*columns).where(operations.c.id.in_(ids)))).all()
    counts = await tallies(tx, [row.number for row in found])
    return {
        row.id: Facts(row.name, row.tenant or "", _data(row, counts.get(row.number, Tallied()).counts)) for row in found
    }


def _data(row: Any, counts: Counts) -> dict[str, Any]:
    return {
        "operationId": row.id,
        "fileName": row.file_name,
        "createdBy": row.created_by,
        "totalRows": row.total_rows,
        "successfulRows": counts.succeeded,
        "failedRows": counts.unsuccessful,
        "invalidRows": counts.invalid,
        "cancelledRows": counts.cancelled,
    }


def notify_types(on: Trigger | Sequence[Trigger]) -> list[str]:
    """The types of events that these triggers stand for."""
    wanted = [on] if isinstance(on, str) else list(on)
    unknown = [each for each in wanted if each not in STATUSES]
    if unknown or not wanted:
        raise InvalidInput(f"`on` names triggers: {', '.join(STATUSES)}; found {unknown or 'none'}")
    return _types({status for each in wanted for status in STATUSES[each]})


def handler_types(names: Iterable[str]) -> list[str]:
    """The types of events that handlers of these names are told of."""
    found = {status for name in names for status in SENSES.get(name, ())}
    types = _types(found)
    if "on_created" in names:
        types.append(f"{TYPE}.created")
    return sorted({*types, *([ROWS_TYPE] if "on_row_failed" in names else [])})


def _types(statuses: Collection[str]) -> list[str]:
    return sorted({f"{TYPE}.{line.event}" for line in OPERATION.transitions if line.target in statuses})


# --- handlers


ReadErrors = Callable[[str, str | None], Awaitable[Page[RowError]]]
"""A page of what is wrong with an operation's rows."""
WriteNext = Callable[[str, Mapping[str, Any], str], Awaitable[None]]
"""Leaves word for the subscription to be told of an operation's next failed rows, behind a cursor."""


def handlers_of(owner: object) -> tuple[str, ...]:
    """Which methods of an object are handlers; `DeclarationError` when it has none, or one cannot be called."""
    found = [name for name in HANDLERS if callable(getattr(owner, name, None))]
    wrong = [name for name in found if not Signature(getattr(owner, name), {}).takes(1)]
    if wrong:
        raise DeclarationError(f"{owner!r}: {', '.join(wrong)} must take one argument, the event")
    if not found:
        raise DeclarationError(f"{owner!r} has no handler; it may have: {', '.join(HANDLERS)}")
    return tuple(found)


@dataclass
class Handlers:
    """The handlers of one object, called with what is delivered to them."""

    subscription: str
    names: tuple[str, ...]
    owner: Callable[[], Awaitable[object]]
    read_errors: ReadErrors
    write_next: WriteNext
    _threads: LimitedThreads = field(default_factory=LimitedThreads)

    async def __call__(self, document: Mapping[str, Any]) -> None:
        """Call each handler that this event is for; the first error ends it, and all are called again later."""
        owner = await self.owner()
        data = document["data"]
        if document["type"] == ROWS_TYPE:
            await self._tell_rows(owner, document, data.get("after"))
            return
        event = operation_event(document)
        if event.previous_status is None:
            await self._call(owner, "on_created", event)
            return
        for name in ("on_status_changed", "on_row_failed", "on_completed", "on_failed"):
            if event.status not in SENSES[name]:
                continue
            if name == "on_row_failed":
                await self._tell_rows(owner, document, None)
            else:
                await self._call(owner, name, event)

    async def _tell_rows(self, owner: object, document: Mapping[str, Any], after: str | None) -> None:
        """Tell of some failed rows; the next ones are a delivery of their own, so that none takes too long."""
        if "on_row_failed" not in self.names:
            return
        operation, name = document["subject"], document["data"].get("name", "")
        page = await self.read_errors(operation, after)
        for row in page.items:
            failure = RowFailure(f"{operation}-{row.row}-{row.generation}", operation, name, row)
            await self._call(owner, "on_row_failed", failure)
        if page.next_cursor is not None:
            await self.write_next(self.subscription, document, page.next_cursor)

    async def _call(self, owner: object, name: str, event: object) -> None:
        if name not in self.names:
            return
        handler = getattr(owner, name)
        if is_async(handler):
            await handler(event)
            return
        answer = await self._threads.call(handler, event)
        if inspect.isawaitable(answer):
            await answer
