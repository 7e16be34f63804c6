"""Lifecycles as the documents machines get: camelCase, times in UTC."""

from __future__ import annotations

from datetime import UTC, datetime
from enum import IntFlag
from typing import Any

from penstock.lifecycles.model import (
    Available,
    Count,
    Definition,
    Delivery,
    Import,
    Instance,
    LogEntry,
    Outcome,
    Version,
)
from penstock.lifecycles.monitoring import Tick
from penstock.lifecycles.rules.comparing import Change

__all__ = [
    "available",
    "change",
    "count",
    "definition",
    "delivery",
    "imported",
    "instance",
    "log_entry",
    "outcome",
    "tick",
    "version",
]

Document = dict[str, Any]


def definition(found: Definition) -> Document:
    """One definition."""
    return {
        "id": found.id,
        "name": found.name,
        "environment": found.environment_label,
        "environmentCode": found.environment,
        "description": found.description,
        "createdAt": _instant(found.created_at),
        "modifiedAt": _instant(found.modified_at),
    }


def version(found: Version) -> Document:
    """One version of a definition."""
    return {
        "id": found.id,
        "definition": found.definition.name,
        "environment": found.definition.environment_label,
        "version": found.label,
        "versionCode": found.number,
        "status": found.status,
        "digest": found.digest,
        "createdBy": found.created_by,
        "createdAt": _instant(found.created_at),
        "publishedAt": _instant(found.published_at),
    }


def imported(found: Import) -> Document:
    """What an import came to."""
    return {
        "definitionId": found.definition_id,
        "versionId": found.version_id,
        "name": found.name,
        "environment": found.environment_label,
        "version": found.label,
        "versionCode": found.version_code,
        "states": found.states,
        "events": found.events,
        "transitions": found.transitions,
        "unchanged": found.unchanged,
        "warnings": [{"path": warning.field, "message": warning.message} for warning in found.warnings],
    }


def change(found: Change) -> Document:
    """One difference between two versions."""
    return {"change": found.sign, "what": found.what, "name": found.name, "details": found.details or None}


def instance(found: Instance) -> Document:
    """One instance."""
    return {
        "guid": found.guid,
        "id": found.id,
        "definition": found.definition,
        "environment": found.environment_label,
        "versionCode": found.version,
        "state": found.state,
        "lastEvent": found.last_event,
        "flags": _flags(found.flags),
        "reference": found.reference,
        "revision": found.revision,
        "data": dict(found.data),
        "createdAt": _instant(found.created_at),
        "modifiedAt": _instant(found.modified_at),
        "enteredAt": _instant(found.entered_at),
    }


def log_entry(found: LogEntry) -> Document:
    """One entry of the transition log."""
    return {
        "guid": found.guid,
        "sequence": found.sequence,
        "kind": found.kind,
        "from": found.source,
        "event": found.event,
        "to": found.target,
        "instanceFlags": _flags(found.instance_flags),
        "flags": _flags(found.flags),
        "actor": found.actor,
        "cause": found.cause,
        "correlation": found.correlation,
        "requestKey": found.request_key,
        "metadata": found.metadata,
        "versionCode": found.version,
        "at": _instant(found.at),
    }


def outcome(found: Outcome) -> Document:
    """What became of a trigger."""
    return {
        "outcome": found.kind,
        "guid": found.guid,
        "event": found.event,
        "from": found.source,
        "to": found.target,
        "sequence": found.sequence,
        "reason": found.reason,
        "allowed": list(found.allowed),
    }


def available(found: Available) -> Document:
    """An event that an instance's state admits."""
    return {"event": found.event, "to": found.target, "isAllowed": found.is_allowed, "reason": found.reason}


def count(found: Count) -> Document:
    """How many instances are in a state."""
    return {
        "versionCode": found.version,
        "state": found.state,
        "flags": _flags(found.flags),
        "instances": found.instances,
    }


def delivery(found: Delivery) -> Document:
    """Word of one move for one consumer."""
    return {
        "messageId": found.message_id,
        "consumer": found.consumer,
        "state": found.state,
        "attempts": found.attempts,
        "attemptsMax": found.attempts_max,
        "dueAt": _instant(found.due_at),
        "error": found.error,
        "createdAt": _instant(found.created_at),
        "modifiedAt": _instant(found.modified_at),
        "entry": log_entry(found.entry),
    }


def tick(found: Tick) -> Document:
    """What one pass of the monitor did."""
    return {
        "timersFired": found.timers_fired,
        "timersRefused": found.timers_refused,
        "processed": found.processed,
        "failed": found.failed,
        "givenUp": found.given_up,
    }


def _flags(flags: IntFlag) -> list[str]:
    return [(flag.name or "").capitalize() for flag in flags]


def _instant(at: datetime | None) -> str | None:
    return None if at is None else at.astimezone(UTC).isoformat().replace("+00:00", "Z")
