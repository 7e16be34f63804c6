"""What consumers of lifecycles are told: how far each delivery is, and sending again."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import Body as BodyOf
from fastapi import Path, Query, Response
from pydantic import Field

from penstock import lifecycle_resources, resources
from penstock.api.answers import JsonResponse
from penstock.api.described import problems
from penstock.api.guard import Ask
from penstock.api.routing import RouteTable
from penstock.api.schemas import Body, ListOf

__all__ = ["ROUTES"]

ROUTES = RouteTable("deliveries")

MessageId = Annotated[str, Path(max_length=200)]


class AcknowledgeBody(Body):
    """How far the message came."""

    outcome: Literal["processed", "delivered"] = "processed"


class ResendBody(Body):
    """Which deliveries: those that were given up, or that have waited for so many seconds."""

    failed: bool = False
    older_than_s: float | None = Field(default=None, ge=0, le=1e9)
    consumer: str | None = Field(default=None, max_length=200)


@ROUTES.get("/api/deliveries", role="read", response_model=ListOf[dict[str, Any]], responses=problems(422))
async def list_deliveries(
    ask: Ask,
    *,
    state: Annotated[list[str] | None, Query(description="Only in this state; can be repeated.")] = None,
    consumer: Annotated[str | None, Query(max_length=200)] = None,
    overdue: bool = False,
    cursor: Annotated[str | None, Query(max_length=1000)] = None,
    limit: Annotated[int, Query(ge=1, le=1000)] = 100,
) -> Response:
    """Deliveries, oldest first: which move, for whom, and how far it is."""
    page = await ask.penstock.deliveries.list(
        state=state, consumer=consumer, overdue=overdue, cursor=cursor, limit=limit
    )
    return JsonResponse(resources.listing(page.items, lifecycle_resources.delivery, page.next_cursor))


@ROUTES.post("/api/deliveries/resend", role="operate", response_model=dict[str, int], responses=problems(413, 422))
async def resend_deliveries(ask: Ask, body: ResendBody) -> Response:
    """Make deliveries due now, and say how many."""
    found = await ask.penstock.deliveries.resend(
        consumer=body.consumer, older_than=body.older_than_s, failed=body.failed
    )
    return JsonResponse({"deliveries": found})


@ROUTES.post("/api/deliveries/{id}/resend", role="operate", response_model=dict[str, int], responses=problems(409))
async def resend_delivery(ask: Ask, id: MessageId) -> Response:
    """Make one delivery due now."""
    return JsonResponse({"deliveries": await ask.penstock.deliveries.resend(id)})


@ROUTES.post(
    "/api/deliveries/{id}/acknowledge",
    role="operate",
    response_model=dict[str, Any],
    responses=problems(409, 413, 422),
)
async def acknowledge_delivery(
    ask: Ask, id: MessageId, body: Annotated[AcknowledgeBody | None, BodyOf()] = None
) -> Response:
    """Say that a message was processed, or only delivered."""
    outcome = (body or AcknowledgeBody()).outcome
    return JsonResponse(lifecycle_resources.delivery(await ask.penstock.deliveries.acknowledge(id, outcome)))
