"""Whether the process lives, and whether it can work: for load balancers, without a credential."""

from __future__ import annotations

import asyncio

from fastapi import Request, Response

from penstock.api.answers import JsonResponse
from penstock.api.routing import RouteTable
from penstock.db.upgrade import HEAD, revision_of
from penstock.errors import PenstockError

__all__ = ["ROUTES"]

ROUTES = RouteTable("health")

ANSWER_S = 5.0


@ROUTES.get("/health/live", role="public")
async def live() -> Response:
    """Whether the process answers at all."""
    return JsonResponse({"status": "live"})


@ROUTES.get("/health/ready", role="public")
async def ready(request: Request) -> Response:
    """Whether the database answers and has the schema of this release; 503 otherwise, without saying why."""
    try:
        async with asyncio.timeout(ANSWER_S), request.app.state.penstock.db.connection() as connection:
            is_ready = await revision_of(connection) == HEAD
    except (PenstockError, TimeoutError):
        is_ready = False
    return JsonResponse({"status": "ready" if is_ready else "unready"}, status_code=200 if is_ready else 503)
