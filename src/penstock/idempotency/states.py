"""What may happen to an idempotency key."""

from __future__ import annotations

from penstock.machine import Machine

__all__ = ["IDEMPOTENCY_KEY"]

# fmt: off
IDEMPOTENCY_KEY = Machine.of(
    "idempotency key",
    # from           event            to
    ("Absent",        "claimed",       "InProgress"),
    ("InProgress",    "completed",     "Completed"),
    ("InProgress",    "released",      "Absent"),          # the handler failed with a 5xx
    ("InProgress",    "lease_expired", "Indeterminate"),
    ("Indeterminate", "completed",     "Completed"),       # the late owner, by its token
    ("Indeterminate", "released",      "Absent"),
    ("Completed",     "expired",       "Absent"),
    settled=("Completed", "Absent"),
)
# fmt: on
