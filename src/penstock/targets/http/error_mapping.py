"""What an HTTP status means for a batch."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any, NamedTuple

from penstock.targets.diagnostics.error_parsing import named_field
from penstock.targets.http.endpoint import Endpoint
from penstock.targets.http.rate_limits import is_exhausted, limit_hit, retry_after_s
from penstock.targets.model import ErrorKind, TargetError

__all__ = ["Reply", "is_own_refusal", "item_error", "kind_of_status", "refusal", "refuse_page", "said", "width_hint"]

STATUS_KINDS = {
    401: ErrorKind.TOKEN,
    403: ErrorKind.PERMISSION,
    404: ErrorKind.UNSUPPORTED,
    405: ErrorKind.UNSUPPORTED,
    408: ErrorKind.CONNECTION,
    413: ErrorKind.TOO_BIG,
    415: ErrorKind.UNSUPPORTED,
    429: ErrorKind.THROTTLED,
    501: ErrorKind.UNSUPPORTED,
    502: ErrorKind.CONNECTION,
    503: ErrorKind.CONNECTION,
    504: ErrorKind.CONNECTION,
}
DATA = frozenset({400, 404, 406, 409, 410, 411, 412, 417, 422, 423, 424, 428, 431})
LOST = frozenset({408, 502, 503, 504})
"""Answers of something in between, which does not know what the remote did."""
MOVED = frozenset({301, 307, 308})
"""Nothing was done: the call belongs elsewhere."""
SEE_OTHER = 303
"""It was done, and what came of it is shown elsewhere."""
ABOUT_RECORDS = frozenset({ErrorKind.DATA, ErrorKind.BUSINESS, ErrorKind.OTHER})
MESSAGE_MAX = 500
MESSAGE_MEMBERS = ("message", "detail", "error_description", "title", "error", "reason", "description")
CODE_MEMBERS = ("code", "error_code", "errorCode", "type")


class Reply(NamedTuple):
    """An answer that came in whole."""

    status: int
    headers: Mapping[str, str]
    """Names in lower case."""
    body: Any


def refusal(
    reply: Reply, endpoint: Endpoint, *, call: str, now: datetime, records: int = 1, is_write: bool = True
) -> TargetError:
    """The error for a call with so many records that was answered with something else than success."""
    status, headers, body = reply
    kind = endpoint.error_kinds.get(status) or kind_of_status(status, headers, is_single=endpoint.is_single)
    if kind is ErrorKind.OTHER and status >= 500 and (endpoint.is_repeatable or not is_write):
        kind = ErrorKind.SERVER
    message, code = said(body)
    is_throttle = kind is ErrorKind.THROTTLED
    return TargetError(
        f"{call} answered {status}: {message or 'no reason given'}{_hint(status, headers)}",
        kind=kind,
        code=code or str(status),
        retry_after_s=retry_after_s(headers, now) if is_throttle else None,
        limit=limit_hit(headers) if is_throttle else None,
        maybe_applied=is_write and _may_have_been_applied(status, kind, endpoint, records),
        field=named_field(message),
        details={"status": status},
    )


def _hint(status: int, headers: Mapping[str, str]) -> str:
    if status < 300:
        return f"; {status} is not among the statuses that the endpoint calls a success"
    if status < 400 and "location" in headers:
        return "; it redirects, and only redirects (307, 308) within the same origin are followed"
    return ""


def is_own_refusal(error: TargetError) -> bool:
    """Whether the remote itself refused the call: nothing in between did, and no answer was lost."""
    return "status" in error.details and error.details["status"] not in LOST


def refuse_page(call: str, status: int, headers: Mapping[str, str], *, maybe_applied: bool) -> None:
    """Refuse an answer that claims success with a page for people: something in between gave it, perhaps to log in."""
    if 200 <= status < 300 and "html" in headers.get("content-type", "").partition(";")[0].lower():
        raise TargetError(
            f"{call} answered {status} with a page for people, perhaps to log in",
            kind=ErrorKind.CONNECTION,
            code="NotAnAnswer",
            maybe_applied=maybe_applied,
        )


def width_hint(headers: Mapping[str, str], name: str | None) -> int | None:
    """How many calls at once the remote recommends in the header of that name."""
    hint = headers.get(name.lower(), "") if name else ""
    return int(hint) if hint.isdecimal() and int(hint) > 0 else None


def item_error(
    status: int | None, error: Any, endpoint: Endpoint, *, code: Any, field: Any, wait_s: float | None = None
) -> TargetError:
    """The error for one record of an answer that lists what became of each."""
    message, found = said(error)
    kind = ErrorKind.DATA
    if status is not None:
        kind = endpoint.error_kinds.get(status) or kind_of_status(status, {}, is_single=True)
    is_lost = status in LOST and kind is not ErrorKind.THROTTLED
    if is_lost and endpoint.idempotency_header:
        kind, is_lost = ErrorKind.OTHER, False  # a batch of some of its records has another key, so it cannot be asked
    return TargetError(
        message or f"the remote refused the record with {status if status is not None else 'no reason'}",
        kind=kind,
        code=str(code) if code is not None else found or (None if status is None else str(status)),
        retry_after_s=wait_s if kind is ErrorKind.THROTTLED else None,
        maybe_applied=is_lost,
        field=str(field) if field is not None else named_field(message),
    )


def said(body: Any) -> tuple[str, str | None]:
    """The message and the code in an error, wherever they stand."""
    if isinstance(body, str):
        line = " ".join(body.split())
        return line if len(line) <= MESSAGE_MAX else f"{line[:MESSAGE_MAX]}…", None
    if isinstance(body, list):
        return said(body[0]) if body else ("", None)
    if not isinstance(body, Mapping):
        return "", None
    code = next((str(body[name]) for name in CODE_MEMBERS if isinstance(body.get(name), str | int)), None)
    for name in (*MESSAGE_MEMBERS, "errors"):
        message, inner = said(body.get(name))
        if message:
            return message, code or inner
    return "", code


def kind_of_status(status: int, headers: Mapping[str, str], *, is_single: bool) -> ErrorKind:
    """What a status means to a call of many records, or to one record."""
    is_held_off = status in (403, 503) and "retry-after" in headers
    if is_held_off or (status == 403 and is_exhausted(headers)):
        return ErrorKind.THROTTLED
    if status == 404 and is_single:
        return ErrorKind.DATA  # it is the record that is not there, not the call
    if status in STATUS_KINDS:
        return STATUS_KINDS[status]
    return ErrorKind.DATA if status in DATA else ErrorKind.OTHER


def _may_have_been_applied(status: int, kind: ErrorKind, endpoint: Endpoint, records: int) -> bool:
    if kind is ErrorKind.THROTTLED:
        # One that the endpoint declares is the remote's own; any other 503 may come from something in between.
        return status in LOST and status not in endpoint.error_kinds
    if status < 300 or status == SEE_OTHER:
        return True  # a success, though not one that the endpoint knows
    if status in LOST or status in MOVED or endpoint.is_atomic:
        return status in LOST
    if status >= 500:
        return status != 501
    # The remote may have applied the records that stand before the one it refused.
    return kind in ABOUT_RECORDS and records > 1 and not endpoint.is_idempotent
