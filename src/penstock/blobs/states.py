"""What may happen to a blob; bytes that were never sent are never deleted, they expire."""

from __future__ import annotations

from penstock.machine import Machine

__all__ = ["BLOB"]

# fmt: off
BLOB = Machine.of(
    "blob",
    # from       event        to
    ("Pending",   "uploading", "Uploading"),
    ("Pending",   "expired",   "Rejected"),
    ("Uploading", "validated", "Valid"),
    ("Uploading", "rejected",  "Rejected"),
    ("Uploading", "expired",   "Rejected"),
    ("Valid",     "deleted",   "Deleted"),
    ("Rejected",  "deleted",   "Deleted"),
    settled=("Valid", "Rejected", "Deleted"),
)
# fmt: on
