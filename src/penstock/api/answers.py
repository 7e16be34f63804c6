"""Answers: JSON documents, and their tags."""

from __future__ import annotations

import hashlib
from typing import Any

import msgspec
from fastapi import Request, Response

from penstock.resources import Document

__all__ = ["JsonResponse", "tag_of", "tagged"]


class JsonResponse(Response):
    """A JSON document; what JSON has no form for is written as text."""

    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        """The document as bytes."""
        return _encoded(content)


def tag_of(document: Document) -> str:
    """The ETag of a document: the same as long as nothing in it has changed."""
    return f'"{hashlib.sha256(_encoded(document)).hexdigest()[:32]}"'


def tagged(request: Request, document: Document) -> Response:
    """A document with its ETag; 304 when the caller has it already."""
    tag = tag_of(document)
    headers = {"etag": tag, "cache-control": "private, no-cache"}
    known = [part.strip().removeprefix("W/") for part in request.headers.get("if-none-match", "").split(",")]
    if tag in known or "*" in known:
        return Response(status_code=304, headers=headers)
    return JsonResponse(document, headers=headers)


def _encoded(content: Any) -> bytes:
    return msgspec.json.encode(content, enc_hook=str)
