"""What Dataverse answered, and the error it stands for."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from penstock.targets.dataverse.error_codes import classify, limit_hit, row_error_kind
from penstock.targets.diagnostics.error_parsing import named_field
from penstock.targets.http.error_mapping import LOST
from penstock.targets.http.rate_limits import retry_after_s
from penstock.targets.model import ErrorKind, TargetError

__all__ = ["RowFailure", "WebApiReply", "refusal", "row_error", "row_failures", "unbelievable"]

ROW_LIST = "BulkApiErrorDetails"
ROW_WAIT_S = 1.0  # the store under elastic tables throttles for moments, and does not say for how long


@dataclass(frozen=True, slots=True)
class WebApiReply:
    """An answer of the Web API, or one part of a `$batch` answer; header names are in lower case."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def is_success(self) -> bool:
        return 200 <= self.status < 300

    @property
    def width_hint(self) -> int | None:
        """How many calls at once the platform recommends."""
        hint = self.headers.get("x-ms-dop-hint", "")
        return int(hint) if hint.isdecimal() and int(hint) > 0 else None

    def json(self) -> dict[str, Any]:
        """The body as an object; empty when it is none."""
        try:
            value = json.loads(self.body)
        except ValueError:
            return {}
        return value if isinstance(value, dict) else {}

    def error(self) -> dict[str, Any]:
        """What the platform says of a failure; empty when something else answered in its place."""
        error = self.json().get("error")
        return error if isinstance(error, dict) else {}


@dataclass(frozen=True, slots=True)
class RowFailure:
    """One row of a partly failed call on an elastic table."""

    index: int
    status: int
    id: str | None


def refusal(reply: WebApiReply, now: datetime, *, is_write: bool) -> TargetError:
    """The error an answer stands for; of a write it also says whether it may have taken effect all the same."""
    error = reply.error()
    code, message = _text(error.get("code")), _message(error, reply.status)
    wait_s = retry_after_s(reply.headers, now)
    kind = classify(reply.status, code, message, has_retry_after="retry-after" in reply.headers)
    is_unanswered = reply.status in LOST or (not error and reply.status >= 500)
    if is_unanswered and kind is ErrorKind.OTHER:
        kind = ErrorKind.CONNECTION
    return TargetError(
        message,
        kind=kind,
        code=code or str(reply.status),
        retry_after_s=wait_s,
        limit=limit_hit(code),
        maybe_applied=is_write and is_unanswered and kind is ErrorKind.CONNECTION,
        field=named_field(message),
        details=_details(reply),
    )


def _text(value: Any) -> str | None:
    return str(value) if value else None


def _message(error: Mapping[str, Any], status: int) -> str:
    inner = error.get("innererror")
    said = error.get("message") or (inner.get("message") if isinstance(inner, dict) else None)
    return str(said) if said else f"Dataverse answered {status} without saying why"


def _details(reply: WebApiReply) -> Mapping[str, Any]:
    request = reply.headers.get("x-ms-service-request-id") or reply.headers.get("req_id")
    return {"status": reply.status} | ({"request_id": request} if request else {})


def row_failures(reply: WebApiReply, count: int) -> Sequence[RowFailure]:
    """The rows that failed in a partly failed call, at most one a row; empty when the call failed as a whole.

    The member's prefix differs between versions of the platform, so that only its end is looked at. Rows that went
    well may be listed beside those that failed.
    """
    for name, value in reply.error().items():
        if name.endswith(ROW_LIST):
            listed = [row for row in _rows(value) if not 200 <= row.status < 300]
            return list({row.index: row for row in listed if 0 <= row.index < count}.values())
    return []


def _rows(value: Any) -> list[RowFailure]:
    try:
        rows = json.loads(value) if isinstance(value, str) else value
        return [RowFailure(int(row["RequestIndex"]), int(row["StatusCode"]), _text(row.get("Id"))) for row in rows]
    except (ValueError, TypeError, KeyError, AttributeError):
        return []


def row_error(row: RowFailure, call_error: TargetError) -> TargetError:
    """The error of one row of a partly failed call; a row that only came too early is not kept waiting for long."""
    message = f"the row was refused with status {row.status}: {call_error.message}"
    kind = row_error_kind(row.status)
    wait_s = (call_error.retry_after_s or ROW_WAIT_S) if kind is ErrorKind.THROTTLED else None
    is_lost = kind is ErrorKind.CONNECTION
    return TargetError(message, kind=kind, code=str(row.status), retry_after_s=wait_s, maybe_applied=is_lost)


def unbelievable(what: str, reply: WebApiReply) -> TargetError:
    """An answer that cannot be trusted although it claims success: what was asked may or may not have been done."""
    message = f"Dataverse answered {reply.status}, but {what}"
    return TargetError(message, kind=ErrorKind.CONNECTION, maybe_applied=True, details=_details(reply))
