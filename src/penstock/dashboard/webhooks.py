"""Webhooks: who is told of events, and each delivery with its attempts; send some again."""

from __future__ import annotations

from fastapi import Request
from starlette.responses import Response

from penstock.api.guard import Ask
from penstock.api.routing import RouteTable
from penstock.dashboard.pages import address, back_to, page, text_of
from penstock.errors import InvalidInput
from penstock.outbox.states import DELIVERY

__all__ = ["ROUTES"]

ROUTES = RouteTable("dashboard")
PAGE = 50


@ROUTES.get("/dashboard/webhooks", role="tenant", include_in_schema=False)
async def webhooks_page(request: Request, ask: Ask) -> Response:
    """Subscriptions, and what was and is to be sent to them."""
    wanted, service = dict(request.query_params), ask.penstock.webhooks
    found = await service.deliveries(
        state=text_of(wanted, "state"),
        subscription=text_of(wanted, "subscription"),
        subject=text_of(wanted, "subject"),
        overdue=wanted.get("overdue") == "1",
        cursor=text_of(wanted, "cursor"),
        limit=PAGE,
    )
    subscriptions = (await service.list(limit=PAGE)).items

    def with_(cursor: str | None) -> str:
        return address(request, "webhooks_page", **{**wanted, "cursor": cursor})

    return page(
        request,
        ask,
        "webhooks.html",
        current="webhooks_page",
        wanted=wanted,
        found=found,
        subscriptions=subscriptions,
        counts=await service.counts(),
        names={each.id: each.url for each in subscriptions},
        states=DELIVERY.states,
        more=with_(found.next_cursor) if found.next_cursor else None,
        first=with_(None) if wanted.get("cursor") else None,
    )


@ROUTES.post("/dashboard/webhooks/resend", role="tenant", include_in_schema=False)
async def webhooks_resend(request: Request, ask: Ask) -> Response:
    """Make deliveries due now: those that were chosen, or all that have failed."""
    form, service = await request.form(), ask.penstock.webhooks
    chosen = [str(each) for each in form.getlist("delivery")]
    if form.get("do") == "failed":
        count = await service.resend(failed=True)
    elif chosen:
        count = sum([await service.resend(each) for each in chosen])
    else:
        raise InvalidInput("choose at least one delivery")
    return back_to(request, "webhooks_page", f"{count:,} {'delivery is' if count == 1 else 'deliveries are'} due now.")
