"""Blobs as the documents machines get: camelCase, times in UTC. Where their bytes lie is nobody's business."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from penstock.blobs.model import BlobDescriptor, BlobEvent, Hold, Reference, Swept, UploadTicket

__all__ = ["blob", "blob_event", "detailed", "hold", "reference", "swept", "ticket"]

Document = dict[str, Any]


def blob(found: BlobDescriptor) -> Document:
    """One blob."""
    return {
        "id": found.id,
        "tenant": found.tenant or None,
        "status": found.status,
        "fileName": found.file_name,
        "contentType": found.content_type,
        "sizeBytes": found.size_bytes,
        "sha256": found.sha256,
        "isTemporary": found.is_temporary,
        "createdBy": found.created_by,
        "createdAt": _instant(found.created_at),
        "expiresAt": _instant(found.expires_at),
        "validatedAt": _instant(found.validated_at),
        "rejectedAt": _instant(found.rejected_at),
        "rejectionCode": found.rejection_code,
        "rejectionReason": found.rejection_reason,
        "deletedAt": _instant(found.deleted_at),
        "deletionReason": found.deletion_reason,
    }


def detailed(
    found: BlobDescriptor, references: Sequence[Reference], holds: Sequence[Hold], history: Sequence[BlobEvent]
) -> Document:
    """One blob with what uses it, what holds it and what happened to it."""
    return {
        **blob(found),
        "references": [reference(each) for each in references],
        "holds": [hold(each) for each in holds],
        "history": [blob_event(each) for each in history],
    }


def reference(found: Reference) -> Document:
    """Something that uses a blob."""
    return {"owner": found.owner, "since": _instant(found.since)}


def hold(found: Hold) -> Document:
    """What keeps a blob from being deleted."""
    return {
        "name": found.name,
        "reason": found.reason,
        "placedBy": found.placed_by,
        "placedAt": _instant(found.placed_at),
    }


def blob_event(found: BlobEvent) -> Document:
    """One line of a blob's log."""
    return {
        "sequence": found.sequence,
        "from": found.source,
        "event": found.event,
        "to": found.target,
        "at": _instant(found.at),
        "actor": found.actor,
        "cause": found.cause,
        "details": dict(found.details) if found.details else None,
    }


def ticket(found: UploadTicket) -> Document:
    """Where the bytes of a new blob go."""
    return {
        "blob": blob(found.blob),
        "url": found.url,
        "method": found.method,
        "headers": dict(found.headers),
        "expiresAt": _instant(found.expires_at),
    }


def swept(found: Swept) -> Document:
    """What a sweep did."""
    return {
        "expired": found.expired,
        "removedObjects": found.removed_objects,
        "removedBytes": found.removed_bytes,
        "deletedWithoutBytes": found.deleted_without_bytes,
        "missing": list(found.missing),
        "isComplete": found.is_complete,
    }


def _instant(at: datetime | None) -> str | None:
    return None if at is None else at.astimezone(UTC).isoformat().replace("+00:00", "Z")
