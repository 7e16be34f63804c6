"""Blobs: stored bytes and what became of them."""

from __future__ import annotations

from fastapi import Request
from starlette.responses import Response

from penstock.api.guard import Ask
from penstock.api.routing import RouteTable
from penstock.dashboard.pages import page

__all__ = ["ROUTES"]

ROUTES = RouteTable("dashboard")


@ROUTES.get("/dashboard/blobs", role="read", include_in_schema=False)
async def blobs_page(request: Request, ask: Ask) -> Response:
    """Stored bytes."""
    return page(request, ask, "blobs.html", current="blobs_page")
