"""Deliveries and webhooks for people."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from rich.console import RenderableType
from rich.text import Text

from penstock.cli import views
from penstock.cli.tables import FittedTable, table
from penstock.lifecycles.model import Delivery as ConsumerDelivery
from penstock.outbox.model import Delivery, Subscription
from penstock.printable import cut, moment, printable, short_moment

__all__ = ["deliveries", "delivery", "webhook", "webhooks"]

DETAIL_CHARS = 200
AnyDelivery = Delivery | ConsumerDelivery


def deliveries(found: Sequence[AnyDelivery]) -> FittedTable:
    """Deliveries, one to a line."""
    return table(
        "MESSAGE", "STATE", "ATTEMPTS", "EVENT", "DUE", "ERROR",
        rows=[
            (
                _message(d), d.state, f"{d.attempts}/{d.attempts_max}", _event(d),
                "" if d.due_at is None else short_moment(d.due_at), cut(d.error or "", DETAIL_CHARS),
            )
            for d in found
        ],
        may_go=("DUE", "EVENT"),
    )  # fmt: skip


def delivery(found: AnyDelivery) -> Iterator[RenderableType]:
    """One delivery, with its last attempts where they are kept."""
    facts: dict[str, Any] = {
        "Message": _message(found),
        "To": found.subscription if isinstance(found, Delivery) else found.consumer,
        "Event": _event(found),
        "About": found.subject if isinstance(found, Delivery) else found.entry.guid,
        "State": found.state,
        "Attempts": f"{found.attempts} of {found.attempts_max}",
        "Due": "" if found.due_at is None else moment(found.due_at),
        "Error": found.error,
        "Created": moment(found.created_at),
    }
    yield views.facts(facts)
    if isinstance(found, Delivery) and found.log:
        yield Text()
        rows = [
            (moment(each.at), str(each.status or ""), f"{each.duration_ms:,} ms", each.error or "taken")
            for each in found.log
        ]
        yield table("ATTEMPT", "ANSWER", "TOOK", "RESULT", rows=rows)


def webhooks(found: Sequence[Subscription]) -> FittedTable:
    """Subscriptions, one to a line."""
    return table(
        "ID", "STATE", "CHANNEL", "EVENTS", "OPERATION", "URL",
        rows=[(w.id, w.state, w.channel, _types(w), w.operation or "", w.url) for w in found],
        may_go=("OPERATION", "EVENTS", "CHANNEL"),
    )  # fmt: skip


def webhook(found: Subscription, secret: str | None) -> Iterator[RenderableType]:
    """One subscription; with its secret when it is new."""
    yield views.facts(
        {
            "Webhook": found.id,
            "Channel": found.channel,
            "URL": found.url,
            "Events": ", ".join(found.types),
            "Operation": found.operation,
            "State": found.state,
            "Reason": found.reason,
            "Secret": secret,
        }
    )
    if secret is not None:
        yield Text("\nKeep the secret where the receiver finds it: it is not shown again.", style="yellow")


def _types(found: Subscription) -> str:
    first, *others = found.types
    return first if not others else f"{first} and {len(others)} more"


def _message(found: AnyDelivery) -> str:
    return found.id if isinstance(found, Delivery) else found.message_id


def _event(found: AnyDelivery) -> str:
    if isinstance(found, Delivery):
        return printable(found.type)
    return f"{found.entry.source} → {found.entry.target}"
