"""What callers see of blobs. A descriptor is a value: its `mark_as_…` methods give the next one, or refuse."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from penstock.blobs.states import BLOB
from penstock.errors import InvalidInput

__all__ = ["BlobDescriptor", "BlobEvent", "Finding", "Hold", "Reference", "StoredBytes", "Swept", "UploadTicket"]

REASON_CHARS = 2000


@dataclass(frozen=True, slots=True)
class StoredBytes:
    """Bytes that are stored for good. `version` is what the storage says of these very bytes, if it can tell."""

    key: str
    size_bytes: int
    sha256: str
    version: str | None = None


@dataclass(frozen=True, slots=True)
class BlobDescriptor:
    """A blob as it is stored. Only the service writes it; each write raises its `revision`."""

    id: str
    file_name: str
    content_type: str
    created_by: str
    created_at: datetime
    expires_at: datetime | None  # when a blob that is not settled by then is given up
    tenant: str = ""
    status: str = BLOB.initial
    revision: int = 0
    lease_until: datetime | None = None  # whoever stores or checks the bytes has until then
    bytes_max: int | None = None
    expected_bytes: int | None = None
    expected_sha256: str | None = None
    size_bytes: int | None = None
    sha256: str | None = None
    storage_key: str | None = None
    storage_version: str | None = None
    has_bytes: bool = True  # whether the storage may hold bytes of it
    is_temporary: bool = False  # it is removed with the last operation that uses it
    validated_at: datetime | None = None
    rejected_at: datetime | None = None
    rejection_code: str | None = None
    rejection_reason: str | None = None
    deleted_at: datetime | None = None
    deletion_reason: str | None = None

    @property
    def is_settled(self) -> bool:
        """Whether it is Valid, Rejected or Deleted."""
        return BLOB.is_settled(self.status)

    @property
    def stored(self) -> StoredBytes:
        """Where the bytes of a Valid blob are, and what they are."""
        if self.status != "Valid" or self.storage_key is None or self.size_bytes is None or self.sha256 is None:
            raise InvalidInput(f"blob {self.id} is {self.status}; only Valid blobs can be read")
        return StoredBytes(self.storage_key, self.size_bytes, self.sha256, self.storage_version)

    def mark_as_uploading(self, *, lease_until: datetime | None = None) -> BlobDescriptor:
        """Bytes are being stored or checked."""
        return replace(self, status=self._after("uploading"), lease_until=lease_until)

    def mark_as_valid(self, at: datetime, stored: StoredBytes) -> BlobDescriptor:
        """The bytes were checked, and are sealed."""
        return replace(
            self,
            status=self._after("validated"),
            expires_at=None,
            lease_until=None,
            validated_at=at,
            size_bytes=stored.size_bytes,
            sha256=stored.sha256,
            storage_key=stored.key,
            storage_version=stored.version,
        )

    def mark_as_rejected(self, reason: str, *, at: datetime, code: str = "rejected") -> BlobDescriptor:
        """The bytes were checked and are not wanted."""
        return self._rejected("rejected", reason, at, code)

    def mark_as_expired(self, at: datetime) -> BlobDescriptor:
        """Nobody has sent or confirmed the bytes in time."""
        return self._rejected("expired", "the upload was not finished in time", at, "expired")

    def mark_as_deleted(self, at: datetime, reason: str) -> BlobDescriptor:
        """The bytes are not wanted any more, for a reason that is kept, such as "GDPR Art. 17"."""
        target = self._after("deleted")
        return replace(self, status=target, deleted_at=at, deletion_reason=given_reason(reason))

    def _rejected(self, event: str, reason: str, at: datetime, code: str) -> BlobDescriptor:
        return replace(
            self,
            status=self._after(event),
            expires_at=None,
            lease_until=None,
            rejected_at=at,
            rejection_code=code,
            rejection_reason=given_reason(reason),
        )

    def _after(self, event: str) -> str:
        return BLOB.after(self.status, event, subject=f"blob {self.id}")


def given_reason(reason: str) -> str:
    """The reason without white space around it; an empty one is refused, a very long one is cut."""
    if not reason.strip():
        raise InvalidInput("give the reason; it is kept for whoever asks later")
    return reason.strip()[:REASON_CHARS]


@dataclass(frozen=True, slots=True)
class UploadTicket:
    """Where the bytes of a new blob go. Without a `url` the storage takes none directly: use `blobs.receive`."""

    blob: BlobDescriptor
    expires_at: datetime
    url: str | None = None
    method: str = "PUT"
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Hold:
    """While there is one, the blob cannot be deleted."""

    name: str
    reason: str
    placed_by: str
    placed_at: datetime


@dataclass(frozen=True, slots=True)
class Reference:
    """Something that uses the blob, such as `operation:<id>`; the blob cannot be deleted meanwhile."""

    owner: str
    since: datetime


@dataclass(frozen=True, slots=True)
class BlobEvent:
    """One line of a blob's log."""

    sequence: int
    source: str | None
    event: str
    target: str
    at: datetime
    actor: str
    cause: str | None
    details: Mapping[str, Any] | None


@dataclass(slots=True)
class Swept:
    """What a sweep did: blobs that expired, objects that were removed, and bytes that should be there and are not.

    `missing` are Valid blobs without bytes that something still uses; those that nothing uses are deleted and counted.
    """

    expired: int = 0
    removed_objects: int = 0
    removed_bytes: int = 0
    deleted_without_bytes: int = 0
    missing: list[str] = field(default_factory=list)
    is_complete: bool = True


@dataclass(frozen=True, slots=True)
class Finding:
    """A difference between a blob's record and its log or bytes."""

    rule: str
    blob: str
    message: str
