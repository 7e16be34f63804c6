"""Deliveries: what was and is to be told to others; look into one, and send it again."""

from __future__ import annotations

from fastapi import Request
from starlette.responses import Response

from penstock.api.guard import Ask
from penstock.api.routing import RouteTable
from penstock.dashboard.pages import address, back_to, page, text_of
from penstock.errors import InvalidInput
from penstock.outbox.states import DELIVERY
from penstock.printable import counted

__all__ = ["ROUTES"]

ROUTES = RouteTable("dashboard")
PAGE = 50


@ROUTES.get("/dashboard/deliveries", role="read", include_in_schema=False)
async def deliveries_page(request: Request, ask: Ask) -> Response:
    """Deliveries, with the attempts that were made."""
    wanted = dict(request.query_params)
    service = ask.penstock.deliveries
    found = await service.list(
        state=text_of(wanted, "state"),
        consumer=text_of(wanted, "consumer"),
        overdue=wanted.get("overdue") == "1",
        cursor=text_of(wanted, "cursor"),
        limit=PAGE,
    )
    return page(
        request,
        ask,
        "deliveries.html",
        current="deliveries_page",
        wanted=wanted,
        found=found,
        consumers=await service.consumers(),
        states=DELIVERY.states,
        more=address(request, "deliveries_page", **{**wanted, "cursor": found.next_cursor})
        if found.next_cursor
        else None,
        first=address(request, "deliveries_page", **{**wanted, "cursor": None}) if wanted.get("cursor") else None,
    )


@ROUTES.post("/dashboard/deliveries/resend", role="operate", include_in_schema=False)
async def deliveries_resend(request: Request, ask: Ask) -> Response:
    """Make deliveries due now: those that were chosen, or all that have failed."""
    form = await request.form()
    service = ask.penstock.deliveries
    chosen = [str(each) for each in form.getlist("message")]
    if form.get("do") == "failed":
        count = await service.resend(failed=True, consumer=text_of(form, "consumer"))
    elif chosen:
        count = sum([await service.resend(message) for message in chosen])
    else:
        raise InvalidInput("choose at least one delivery")
    said = counted(count, "delivery").replace("deliverys", "deliveries")
    return back_to(request, "deliveries_page", f"{said} due now.")
