"""Answers: JSON documents, and their tags."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

import msgspec
from fastapi import Request, Response

from penstock.resources import Document

__all__ = ["JsonResponse", "tagged"]


class JsonResponse(Response):
    """A JSON document; what JSON has no form for is written as text."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        """The document as bytes."""
        return msgspec.json.encode(content, enc_hook=str)


def tagged(request: Request, document: Document, headers: Mapping[str, str] | None = None) -> Response:
    """A document with its ETag; 304 when the caller has it already."""
    response = JsonResponse(document, headers=headers)
    tag = f'"{hashlib.sha256(bytes(response.body)).hexdigest()[:32]}"'
    response.headers["etag"] = tag
    response.headers["cache-control"] = "private, no-cache"
    known = [part.strip().removeprefix("W/") for part in request.headers.get("if-none-match", "").split(",")]
    if tag not in known and "*" not in known:
        return response
    kept = {name: response.headers[name] for name in ("etag", "cache-control")}
    return Response(status_code=304, headers=kept)
