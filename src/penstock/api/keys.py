"""API keys of the caller's tenant: made, listed, revoked by admins."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Annotated, Any

from fastapi import Path, Query, Response
from pydantic import BaseModel, ConfigDict, Field

from penstock.access.model import NAME_CHARS, Role
from penstock.access_resources import api_key
from penstock.api.answers import JsonResponse
from penstock.api.described import problems
from penstock.api.guard import Ask
from penstock.api.routing import RouteTable
from penstock.api.schemas import ListOf

__all__ = ["ROUTES"]

ROUTES = RouteTable("keys")

DAYS_MAX = 36_500


class NewKey(BaseModel):
    """What a new key may do; its tenant is that of who makes it."""

    model_config = ConfigDict(extra="forbid")

    name: str = Field(min_length=1, max_length=NAME_CHARS, description="Whose key it is.")
    role: Role = "read"
    operations: list[str] | None = Field(default=None, max_length=1000, description="Only these; null for all.")
    expiresInDays: float | None = Field(default=None, gt=0, le=DAYS_MAX)  # its name in JSON


@ROUTES.get("/api/keys", role="tenant", response_model=ListOf[dict[str, Any]], responses=problems(422))
async def list_keys(
    ask: Ask,
    cursor: Annotated[str | None, Query(max_length=100, description="The nextCursor of the part before.")] = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
) -> Response:
    """Keys with what they may do and when they were last used, oldest first; never the keys themselves."""
    found = await ask.penstock.keys.list(tenant=ask.principal.tenant, after=cursor, limit=limit + 1)
    items = [api_key(key, now=_now()) for key in found[:limit]]
    return JsonResponse({"items": items, "nextCursor": found[limit - 1].id if len(found) > limit else None})


@ROUTES.post(
    "/api/keys",
    role="tenant",
    is_answer_kept=False,
    status_code=201,
    response_model=dict[str, Any],
    responses=problems(422),
)
async def create_key(ask: Ask, body: NewKey) -> Response:
    """Make a key. `key` is shown this once: only a hash of it is stored."""
    lasts = None if body.expiresInDays is None else timedelta(days=body.expiresInDays)
    made, text = await ask.penstock.keys.create(
        body.name, role=body.role, operations=body.operations, tenant=ask.principal.tenant, lasts=lasts, actor=ask.name
    )
    return JsonResponse(api_key(made, now=_now(), text=text), status_code=201)


@ROUTES.delete("/api/keys/{id}", role="tenant", response_model=dict[str, Any], responses=problems(404))
async def revoke_key(ask: Ask, id: Annotated[str, Path(max_length=100)]) -> Response:
    """Revoke a key. Every server refuses it within 5 seconds."""
    found = await ask.penstock.keys.revoke(id, tenant=ask.principal.tenant, actor=ask.name)
    return JsonResponse(api_key(found, now=_now()))


def _now() -> datetime:
    return datetime.now(UTC)
