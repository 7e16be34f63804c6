"""Metrics for Prometheus."""

from __future__ import annotations

from fastapi import Request, Response

from penstock.api.routing import RouteTable
from penstock.telemetry.exposition import CONTENT_TYPE, Exposition

__all__ = ["ROUTES"]

ROUTES = RouteTable("system")


@ROUTES.get("/metrics", role="monitor", include_in_schema=False)
async def get_metrics(request: Request) -> Response:
    """How the installation is doing, in numbers."""
    metrics: Exposition = request.app.state.metrics
    return Response(await metrics.text(), media_type=CONTENT_TYPE)
