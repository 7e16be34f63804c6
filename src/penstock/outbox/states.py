"""What may happen to a delivery on its way to a consumer, and how a subscription stands."""

from __future__ import annotations

from penstock.machine import Machine

__all__ = ["ACTIVE", "DELIVERY", "DISABLED", "SUBSCRIPTION_STATES"]

# fmt: off
DELIVERY = Machine.of(
    "delivery",
    # from       event        to
    ("Pending",   "delivered", "Delivered"),
    ("Pending",   "processed", "Processed"),
    ("Pending",   "failed",    "Failed"),
    ("Pending",   "cancelled", "Cancelled"),
    ("Delivered", "processed", "Processed"),
    ("Delivered", "failed",    "Failed"),
    ("Delivered", "cancelled", "Cancelled"),
    ("Failed",    "resent",    "Pending"),
    settled=("Processed", "Failed", "Cancelled"),
)
# fmt: on

SUBSCRIPTION_STATES = ACTIVE, DISABLED = "Active", "Disabled"
