"""Errors as problem documents (RFC 9457): one shape and stable codes, whatever refuses a request."""

from __future__ import annotations

import logging
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from penstock import resources
from penstock.api.answers import JsonResponse
from penstock.errors import Fault, InvalidInput, PenstockError, Throttled, Unauthenticated

__all__ = ["MEDIA_TYPE", "ProblemsOutside", "add_handlers", "answer", "on_http", "problem"]

log = logging.getLogger("penstock.api")

MEDIA_TYPE = "application/problem+json"
RETRY_S = 2
OUR_FAULT = "the server cannot do this now; its log says more"
CODES = {
    404: "not-found",
    405: "method-not-allowed",
    400: "bad-request",
    413: "too-large",
    415: "unsupported-media-type",
}


def answer(error: PenstockError) -> Response:
    """The answer to a request that is refused."""
    document = problem(error)
    headers = {}
    if isinstance(error, Unauthenticated):
        headers["www-authenticate"] = "Bearer"
    if isinstance(error, Throttled):
        headers["retry-after"] = str(error.retry_after_s)
    elif document["status"] == HTTPStatus.SERVICE_UNAVAILABLE:
        headers["retry-after"] = str(RETRY_S)
    return _response(document, headers)


def problem(error: PenstockError) -> resources.Document:
    """An error as a problem document. What is wrong with us names hosts, users and paths: it goes to the log alone."""
    document = resources.problem(error)
    if document["status"] >= HTTPStatus.INTERNAL_SERVER_ERROR:
        log.warning("a request failed: %s", error)
        document["detail"] = OUR_FAULT
    return document


def _response(document: dict[str, Any], headers: dict[str, str] | None = None) -> Response:
    named = {"code": document["type"].rpartition(":")[2], **document, "error": document["detail"]}
    headers = {"cache-control": "no-store", **(headers or {})}
    return JsonResponse(named, status_code=document["status"], media_type=MEDIA_TYPE, headers=headers)


def add_handlers(app: FastAPI) -> None:
    """Let every error of the application be answered with a problem document."""
    app.add_exception_handler(PenstockError, _on_ours)
    app.add_exception_handler(RequestValidationError, _on_invalid)
    app.add_exception_handler(HTTPException, on_http)
    app.add_exception_handler(Exception, _on_bug)


async def _on_ours(request: Request, error: Exception) -> Response:
    assert isinstance(error, PenstockError)
    return answer(error)


async def _on_invalid(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    faults = [_fault(each) for each in error.errors()]
    return answer(InvalidInput("the request is invalid: " + "; ".join(map(str, faults)), faults))


def _fault(found: Any) -> Fault:
    where = [str(part) for part in found["loc"] if part not in ("query", "body", "path", "header")]
    return Fault(str(found["msg"]), ".".join(where) or None)


async def on_http(request: Request, error: Exception) -> Response:
    """The answer to what the framework refuses, such as a path that is not there."""
    assert isinstance(error, HTTPException)
    return _refusal(error)


def _refusal(error: HTTPException) -> Response:
    phrase = HTTPStatus(error.status_code).phrase
    name = CODES.get(error.status_code, phrase.lower().replace(" ", "-"))
    document = {
        "type": f"urn:penstock:problem:{name}",
        "title": phrase,
        "status": error.status_code,
        "detail": str(error.detail),
    }
    return _response(document, dict(error.headers or {}))


async def _on_bug(request: Request, error: Exception) -> Response:
    """What is wrong with us is in the log, never in an answer."""
    log.error("%s %s failed", request.method, request.url.path, exc_info=error)
    document = {
        "type": "urn:penstock:problem:internal",
        "title": "Internal error",
        "status": 500,
        "detail": "the server made a mistake; its log says more",
    }
    return _response(document)


class ProblemsOutside:
    """Answers errors that middleware raises, which no handler of the application sees."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        has_begun = False

        async def watched(message: Message) -> None:
            nonlocal has_begun
            has_begun = has_begun or message["type"] == "http.response.start"
            await send(message)

        try:
            await self.app(scope, receive, watched)
        except (PenstockError, HTTPException) as error:
            if scope["type"] != "http" or has_begun:
                raise
            refusal = answer(error) if isinstance(error, PenstockError) else _refusal(error)
            await refusal(scope, receive, send)
