"""`penstock deliveries list|resend`: what consumers of lifecycles have been told, and have not answered."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

import typer

from penstock.cli.inputs import age
from penstock.cli.lifecycle_session import Tenant, ask_lifecycles
from penstock.cli.options import Cursor, Db, Json, Limit, command, group
from penstock.cli.problems import WrongUsage
from penstock.cli.session import Place

if TYPE_CHECKING:
    from rich.console import RenderableType

    from penstock.lifecycles.model import Delivery
    from penstock.lifecycles.service import Lifecycles
    from penstock.listing import Page

__all__ = ["add_to"]

Consumer = Annotated[str | None, typer.Option("--consumer", metavar="NAME", help="Only those for this consumer.")]
OlderThan = Annotated[
    str | None,
    typer.Option("--older-than", metavar="AGE", help="Only those untouched for so long: 5m, 12h; s, m, h, d or w."),
]


def add_to(app: typer.Typer) -> None:
    """Add the commands."""
    made = group(
        app,
        "deliveries",
        summary="Look at what consumers of lifecycles are told, and send it again.",
        example="deliveries list --state Failed",
    )
    command(made, "list", list_deliveries, example="deliveries list --state Failed")
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
    """List deliveries, oldest first: which move, for whom, and how far it is."""
    from rich.text import Text

    from penstock import lifecycle_resources, resources
    from penstock.cli import lifecycle_views, views
    from penstock.cli.screen import Screen

    wanted = None if older_than is None else age("--older-than", older_than)

    async def question(it: Lifecycles) -> Page[Delivery]:
        return await it.deliveries.list(
            state=state, overdue=overdue, consumer=consumer, older_than=wanted, cursor=cursor, limit=limit
        )

    page = ask_lifecycles(Place(db), tenant, question)

    def people() -> Iterator[RenderableType]:
        yield lifecycle_views.deliveries(page.items) if page.items else Text("No delivery fits.", style="dim")
        yield from views.more(page.next_cursor)

    Screen(as_json=as_json).answer(
        lambda: resources.listing(page.items, lifecycle_resources.delivery, page.next_cursor), people
    )


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

    async def question(it: Lifecycles) -> int:
        return await it.deliveries.resend(message, consumer=consumer, older_than=wanted, failed=failed)

    found = ask_lifecycles(Place(db), tenant, question)
    words = f"{found:,} {'delivery is' if found == 1 else 'deliveries are'} due now."
    Screen(as_json=as_json).answer(lambda: {"deliveries": found}, lambda: [Text(words)])
