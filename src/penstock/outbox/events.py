"""From a line of the transition log to a CloudEvent, and who wants to hear of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from typing import Any

from penstock.clock import from_micros
from penstock.errors import InvalidInput
from penstock.journal.queries import Entry
from penstock.outbox.model import OperationEvent

__all__ = [
    "TEST_TYPE",
    "TYPE_CHARS_MAX",
    "Event",
    "Facts",
    "check_types",
    "event_of",
    "may_match",
    "operation_event",
    "wants",
]

TEST_TYPE = "penstock.webhook.test"
TYPE_CHARS_MAX = 200
TYPES_MAX = 50


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened, before it is addressed to anybody."""

    id: str
    type: str
    subject: str
    at: datetime
    data: Mapping[str, Any]
    operation: str | None = None  # the operation's name, for subscriptions to one
    tenant: str = ""
    number: int = 0  # in the feed

    def document(self, source: str) -> dict[str, Any]:
        """The event as CloudEvents 1.0 has it, in structured JSON."""
        return {
            "specversion": "1.0",
            "id": self.id,
            "source": source,
            "type": self.type,
            "subject": self.subject,
            "time": self.at.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z"),
            "datacontenttype": "application/json",
            "data": dict(self.data),
        }


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known of the subject of a move beside the move itself."""

    name: str | None = None
    tenant: str = ""
    data: Mapping[str, Any] = field(default_factory=dict)


def event_of(entry: Entry, facts: Facts) -> Event:
    """The event that a line of the log stands for; its id is the same whenever it is made."""
    named = {} if facts.name is None else {"name": facts.name}
    data = {
        "id": entry.subject,
        **named,
        "event": entry.event,
        "previousStatus": entry.source,
        "status": entry.target,
        "actor": entry.actor,
        "cause": entry.cause,
        **facts.data,
        **({} if entry.details is None else {"details": dict(entry.details)}),
    }
    return Event(
        f"{entry.machine}-{entry.subject}-{entry.sequence}",
        f"penstock.{entry.machine}.{entry.event}",
        entry.subject,
        from_micros(entry.at),
        data,
        operation=facts.name if entry.machine == "operation" else None,
        tenant=facts.tenant,
        number=entry.position or 0,
    )


def operation_event(document: Mapping[str, Any]) -> OperationEvent:
    """What a handler is told, from the CloudEvent of an operation."""
    data = document["data"]
    return OperationEvent(
        document["id"],
        document["type"],
        document["subject"],
        data.get("name", ""),
        data["event"],
        data["previousStatus"],
        data["status"],
        datetime.fromisoformat(document["time"]),
        data["actor"],
        data["cause"],
        data,
    )


def wants(
    event: Event, *, types: Iterable[str], operation: str | None, subject: str | None, tenant: str | None
) -> bool:
    """Whether a subscription with these filters is told of the event."""
    return (
        tenant in (None, event.tenant)
        and (operation is None or (event.operation or "").casefold() == operation.casefold())
        and subject in (None, event.subject)
        and any(fnmatchcase(event.type, each) for each in types)
    )


def check_types(types: Iterable[str]) -> list[str]:
    """Types as a subscription names them: `penstock.operation.finished`, or `*` for any part of the name."""
    found = [types] if isinstance(types, str) else list(types)
    for each in found:
        if not 0 < len(each) <= TYPE_CHARS_MAX or not each.isprintable():
            raise InvalidInput(f"a type is text such as 'penstock.operation.*'; found {each!r:.80}")
        if not may_match(each, "penstock."):
            raise InvalidInput(f"no event has a type like {each!r}; they begin with 'penstock.'")
    if not 0 < len(found) <= TYPES_MAX:
        raise InvalidInput(f"a subscription names 1 to {TYPES_MAX} types of events; found {len(found)}")
    return list(dict.fromkeys(found))


def may_match(pattern: str, beginning: str) -> bool:
    """Whether a pattern could fit a type that begins so."""
    fixed = pattern[: next((place for place, char in enumerate(pattern) if char in "*?["), len(pattern))]
    return beginning.startswith(fixed) or fixed.startswith(beginning)
