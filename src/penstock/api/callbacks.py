"""Signals by callback address (`ctx.signal_url`): the address is the right to send one signal to one wait."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
from fastapi import Request, Response

from penstock import resources
from penstock.api.answers import JsonResponse
from penstock.api.routing import RouteTable
from penstock.errors import InvalidInput

if TYPE_CHECKING:
    from penstock.operations.signals import Receipt, Signals

__all__ = ["ROUTES"]

ROUTES = RouteTable("signals")


@ROUTES.post("/api/signals/{token}", role="public", status_code=202)
async def signal_by_address(token: str, request: Request) -> Response:
    """End the wait that this address is for; the body, if there is one, is JSON and becomes the step's output."""
    return _answer(await _signals(request).complete_wait(token, payload=await _document(request)))


@ROUTES.post("/api/signals/{token}/fail", role="public", status_code=202)
async def fail_by_address(token: str, request: Request) -> Response:
    """Fail the step whose wait this address is for; `errorMessage` in the body says why."""
    document = await _document(request)
    message = document.get("errorMessage") if isinstance(document, dict) else None
    if message is not None and not isinstance(message, str):
        raise InvalidInput("errorMessage is text")
    return _answer(await _signals(request).fail_wait(token, message or ""))


def _signals(request: Request) -> Signals:
    """Not those of the caller, who is nobody: the address alone says which wait is meant."""
    found: Signals = request.app.state.penstock.signals
    return found


def _answer(receipt: Receipt) -> Response:
    # Which row of which operation it is, the sender need not learn.
    outcome = resources.receipt(receipt)["outcome"]
    return JsonResponse({"outcome": outcome}, status_code=202 if outcome == "stored" else 200)


async def _document(request: Request) -> Any:
    """The JSON in the body; None without one."""
    body = await request.body()
    if not body.strip():
        return None
    try:
        return msgspec.json.decode(body)
    except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
        raise InvalidInput(f"the body is not JSON: {error}") from None
