"""Whether the process lives, and whether it can work: for load balancers, without a credential."""

from __future__ import annotations

from fastapi import Response

from penstock.api.answers import JsonResponse
from penstock.api.guard import Ask
from penstock.api.routing import RouteTable

__all__ = ["ROUTES"]

ROUTES = RouteTable("health")


@ROUTES.get("/health/live", role="public")
async def live() -> Response:
    """Whether the process answers at all."""
    return JsonResponse({"status": "live"})


@ROUTES.get("/health/ready", role="public")
async def ready(ask: Ask) -> Response:
    """Whether the database answers."""
    async with ask.penstock.db.read():
        return JsonResponse({"status": "ready"})
