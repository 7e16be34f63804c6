"""Idempotency keys, for those who look after them."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Path, Query, Response

from penstock import resources
from penstock.access.audit import Act
from penstock.api.answers import JsonResponse
from penstock.api.described import problems
from penstock.api.guard import Ask
from penstock.api.routing import RouteTable
from penstock.api.schemas import ListOf
from penstock.errors import NotFound

__all__ = ["ROUTES"]

ROUTES = RouteTable("idempotency")

Key = Annotated[str, Path(max_length=255)]
Callers = Annotated[
    list[str] | None, Query(alias="caller", description="Whose key: tenant and name, as two values; default: your own.")
]


@ROUTES.get("/api/idempotency", role="system", response_model=ListOf[dict[str, Any]], responses=problems(422))
async def list_unsettled_keys(ask: Ask, limit: Annotated[int, Query(ge=1, le=1000)] = 100) -> Response:
    """Keys whose request was cut off: nobody knows whether it was carried out."""
    return JsonResponse(resources.listing(await ask.penstock.idempotency.unsettled(limit), resources.idempotency_key))


@ROUTES.get("/api/idempotency/{key}", role="tenant", response_model=dict[str, Any], responses=problems(422))
async def get_idempotency_key(ask: Ask, key: Key, caller: Callers = None) -> Response:
    """The state of a key and how long it is kept."""
    found = await ask.penstock.idempotency.get(key, scope=_scope(ask, caller))
    if found is None:
        raise NotFound(f"idempotency key {key!r} is free: this caller has not used it, or it was kept for long enough")
    return JsonResponse(resources.idempotency_key(found))


@ROUTES.delete("/api/idempotency/{key}", role="tenant", response_model=dict[str, Any], responses=problems(409, 422))
async def forget_idempotency_key(ask: Ask, key: Key, caller: Callers = None) -> Response:
    """Make a key free, so that its request can be carried out again; refused while one with it runs."""
    scope = _scope(ask, caller)
    is_forgotten = await ask.penstock.idempotency.forget(key, scope=scope)
    if is_forgotten:
        act = Act(ask.principal.tenant, ask.name, "idempotency-key.forget", key, {"caller": scope[-1]})
        await ask.penstock.audit.note(act)
    return JsonResponse({"key": key, "wasForgotten": is_forgotten})


def _scope(ask: Ask, caller: list[str] | None) -> tuple[str, ...]:
    if not caller:
        return (ask.principal.tenant, ask.principal.name)
    if caller[0] != ask.principal.tenant:
        raise NotFound("no such caller: keys are those of your own tenant")
    return tuple(caller)
