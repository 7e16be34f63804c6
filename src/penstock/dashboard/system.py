"""The system: workers and leases, chunks, limits, the database, what `doctor` finds; and the built-in machines."""

from __future__ import annotations

from fastapi import Request
from starlette.responses import Response

from penstock.api.guard import Ask
from penstock.api.routing import RouteTable
from penstock.dashboard.diagrams import machine_picture
from penstock.dashboard.pages import page
from penstock.machines import built_in

__all__ = ["ROUTES"]

ROUTES = RouteTable("dashboard")
TROUBLE = ("Failed", "TimedOut", "Rejected", "Indeterminate")


@ROUTES.get("/dashboard/system", role="system", include_in_schema=False)
async def system_page(request: Request, ask: Ask) -> Response:
    """Whether all is well, and who works on what."""
    penstock = ask.penstock
    return page(
        request,
        ask,
        "system.html",
        current="system_page",
        diagnosis=await penstock.diagnose(),
        workload=await penstock.operations.workload(),
        settings=penstock.settings,
    )


@ROUTES.get("/dashboard/machines", role="read", include_in_schema=False)
async def machines_page(request: Request, ask: Ask) -> Response:
    """The built-in state machines, as diagrams and tables."""
    pictures = [(each, machine_picture(each, errors=set(TROUBLE) & set(each.states))) for each in built_in().values()]
    return page(request, ask, "machines.html", current="machines_page", machines=pictures)
