"""What a request that is not carried out is answered with: problem documents (RFC 9457)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import msgspec

__all__ = ["PROBLEMS", "Problem", "messages"]


@dataclass(frozen=True, slots=True)
class Problem:
    """One kind of problem."""

    status: int
    name: str
    title: str


PROBLEMS = {
    "missing": Problem(400, "idempotency-key-missing", "This request needs an Idempotency-Key"),
    "malformed": Problem(400, "idempotency-key-malformed", "The Idempotency-Key is malformed"),
    "mismatch": Problem(422, "idempotency-key-reused", "The Idempotency-Key was used for another request"),
    "in_flight": Problem(409, "idempotency-key-in-use", "A request with this Idempotency-Key is being carried out"),
    "lost": Problem(409, "idempotency-key-in-use", "A request with this Idempotency-Key is being carried out"),
    "indeterminate": Problem(409, "idempotency-key-indeterminate", "The request with this Idempotency-Key was cut off"),
    "not_kept": Problem(410, "idempotency-answer-not-kept", "The request was carried out, and its answer is gone"),
    "too_large": Problem(413, "idempotency-body-too-large", "The body is too large"),
    "unavailable": Problem(503, "idempotency-unavailable", "Idempotency keys cannot be looked up now"),
}


def messages(
    reason: str,
    detail: str,
    *,
    retry_after_s: int | None = None,
    headers: Iterable[tuple[bytes, bytes]] = (),
    help_url: str | None = None,
    **more: Any,
) -> list[dict[str, Any]]:
    """The ASGI messages of a problem."""
    problem = PROBLEMS[reason]
    document = {
        "type": help_url or f"urn:penstock:problem:{problem.name}",
        "title": problem.title,
        "status": problem.status,
        "detail": detail,
        "code": problem.name,
        "error": detail,
        **more,
    }
    body = msgspec.json.encode(document)
    sent = [
        (b"content-type", b"application/problem+json"),
        (b"content-length", b"%d" % len(body)),
        (b"cache-control", b"no-store"),
        *headers,
    ]
    if retry_after_s is not None:
        sent.append((b"retry-after", b"%d" % retry_after_s))
    if help_url is not None:
        sent.append((b"link", f'<{help_url}>; rel="describedby"'.encode()))
    return [
        {"type": "http.response.start", "status": problem.status, "headers": sent},
        {"type": "http.response.body", "body": body},
    ]
