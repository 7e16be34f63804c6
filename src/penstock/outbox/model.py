"""What callers are shown of subscriptions and deliveries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

__all__ = ["Attempt", "Delivery", "NewSubscription", "OperationEvent", "OutboxHealth", "Subscription"]


@dataclass(frozen=True, slots=True)
class Subscription:
    """Somebody who is told of events. `url` is masked where it is a secret; the signing secret is never shown."""

    id: str
    channel: str  # webhook, slack, email or handler
    url: str
    types: tuple[str, ...]
    operation: str | None  # only events of operations of this name
    subject: str | None  # only events of this one operation, blob or instance
    state: str
    reason: str | None
    held_until: datetime | None  # the receiver asked for a pause
    created_at: datetime
    created_by: str
    modified_at: datetime
    tenant: str = ""


@dataclass(frozen=True, slots=True)
class NewSubscription:
    """A subscription that was just made, or whose secret was changed. The secret is shown this once."""

    subscription: Subscription
    secret: str | None


@dataclass(frozen=True, slots=True)
class Attempt:
    """One try to deliver: when it began, how long it took, and what came of it."""

    at: datetime
    duration_ms: int
    status: int | None  # of the HTTP answer, if there was one
    error: str | None  # None when it was taken


@dataclass(frozen=True, slots=True)
class Delivery:
    """One event for one subscription. `event_id` is the same on every attempt, and is sent as `webhook-id`."""

    id: str
    subscription: str
    event_id: str
    type: str
    subject: str
    state: str
    attempts: int
    attempts_max: int
    due_at: datetime | None
    event: Mapping[str, Any]  # the CloudEvent that is sent
    log: Sequence[Attempt]  # the last attempts, oldest first
    created_at: datetime
    modified_at: datetime
    tenant: str = ""

    @property
    def error(self) -> str | None:
        """Why the last attempt failed, if it did."""
        return self.log[-1].error if self.log else None


@dataclass(frozen=True, slots=True)
class OperationEvent:
    """What a handler is told: how an operation moved. `id` is the same when it is told again."""

    id: str
    type: str
    operation_id: str
    operation_name: str
    event: str
    previous_status: str | None
    status: str
    at: datetime
    actor: str
    cause: str | None
    data: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class OutboxHealth:
    """How deliveries stand."""

    failed: int = 0  # given up, and not sent again since
    stuck: tuple[tuple[str, int], ...] = ()  # by channel: due for long, and nobody sends them
    disabled: tuple[str, ...] = ()
    locked: tuple[str, ...] = ()  # whose secrets this process cannot decrypt
