"""Keys and audit entries as the documents machines get: camelCase, times in UTC."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from penstock.access.chain import Entry
from penstock.access.model import ApiKey
from penstock.clock import from_micros

__all__ = ["api_key", "audit_entry"]

Document = dict[str, Any]


def api_key(found: ApiKey, *, now: datetime, text: str | None = None) -> Document:
    """One API key; with its text when it was just made."""
    document: Document = {
        "id": found.id,
        "name": found.name,
        "role": found.role,
        "operations": None if found.operations is None else sorted(found.operations),
        "tenant": found.tenant,
        "state": found.state_at(now),
        "createdBy": found.created_by,
        "createdAt": _instant(found.created_at),
        "expiresAt": _instant(found.expires_at),
        "revokedAt": _instant(found.revoked_at),
        "revokedBy": found.revoked_by,
        "lastUsedAt": _instant(found.last_used_at),
    }
    return document if text is None else {**document, "key": text}


def audit_entry(found: Entry) -> Document:
    """One entry of the audit log."""
    return {
        "sequence": found.sequence,
        "at": _instant(from_micros(found.at)),
        "actor": found.actor,
        "action": found.action,
        "subject": found.subject,
        "details": None if found.details is None else dict(found.details),
        "digest": found.digest,
    }


def _instant(at: datetime | None) -> str | None:
    return None if at is None else at.astimezone(UTC).isoformat().replace("+00:00", "Z")
