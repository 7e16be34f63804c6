"""Signals from outside: the awaited thing has happened, or has failed."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Body, Request, Response

from penstock import resources
from penstock.api.answers import JsonResponse
from penstock.api.described import problems
from penstock.api.guard import Ask, Caller
from penstock.api.routing import RouteTable
from penstock.api.schemas import SignalAnswer, SignalBody, SignalFailBody, SignalsBody
from penstock.operations.signals import Receipt

__all__ = ["ROUTES"]

ROUTES = RouteTable("signals")

FAILED = "failed by a signal"
_STORED = {202: {"description": "Stored: no row waits for this key yet.", "model": SignalAnswer}}
_DESCRIBED: dict[str, Any] = {"response_model": SignalAnswer, "responses": problems(409, 413, 422) | _STORED}


# With {key:path}, a slash in a key may be percent-encoded; servers decode it before we see it.
@ROUTES.post("/api/bulks/{id}/signal/{key:path}/fail", role="operate", **_DESCRIBED)
async def fail_signal(
    request: Request, ask: Ask, id: str, key: str, body: Annotated[SignalFailBody | None, Body()] = None
) -> Response:
    """The awaited thing has failed: so does the step, with `errorMessage`."""
    given = body or SignalFailBody()
    if request.scope.get("raw_path", b"/fail").partition(b"?")[0].lower().endswith(b"%2ffail"):
        return await _complete(request, ask, id, f"{key}/fail", SignalBody(row=given.row, id=given.id))
    return await _fail(request, ask, id, key, given)


@ROUTES.post("/api/bulks/{id}/signal/{key:path}", role="operate", **_DESCRIBED)
async def complete_signal(
    request: Request, ask: Ask, id: str, key: str, body: Annotated[SignalBody | None, Body()] = None
) -> Response:
    """The awaited thing has happened. 200 when a row waited for it, 202 when it is stored for one that will."""
    return await _complete(request, ask, id, key, body or SignalBody())


@ROUTES.post("/api/bulks/{id}/signals", role="operate", **_DESCRIBED)
async def send_signal(request: Request, ask: Ask, id: str, body: SignalsBody) -> Response:
    """A signal whose key is in the body, for keys of any letters."""
    if body.outcome == "failed":
        failure = SignalFailBody(error_message=body.error_message, row=body.row, id=body.id)
        return await _fail(request, ask, id, body.key, failure)
    return await _complete(request, ask, id, body.key, SignalBody(payload=body.payload, row=body.row, id=body.id))


async def _complete(request: Request, ask: Caller, id: str, key: str, body: SignalBody) -> Response:
    receipt = await ask.penstock.signals.complete(
        id,
        key,
        payload=body.payload,
        row=body.row,
        id=_signal_id(request, body.id),
    )
    return _answer(receipt, error=None)


async def _fail(request: Request, ask: Caller, id: str, key: str, body: SignalFailBody) -> Response:
    message = body.error_message or FAILED
    receipt = await ask.penstock.signals.fail(id, key, message, row=body.row, id=_signal_id(request, body.id))
    return _answer(receipt, error=message)


def _signal_id(request: Request, given: str | None) -> str | None:
    """The id by which a repeat is known: the body's, or that of a webhook's delivery."""
    return given or request.headers.get("webhook-id")


def _answer(receipt: Receipt, *, error: str | None) -> Response:
    """Our receipt, and the same in BulkSharp's names."""
    is_taken = receipt.outcome == "delivered" or receipt.row is not None
    document = resources.receipt(receipt) | {
        "step": receipt.step,
        "completed": is_taken and error is None,
        "failed": is_taken and error is not None,
        "error": error,
        "crossProcess": False,
    }
    return JsonResponse(document, status_code=200 if is_taken else 202)
