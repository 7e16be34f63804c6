"""`penstock deliveries list|show|resend`: what was told to subscribers of events and to consumers of lifecycles."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.inputs import age
from penstock.cli.lifecycle_session import Tenant
from penstock.cli.options import Cursor, Db, Json, Limit, command, group
from penstock.cli.problems import WrongUsage
from penstock.cli.session import Place, ask
from penstock.errors import NotFound

if TYPE_CHECKING:
    from rich.console import RenderableType

    from penstock.engine import Penstock
    from penstock.lifecycles.model import Delivery as ConsumerDelivery
    from penstock.listing import Page
    from penstock.outbox.model import Delivery
    from penstock.resources import Document

    AnyDelivery = Delivery | ConsumerDelivery

__all__ = ["add_to"]

Consumer = Annotated[
    str | None,
    typer.Option("--consumer", metavar="NAME", help="Only those for this consumer, or the webhook with this id."),
]
OlderThan = Annotated[
    str | None,
    typer.Option("--older-than", metavar="AGE", help="Only those untouched for so long: 5m, 12h; s, m, h, d or w."),
]
WEBHOOKS, CONSUMERS = "w", "c"  # which list a cursor belongs to: that of webhooks comes first


def add_to(app: typer.Typer) -> None:
    """Add the commands."""
    made = group(
        app,
        "deliveries",
        summary="Look at what webhooks, handlers and consumers of lifecycles are told, and send it again.",
        example="deliveries list --state Failed",
    )
    command(made, "list", list_deliveries, example="deliveries list --state Failed")
    command(made, "show", show, example="deliveries show 0199a3c2-1b2f")
    command(made, "resend", resend, example="deliveries resend --failed --consumer billing")


def list_deliveries(
    *,
    state: Annotated[
        str | None,
        typer.Option("--state", metavar="STATE", help="Pending, Delivered, Processed, Failed or Cancelled."),
    ] = None,
    overdue: Annotated[bool, typer.Option("--overdue", help="Only those whose time to answer is over.")] = False,
    consumer: Consumer = None,
    older_than: OlderThan = None,
    tenant: Tenant = "",
    limit: Limit = 20,
    cursor: Cursor = None,
    db: Db = None,
    as_json: Json = False,
) -> None:
    """List deliveries: which event, and how far it is. Those of webhooks come first, each list oldest first."""
    from rich.text import Text

    from penstock import resources
    from penstock.cli import delivery_views, views
    from penstock.cli.screen import Screen

    wanted = None if older_than is None else age("--older-than", older_than)

    async def question(penstock: Penstock) -> Page[AnyDelivery]:
        return await _page(
            penstock,
            tenant,
            state=state,
            overdue=overdue,
            consumer=consumer,
            older_than=wanted,
            cursor=cursor or WEBHOOKS,
            limit=limit,
        )

    page = ask(Place(db), question)

    def people() -> Iterator[RenderableType]:
        yield delivery_views.deliveries(page.items) if page.items else Text("No delivery fits.", style="dim")
        yield from views.more(page.next_cursor)

    Screen(as_json=as_json).answer(lambda: resources.listing(page.items, _document, page.next_cursor), people)


async def _page(
    penstock: Penstock,
    tenant: str,
    *,
    state: str | None,
    overdue: bool,
    consumer: str | None,
    older_than: timedelta | None,
    cursor: str,
    limit: int,
) -> Page[AnyDelivery]:
    """A page of one list that is made of two."""
    from penstock.listing import Page

    kind, behind = cursor[:1], cursor[1:] or None
    if kind not in (WEBHOOKS, CONSUMERS):
        raise WrongUsage(f"{cursor!r} is no cursor of this list; pass the one that an earlier page printed")
    found: list[AnyDelivery] = []
    if kind == WEBHOOKS:
        some = await penstock.webhooks.tenant(tenant).deliveries(
            state=state, overdue=overdue, subscription=consumer, older_than=older_than, cursor=behind, limit=limit
        )
        found += some.items
        if some.next_cursor is not None:
            return Page(found, f"{WEBHOOKS}{some.next_cursor}")
        behind = None
    if len(found) == limit:
        return Page(found, CONSUMERS)
    rest = await penstock.lifecycles.tenant(tenant).deliveries.list(
        state=state,
        overdue=overdue,
        consumer=consumer,
        older_than=older_than,
        cursor=behind,
        limit=limit - len(found),
    )
    more = None if rest.next_cursor is None else f"{CONSUMERS}{rest.next_cursor}"
    return Page([*found, *rest.items], more)


def show(
    message: Annotated[str, typer.Argument(metavar="MESSAGE", help="The delivery, by its message id.")],
    *,
    tenant: Tenant = "",
    db: Db = None,
    as_json: Json = False,
) -> None:
    """Show one delivery: what is sent, to whom, and what came of the last attempts."""
    from penstock.cli import delivery_views
    from penstock.cli.screen import Screen

    async def question(penstock: Penstock) -> AnyDelivery:
        try:
            return await penstock.webhooks.tenant(tenant).delivery(message)
        except NotFound:
            return await penstock.lifecycles.tenant(tenant).deliveries.get(message)

    found = ask(Place(db), question)
    Screen(as_json=as_json).answer(lambda: _document(found, in_full=True), lambda: delivery_views.delivery(found))


def resend(
    message: Annotated[str | None, typer.Argument(metavar="MESSAGE", help="One delivery, by its message id.")] = None,
    *,
    failed: Annotated[bool, typer.Option("--failed", help="Those that were given up, with new attempts.")] = False,
    consumer: Consumer = None,
    older_than: OlderThan = None,
    tenant: Tenant = "",
    db: Db = None,
    as_json: Json = False,
) -> None:
    """Make deliveries due now: one, those that were given up, or those that have waited so long."""
    from rich.text import Text

    from penstock.cli.screen import Screen

    if message is None and not failed and older_than is None:
        raise WrongUsage("say which: a message id, --failed or --older-than")
    wanted = None if older_than is None else age("--older-than", older_than)

    async def question(penstock: Penstock) -> int:
        hooks, consumers = penstock.webhooks.tenant(tenant), penstock.lifecycles.tenant(tenant).deliveries
        if message is not None:
            try:
                return await hooks.resend(message)
            except NotFound:
                return await consumers.resend(message)
        told = await hooks.resend(subscription=consumer, older_than=wanted, failed=failed)
        return told + await consumers.resend(consumer=consumer, older_than=wanted, failed=failed)

    found = ask(Place(db), question)
    words = f"{found:,} {'delivery is' if found == 1 else 'deliveries are'} due now."
    Screen(as_json=as_json).answer(lambda: {"deliveries": found}, lambda: [Text(words)])


def _document(found: AnyDelivery, *, in_full: bool = False) -> Document:
    from penstock import lifecycle_resources, webhook_resources
    from penstock.outbox.model import Delivery

    if not isinstance(found, Delivery):
        return lifecycle_resources.delivery(found)
    return webhook_resources.delivery_in_full(found) if in_full else webhook_resources.delivery(found)
