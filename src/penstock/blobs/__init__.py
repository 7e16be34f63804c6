"""Uploaded files, from the first byte to their deletion."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from penstock.blobs.checks.archives import ArchiveLimits
    from penstock.blobs.checks.policy import BlobPolicy
    from penstock.blobs.checks.text import TextLimits
    from penstock.blobs.model import BlobDescriptor, BlobEvent, Hold, Reference, Swept, UploadTicket
    from penstock.blobs.service import Blobs

__all__ = [
    "ArchiveLimits",
    "BlobDescriptor",
    "BlobEvent",
    "BlobPolicy",
    "Blobs",
    "Hold",
    "Reference",
    "Swept",
    "TextLimits",
    "UploadTicket",
]

# Imported when first asked for: who wants the table of states needs no database.
_HOMES = {
    "penstock.blobs.checks.archives": ("ArchiveLimits",),
    "penstock.blobs.checks.policy": ("BlobPolicy",),
    "penstock.blobs.checks.text": ("TextLimits",),
    "penstock.blobs.model": ("BlobDescriptor", "BlobEvent", "Hold", "Reference", "Swept", "UploadTicket"),
    "penstock.blobs.service": ("Blobs",),
}


def __getattr__(name: str) -> Any:
    for home, names in _HOMES.items():
        if name in names:
            value = globals()[name] = getattr(import_module(home), name)
            return value
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
