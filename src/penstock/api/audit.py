"""The audit log of the caller's tenant."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Query, Response

from penstock.access_resources import audit_entry
from penstock.api.answers import JsonResponse
from penstock.api.described import problems
from penstock.api.guard import Ask
from penstock.api.routing import RouteTable
from penstock.api.schemas import ListOf
from penstock.resources import listing

__all__ = ["ROUTES"]

ROUTES = RouteTable("audit")


@ROUTES.get("/api/audit", role="tenant", response_model=ListOf[dict[str, Any]], responses=problems(422))
async def list_audit_entries(
    ask: Ask,
    subject: Annotated[str | None, Query(max_length=64, description="Only what was done to this.")] = None,
    actor: Annotated[str | None, Query(max_length=200, description="Only what they did.")] = None,
    cursor: Annotated[str | None, Query(max_length=100, description="The nextCursor of the part before.")] = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
) -> Response:
    """Who did what, newest first. `penstock verify` shows that nothing in it was changed."""
    found = await ask.penstock.audit.list(subject=subject, actor=actor, cursor=cursor, limit=limit)
    return JsonResponse(listing(found.items, audit_entry, found.next_cursor))
