"""The JSON documents of subscriptions and their deliveries."""

from __future__ import annotations

from penstock.outbox.model import Attempt, Delivery, NewSubscription, Subscription
from penstock.resources import Document, instant

__all__ = ["attempt", "delivery", "delivery_in_full", "new_subscription", "subscription"]


def subscription(found: Subscription) -> Document:
    """Somebody who is told of events; no secret is in it."""
    return {
        "id": found.id,
        "channel": found.channel,
        "url": found.url,
        "types": list(found.types),
        "operation": found.operation,
        "subject": found.subject,
        "state": found.state,
        "reason": found.reason,
        "heldUntil": None if found.held_until is None else instant(found.held_until),
        "createdAt": instant(found.created_at),
        "createdBy": found.created_by,
        "modifiedAt": instant(found.modified_at),
    }


def new_subscription(made: NewSubscription) -> Document:
    """The same with the secret, which is shown once."""
    return {**subscription(made.subscription), "secret": made.secret}


def delivery(found: Delivery) -> Document:
    """One event for one subscription."""
    return {
        "messageId": found.id,
        "consumer": found.subscription,
        "eventId": found.event_id,
        "type": found.type,
        "subject": found.subject,
        "state": found.state,
        "attempts": found.attempts,
        "attemptsMax": found.attempts_max,
        "dueAt": None if found.due_at is None else instant(found.due_at),
        "error": found.error,
        "createdAt": instant(found.created_at),
        "modifiedAt": instant(found.modified_at),
    }


def delivery_in_full(found: Delivery) -> Document:
    """The same with what is sent, and the last attempts."""
    return {**delivery(found), "event": dict(found.event), "log": [attempt(each) for each in found.log]}


def attempt(found: Attempt) -> Document:
    """One try to deliver."""
    return {
        "at": instant(found.at),
        "durationMs": found.duration_ms,
        "status": found.status,
        "error": found.error,
    }
