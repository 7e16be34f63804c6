"""`penstock webhooks add|list|show|remove|enable|disable|rotate|test`: who is told of events."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.options import Cursor, Db, Json, Limit, command, group
from penstock.cli.session import Place, ask

if TYPE_CHECKING:
    from rich.console import RenderableType

    from penstock.outbox.model import NewSubscription, Subscription

__all__ = ["add_to"]

Tenant = Annotated[str, typer.Option("--tenant", metavar="NAME", help="The tenant whose webhooks are meant.")]
Id = Annotated[str, typer.Argument(metavar="ID", help="The webhook's id, or its first 8 characters or more.")]


def add_to(app: typer.Typer) -> None:
    """Add the commands."""
    made = group(
        app,
        "webhooks",
        summary="Tell other systems of what happens: webhooks, Slack-style messages and e-mails.",
        example="webhooks add https://example.com/hook",
    )
    command(made, "add", add, example="webhooks add https://example.com/hook --type 'penstock.operation.*'")
    command(made, "list", list_webhooks, example="webhooks list")
    command(made, "show", show, example="webhooks show 0199a3c2-1b2f")
    command(made, "test", send_test, example="webhooks test 0199a3c2-1b2f")
    command(made, "rotate", rotate, example="webhooks rotate 0199a3c2-1b2f")
    command(made, "disable", disable, example="webhooks disable 0199a3c2-1b2f")
    command(made, "enable", enable, example="webhooks enable 0199a3c2-1b2f")
    command(made, "remove", remove, example="webhooks remove 0199a3c2-1b2f")


def add(
    url: Annotated[
        str,
        typer.Argument(metavar="URL", help="https://… for signed events, slack+https://… or mailto:… for messages."),
    ],
    *,
    types: Annotated[
        list[str] | None,
        typer.Option("--type", metavar="TYPE", help="Events to tell of; * stands for any text; repeatable."),
    ] = None,
    operation: Annotated[
        str | None, typer.Option("--operation", metavar="NAME", help="Only operations of this name.")
    ] = None,
    tenant: Tenant = "",
    db: Db = None,
    as_json: Json = False,
) -> None:
    """Tell an address of events from now on. Its secret is printed once."""
    from penstock.outbox.service import OPERATIONS

    made = ask(
        Place(db),
        lambda penstock: penstock.webhooks.tenant(tenant).add(url, types=types or OPERATIONS, operation=operation),
    )
    _answer_new(made, as_json=as_json)


def list_webhooks(
    tenant: Tenant = "", limit: Limit = 20, cursor: Cursor = None, db: Db = None, as_json: Json = False
) -> None:
    """List webhooks and handlers, but for those of single operations."""
    from rich.text import Text

    from penstock import resources, webhook_resources
    from penstock.cli import delivery_views, views
    from penstock.cli.screen import Screen

    page = ask(Place(db), lambda penstock: penstock.webhooks.tenant(tenant).list(cursor=cursor, limit=limit))

    def people() -> Iterator[RenderableType]:
        yield delivery_views.webhooks(page.items) if page.items else Text("No webhooks.", style="dim")
        yield from views.more(page.next_cursor)

    Screen(as_json=as_json).answer(
        lambda: resources.listing(page.items, webhook_resources.subscription, page.next_cursor), people
    )


def show(webhook: Id, tenant: Tenant = "", db: Db = None, as_json: Json = False) -> None:
    """Show a webhook."""
    _answer(ask(Place(db), lambda penstock: penstock.webhooks.tenant(tenant).get(webhook)), as_json=as_json)


def send_test(webhook: Id, tenant: Tenant = "", db: Db = None, as_json: Json = False) -> None:
    """Send one test event now, and say what came of it.

    Exits with 0 when it was taken, with 1 when not.
    """
    from penstock import webhook_resources
    from penstock.cli import delivery_views
    from penstock.cli.screen import Screen

    found = ask(Place(db), lambda penstock: penstock.webhooks.tenant(tenant).test(webhook))
    Screen(as_json=as_json).answer(
        lambda: webhook_resources.delivery_in_full(found), lambda: delivery_views.delivery(found)
    )
    raise typer.Exit(0 if found.state == "Processed" else 1)


def rotate(
    webhook: Id,
    keep: Annotated[
        str, typer.Option("--keep", metavar="AGE", help="Sign with the old secret too for so long: 12h, 7d.")
    ] = "1d",
    tenant: Tenant = "",
    db: Db = None,
    as_json: Json = False,
) -> None:
    """Sign with a new secret, which is printed once, and for a while with the old one too."""
    from penstock.cli.inputs import age

    span = age("--keep", keep)
    made = ask(Place(db), lambda penstock: penstock.webhooks.tenant(tenant).rotate_secret(webhook, keep=span))
    _answer_new(made, as_json=as_json)


def disable(webhook: Id, tenant: Tenant = "", db: Db = None, as_json: Json = False) -> None:
    """Tell a webhook of nothing for now; what it was not told yet is cancelled."""
    _answer(ask(Place(db), lambda penstock: penstock.webhooks.tenant(tenant).disable(webhook)), as_json=as_json)


def enable(webhook: Id, tenant: Tenant = "", db: Db = None, as_json: Json = False) -> None:
    """Tell a disabled webhook of events again, of those from now on."""
    _answer(ask(Place(db), lambda penstock: penstock.webhooks.tenant(tenant).enable(webhook)), as_json=as_json)


def remove(webhook: Id, tenant: Tenant = "", db: Db = None, as_json: Json = False) -> None:
    """Remove a webhook; what it was not told yet is cancelled."""
    from rich.text import Text

    from penstock.cli.screen import Screen

    cancelled = ask(Place(db), lambda penstock: penstock.webhooks.tenant(tenant).remove(webhook))
    said = f"The webhook is removed, and {cancelled:,} of its deliveries {'is' if cancelled == 1 else 'are'} cancelled."
    Screen(as_json=as_json).answer(lambda: {"cancelled": cancelled}, lambda: [Text(said)])


def _answer(found: Subscription, *, as_json: bool) -> None:
    from penstock import webhook_resources
    from penstock.cli import delivery_views
    from penstock.cli.screen import Screen

    Screen(as_json=as_json).answer(
        lambda: webhook_resources.subscription(found), lambda: delivery_views.webhook(found, None)
    )


def _answer_new(made: NewSubscription, *, as_json: bool) -> None:
    from penstock import webhook_resources
    from penstock.cli import delivery_views
    from penstock.cli.screen import Screen

    Screen(as_json=as_json).answer(
        lambda: webhook_resources.new_subscription(made),
        lambda: delivery_views.webhook(made.subscription, made.secret),
    )
