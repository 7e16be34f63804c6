"""The guards, gates and effects that the definitions in this folder name: `--app examples/lifecycles/functions.py`."""

from __future__ import annotations

import logging
from collections.abc import Callable

from penstock.lifecycles import Delivery, Deny, GuardContext

log = logging.getLogger("examples.lifecycles")

RETURN_DAYS = 30


def in_stock(context: GuardContext) -> bool | Deny:
    """Everything the order wants is on the shelf."""
    missing = context.data.get("missing", [])
    return Deny(f"not in stock: {', '.join(missing)}") if missing else True


def within_return_window(context: GuardContext) -> bool | Deny:
    """Goods come back within a month."""
    days = context.metadata.get("days_since_delivery", 0)
    return True if days <= RETURN_DAYS else Deny(f"delivered {days} days ago; returns end after {RETURN_DAYS}")


def has_role(role: str) -> Callable[[GuardContext], bool | Deny]:
    """The actor is `role/name`."""

    def guard(context: GuardContext) -> bool | Deny:
        return True if context.actor.startswith(f"{role}/") else Deny(f"{context.actor} is no {role}")

    return guard


def within_budget(context: GuardContext) -> bool | Deny:
    """An offer leaves the applicant enough to live on."""
    rate = context.data["amount"] / context.data["term_months"]
    free = context.data.get("free_income", 0)
    return True if rate <= free / 2 else Deny(f"{rate:.0f} a month is more than half of {free}")


def four_eyes(context: GuardContext) -> bool | Deny:
    """Whoever pays a loan out is not the one who approved it."""
    return True if context.actor != context.data.get("approved_by") else Deny("somebody else has to pay it out")


def node_has_room(context: GuardContext) -> bool:
    """The node has memory left for the pod."""
    return bool(context.data.get("node_free_mb", 1024) >= context.data.get("memory_mb", 128))


def announce(delivery: Delivery) -> None:
    """What a real application would mail, book or call; the message id tells a second attempt from a second move."""
    log.info("%s: %s entered %s", delivery.message_id, delivery.entry.guid, delivery.entry.target)


guards = {
    "four_eyes": four_eyes,
    "in_stock": in_stock,
    "is_committee": has_role("committee"),
    "is_reviewer": has_role("reviewer"),
    "is_senior": has_role("senior"),
    "node_has_room": node_has_room,
    "within_budget": within_budget,
    "within_return_window": within_return_window,
}

effects = dict.fromkeys(
    (
        "acknowledge_receipt",
        "add_endpoint",
        "release_stock",
        "remove_endpoint",
        "reserve_stock",
        "send_adverse_action",
        "send_confirmation",
        "send_offer",
        "send_refund_note",
        "send_reminder",
        "send_sigterm",
        "send_tracking",
    ),
    announce,
)
