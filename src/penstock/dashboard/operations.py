"""The list of operations: live, filtered, searched, a page at a time."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from fastapi import Request
from starlette.responses import RedirectResponse, Response

from penstock.api.guard import Ask, Caller
from penstock.api.routing import RouteTable
from penstock.api.streaming import event_stream
from penstock.dashboard.live import Live, Scene, Update
from penstock.dashboard.pages import address, page, part, text_of
from penstock.operations.model import Operation, Page
from penstock.operations.states import OPERATION

__all__ = ["ROUTES", "live_of"]

ROUTES = RouteTable("dashboard")
PAGE = 25
SORTS = ("created_at", "name", "status", "total_rows")
ACTIVE = tuple(state for state in OPERATION.states if not OPERATION.is_settled(state))
GROUPS = {"active": ACTIVE, "troubled": ("CompletedWithErrors", "Failed")}


def live_of(request: Request) -> Live:
    """The scenes of this application."""
    found: Live = request.app.state.live
    return found


@ROUTES.get("/", role="public", include_in_schema=False)
async def start_page(request: Request) -> Response:
    """To the dashboard."""
    return RedirectResponse(address(request, "operations_page"), status_code=302)


@ROUTES.get("/dashboard", role="read", include_in_schema=False)
async def operations_page(request: Request, ask: Ask) -> Response:
    """Operations, newest first."""
    wanted = dict(request.query_params)
    found = await _found(ask, wanted)
    return page(
        request,
        ask,
        "operations.html",
        current="operations_page",
        wanted=wanted,
        found=found,
        states=OPERATION.states,
        names=sorted(definition.name for definition in ask.penstock.definitions.values()),
        counts=await _counts(ask),
        older=_with(request, wanted, cursor=found.next_cursor) if found.next_cursor else None,
        newest=_with(request, wanted, cursor=None) if wanted.get("cursor") else None,
        live=_live_address(request, wanted),
    )


@ROUTES.get("/dashboard/live", role="read", include_in_schema=False)
async def operations_live(request: Request, ask: Ask) -> Response:
    """The same, as it changes."""
    wanted = dict(request.query_params)

    async def render(scene: Scene) -> Update:
        found = await _found(ask, wanted)
        return Update(
            {
                "operations": part(request, "operations_rows.html", found=found, wanted=wanted),
                "counts": part(request, "operations_counts.html", counts=await _counts(ask), wanted=wanted),
            }
        )

    key = ("operations", ask.principal, tuple(sorted(wanted.items())))
    return event_stream(request, ask.principal, live_of(request).stream(key, render))


async def _found(ask: Caller, wanted: dict[str, str]) -> Page[Operation]:
    status = wanted.get("status", "")
    states = GROUPS.get(status) or ((status,) if status else None)
    sort = wanted.get("sort", "created_at")
    days = wanted.get("days", "")
    since = datetime.now(UTC) - timedelta(days=int(days)) if days.isdecimal() and len(days) < 5 else None
    filters: dict[str, Any] = {
        "name": text_of(wanted, "name"),
        "status": states,
        "created_by": text_of(wanted, "by"),
        "created_from": since,
        "sort": sort if sort in SORTS else "created_at",
        "descending": wanted.get("order") != "up",
        "cursor": text_of(wanted, "cursor"),
        "limit": PAGE,
    }
    return await ask.penstock.operations.list(**filters)


async def _counts(ask: Caller) -> dict[str, int]:
    """How many operations there are: all, under way, ended well, and with errors."""
    by_state = await ask.penstock.operations.count_by_status()
    return {
        "": sum(by_state.values()),
        "active": sum(by_state.get(state, 0) for state in ACTIVE),
        "Completed": by_state.get("Completed", 0),
        "CompletedWithErrors": by_state.get("CompletedWithErrors", 0),
        "Failed": by_state.get("Failed", 0),
        "Cancelled": by_state.get("Cancelled", 0),
    }


def _with(request: Request, wanted: dict[str, str], **changes: str | None) -> str:
    return address(request, "operations_page", **{**wanted, **changes})


def _live_address(request: Request, wanted: dict[str, str]) -> str:
    return address(request, "operations_live", **wanted)
