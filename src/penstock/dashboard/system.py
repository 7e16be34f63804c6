"""The system: workers and leases, chunks, limits, the database, what `doctor` finds; and the built-in machines."""

from __future__ import annotations

from fastapi import Request
from starlette.responses import Response

from penstock.api.guard import Ask
from penstock.api.routing import RouteTable
from penstock.blobs.states import BLOB
from penstock.dashboard.diagrams import machine_picture
from penstock.dashboard.pages import page
from penstock.idempotency.states import IDEMPOTENCY_KEY
from penstock.operations.proof.doctor import diagnose
from penstock.operations.states import OPERATION, ROW_STEP
from penstock.outbox.states import DELIVERY

__all__ = ["MACHINES", "ROUTES"]

ROUTES = RouteTable("dashboard")
MACHINES = (OPERATION, ROW_STEP, DELIVERY, BLOB, IDEMPOTENCY_KEY)
TROUBLE = ("Failed", "TimedOut", "Rejected", "Indeterminate")


@ROUTES.get("/dashboard/system", role="read", include_in_schema=False)
async def system_page(request: Request, ask: Ask) -> Response:
    """Whether all is well, and who works on what."""
    penstock = ask.penstock
    return page(
        request,
        ask,
        "system.html",
        current="system_page",
        diagnosis=await diagnose(penstock.settings, penstock.clock),
        workload=await penstock.operations.workload(),
        settings=penstock.settings,
    )


@ROUTES.get("/dashboard/machines", role="read", include_in_schema=False)
async def machines_page(request: Request, ask: Ask) -> Response:
    """The built-in state machines, as diagrams and tables."""
    pictures = [(each, machine_picture(each, errors=set(TROUBLE) & set(each.states))) for each in MACHINES]
    return page(request, ask, "machines.html", current="system_page", machines=pictures)
