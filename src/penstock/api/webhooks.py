"""Who is told of events, and what became of it; for admins of a tenant, because webhooks tell of all that is its."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Body as BodyOf
from fastapi import Path, Query, Response
from pydantic import Field

from penstock import resources, webhook_resources
from penstock.api.answers import JsonResponse
from penstock.api.described import problems
from penstock.api.guard import Ask
from penstock.api.routing import RouteTable
from penstock.api.schemas import Body, ListOf
from penstock.outbox.events import TYPES_MAX
from penstock.outbox.service import OPERATIONS

__all__ = ["ROUTES"]

ROUTES = RouteTable("webhooks")

Id = Annotated[str, Path(max_length=200)]
Cursor = Annotated[str | None, Query(max_length=200, description="The nextCursor of the part before.")]
Limit = Annotated[int, Query(ge=1, le=1000)]
Document = dict[str, Any]


class NewWebhook(Body):
    """Where events are sent to, and which."""

    url: str = Field(max_length=2000, description="https://… for signed events, slack+https://… or mailto:…")
    types: list[str] = Field(default=list(OPERATIONS), min_length=1, max_length=TYPES_MAX)
    operation: str | None = Field(default=None, max_length=100, description="Only operations of this name.")
    secret: str | None = Field(default=None, max_length=200, description="whsec_…; one is made if it is left out.")


class RotateBody(Body):
    """For how long the old secret signs too."""

    keep_s: float = Field(default=86_400, ge=0, le=30 * 86_400)


class ResendWebhooksBody(Body):
    """Which deliveries: those that were given up, or that have waited for so many seconds."""

    failed: bool = False
    older_than_s: float | None = Field(default=None, ge=0, le=1e9)
    webhook: str | None = Field(default=None, max_length=120)


@ROUTES.get("/api/webhooks", role="tenant", response_model=ListOf[Document], responses=problems(422))
async def list_webhooks(ask: Ask, cursor: Cursor = None, limit: Limit = 100) -> Response:
    """Webhooks, e-mails, chats and handlers, but for those of single operations; never their secrets."""
    page = await ask.penstock.webhooks.list(cursor=cursor, limit=limit)
    return JsonResponse(resources.listing(page.items, webhook_resources.subscription, page.next_cursor))


@ROUTES.post(
    "/api/webhooks",
    role="tenant",
    is_answer_kept=False,
    status_code=201,
    response_model=Document,
    responses=problems(413, 422),
)
async def add_webhook(ask: Ask, body: NewWebhook) -> Response:
    """Tell an address of events from now on. `secret` is shown this once."""
    made = await ask.penstock.webhooks.add(
        body.url, types=body.types, operation=body.operation, secret=body.secret, created_by=ask.name
    )
    return JsonResponse(webhook_resources.new_subscription(made), status_code=201)


@ROUTES.get("/api/webhooks/{id}", role="tenant", response_model=Document, responses=problems(404))
async def get_webhook(ask: Ask, id: Id) -> Response:
    """One webhook."""
    return JsonResponse(webhook_resources.subscription(await ask.penstock.webhooks.get(id)))


@ROUTES.delete("/api/webhooks/{id}", role="tenant", response_model=dict[str, int], responses=problems(404))
async def remove_webhook(ask: Ask, id: Id) -> Response:
    """Remove a webhook; what it was not told yet is cancelled."""
    return JsonResponse({"cancelled": await ask.penstock.webhooks.remove(id)})


@ROUTES.post("/api/webhooks/{id}/test", role="tenant", response_model=Document, responses=problems(404, 409))
async def send_test(ask: Ask, id: Id) -> Response:
    """Send one test event now; the answer says what came of it."""
    return JsonResponse(webhook_resources.delivery_in_full(await ask.penstock.webhooks.test(id)))


@ROUTES.post(
    "/api/webhooks/{id}/rotate",
    role="tenant",
    is_answer_kept=False,
    response_model=Document,
    responses=problems(404, 409, 413, 422),
)
async def rotate_secret(ask: Ask, id: Id, body: Annotated[RotateBody | None, BodyOf()] = None) -> Response:
    """Sign with a new secret, shown this once, and for a while with the old one too."""
    made = await ask.penstock.webhooks.rotate_secret(id, keep=(body or RotateBody()).keep_s)
    return JsonResponse(webhook_resources.new_subscription(made))


@ROUTES.post("/api/webhooks/{id}/enable", role="tenant", response_model=Document, responses=problems(404, 409))
async def enable_webhook(ask: Ask, id: Id) -> Response:
    """Tell a disabled webhook of events again, of those from now on."""
    return JsonResponse(webhook_resources.subscription(await ask.penstock.webhooks.enable(id)))


@ROUTES.post("/api/webhooks/{id}/disable", role="tenant", response_model=Document, responses=problems(404, 409))
async def disable_webhook(ask: Ask, id: Id) -> Response:
    """Tell a webhook of nothing for now; what it was not told yet is cancelled."""
    return JsonResponse(webhook_resources.subscription(await ask.penstock.webhooks.disable(id)))


@ROUTES.get("/api/webhook-deliveries", role="tenant", response_model=ListOf[Document], responses=problems(422))
async def list_webhook_deliveries(
    ask: Ask,
    *,
    state: Annotated[list[str] | None, Query(description="Only in this state; can be repeated.")] = None,
    webhook: Annotated[str | None, Query(max_length=120)] = None,
    subject: Annotated[str | None, Query(max_length=64, description="The operation, blob or instance.")] = None,
    type: Annotated[str | None, Query(max_length=200)] = None,
    cursor: Cursor = None,
    limit: Limit = 100,
) -> Response:
    """Deliveries to webhooks and handlers, oldest first: which event, for whom, and how far it is."""
    page = await ask.penstock.webhooks.deliveries(
        state=state, subscription=webhook, subject=subject, type=type, cursor=cursor, limit=limit
    )
    return JsonResponse(resources.listing(page.items, webhook_resources.delivery, page.next_cursor))


@ROUTES.post(
    "/api/webhook-deliveries/resend", role="tenant", response_model=dict[str, int], responses=problems(413, 422)
)
async def resend_webhook_deliveries(ask: Ask, body: ResendWebhooksBody) -> Response:
    """Make deliveries due now, and say how many."""
    found = await ask.penstock.webhooks.resend(
        subscription=body.webhook, older_than=body.older_than_s, failed=body.failed
    )
    return JsonResponse({"deliveries": found})


@ROUTES.get("/api/webhook-deliveries/{id}", role="tenant", response_model=Document, responses=problems(404))
async def get_webhook_delivery(ask: Ask, id: Id) -> Response:
    """One delivery, with its event and its last attempts."""
    return JsonResponse(webhook_resources.delivery_in_full(await ask.penstock.webhooks.delivery(id)))


@ROUTES.post(
    "/api/webhook-deliveries/{id}/resend", role="tenant", response_model=dict[str, int], responses=problems(404, 409)
)
async def resend_webhook_delivery(ask: Ask, id: Id) -> Response:
    """Make one delivery due now; one that was given up gets its attempts anew."""
    return JsonResponse({"deliveries": await ask.penstock.webhooks.resend(id)})
