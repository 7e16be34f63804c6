"""Which uploads are taken: an ordered list of checks, of which the first refusal counts."""

from __future__ import annotations

import unicodedata
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import BinaryIO

from penstock.blobs.checks.archives import ArchiveLimits, check_archive
from penstock.blobs.checks.text import TextLimits, check_text
from penstock.blobs.checks.types import KNOWN, READABLE, kind_of_bytes
from penstock.blobs.checks.upload import Rejection, Upload

__all__ = ["CHECKS", "BlobPolicy", "Scanner", "inspect"]

GIB = 1024**3
NAME_CHARS = 255
TAIL_BYTES = 1024

Scanner = Callable[[BinaryIO], str | Awaitable[str | None] | None]


@dataclass(frozen=True)
class BlobPolicy:
    """What may be uploaded. `types` are content types; None takes all, and looks into those it knows.

    `scanner` is called last with the bytes, on a thread unless it is async; what it returns is the reason to refuse.
    """

    types: tuple[str, ...] | None = READABLE
    bytes_max: int | None = GIB
    text: TextLimits = field(default_factory=TextLimits)
    archives: ArchiveLimits = field(default_factory=ArchiveLimits)
    scanner: Scanner | None = None


def check_name(policy: BlobPolicy, upload: Upload) -> Rejection | None:
    """The file name is text that can be shown; it is never used as a path."""
    name = upload.file_name
    if not name.strip() or len(name) > NAME_CHARS:
        return Rejection("file_name", f"a file name has 1 to {NAME_CHARS} characters; this one has {len(name)}")
    if any(unicodedata.category(character) in ("Cc", "Cf", "Cs", "Zl", "Zp") for character in name):
        return Rejection("file_name", f"the file name {name!r:.80} has characters that cannot be seen")
    if "/" in name or "\\" in name or name in (".", ".."):
        return Rejection("file_name", f"the file name {name!r:.80} is a path; give the name alone")
    return None


def check_type(policy: BlobPolicy, upload: Upload) -> Rejection | None:
    """The type is wanted, and the extension is one of its own."""
    found = upload.content_type
    if policy.types is not None and found not in policy.types:
        return Rejection("type_not_allowed", f"files of type {found} are not taken; taken: {', '.join(policy.types)}")
    known = KNOWN.get(found)
    extension = PurePosixPath(upload.file_name).suffix.lower()
    if known is not None and extension and extension not in known.extensions:
        wanted = ", ".join(known.extensions)
        return Rejection("extension", f"a file of type {found} ends with {wanted}; {upload.file_name!r} does not")
    return None


def check_signature(policy: BlobPolicy, upload: Upload) -> Rejection | None:
    """The bytes begin, and end, as those of the type do."""
    known, head = KNOWN.get(upload.content_type), upload.head()
    if known is None:
        return None
    if known.text is not None:
        kind = kind_of_bytes(head)
        return None if kind is None else Rejection("wrong_type", f"the file is {kind}, not {upload.content_type}")
    if not head.startswith(known.starts):
        return Rejection("wrong_type", f"the file does not begin as {upload.content_type} does")
    if known.ends and known.ends not in upload.tail(min(TAIL_BYTES, max(0, upload.size_bytes - len(known.starts[0])))):
        return Rejection("cut_off", f"the file does not end as {upload.content_type} does; it was cut off")
    return None


def check_size(policy: BlobPolicy, upload: Upload) -> Rejection | None:
    """There are bytes, as many as were announced, and not too many."""
    if upload.size_bytes == 0:
        return Rejection("empty", "the file is empty")
    most = upload.bytes_max
    if most is not None and upload.size_bytes > most:
        return Rejection("too_large", f"the file has {upload.size_bytes:,} bytes; at most {most:,} are taken")
    if upload.expected_bytes not in (None, upload.size_bytes):
        return Rejection(
            "size", f"the file has {upload.size_bytes:,} bytes where {upload.expected_bytes:,} were announced"
        )
    return None


def check_digest(policy: BlobPolicy, upload: Upload) -> Rejection | None:
    """The bytes are those that were announced."""
    if upload.expected_sha256 in (None, upload.sha256):
        return None
    return Rejection("digest", f"the file has the SHA-256 {upload.sha256}; announced was {upload.expected_sha256}")


def check_shape(policy: BlobPolicy, upload: Upload) -> Rejection | None:
    """Text is text of its kind; an archive expands to what can be handled."""
    known = KNOWN.get(upload.content_type)
    if known is not None and known.text is not None:
        return check_text(upload, known.text, policy.text)
    if known is not None and known.archive is not None:
        return check_archive(upload, known.archive, policy.archives)
    return None


CHECKS = (check_name, check_type, check_signature, check_size, check_digest, check_shape)


def inspect(policy: BlobPolicy, upload: Upload) -> Rejection | None:
    """The first refusal, if any; the scanner is asked by the caller."""
    return next((found for check in CHECKS if (found := check(policy, upload)) is not None), None)
