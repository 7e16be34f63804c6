"""What routes share in the OpenAPI description."""

from __future__ import annotations

from typing import Any

from penstock.api.problems import MEDIA_TYPE

__all__ = ["ALWAYS", "EXAMPLE_ID", "WITH_KEY", "problem", "problems", "produces"]

EXAMPLE_ID = "0199a3c2-1b2f-7d4e-9c51-3f2a8b7c6d5e"

_MEANINGS = {
    400: "The request cannot be read.",
    401: "A credential is needed.",
    403: "The credential may not do this.",
    404: "There is no such thing, or the caller may not see it.",
    405: "Not this method.",
    409: "Not possible in the current state.",
    410: "The request was carried out, and its answer is gone.",
    412: "It has changed since.",
    413: "Too much was sent.",
    415: "Not this media type.",
    422: "The input is invalid.",
    429: "Too many requests.",
    503: "Temporarily unavailable.",
}
ALWAYS = (400, 401, 403, 404, 429, 503)
WITH_KEY = (409, 410, 413, 422)  # what a request may come to that has an idempotency key
_PROBLEM = {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}}


def problem(status: int) -> dict[str, Any]:
    """An error, as OpenAPI describes it."""
    return {"description": _MEANINGS[status], "content": _PROBLEM}


def problems(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """The errors of a route, beside those that every route has."""
    return {status: problem(status) for status in statuses}


def produces(*media_types: str, description: str) -> dict[int | str, dict[str, Any]]:
    """An answer that is a file."""
    text, binary = {"schema": {"type": "string"}}, {"schema": {"type": "string", "format": "binary"}}
    other = {kind: text if kind.startswith("text/") else binary for kind in media_types}
    content: dict[str, Any] = {kind: {} if "json" in kind else other[kind] for kind in media_types}
    return {200: {"description": description, "content": content}}
