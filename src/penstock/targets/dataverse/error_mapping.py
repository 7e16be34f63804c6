"""What Dataverse answered, and the error it stands for: by a table of its codes, and the few messages without one."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from penstock.targets.diagnostics.error_parsing import named_field
from penstock.targets.http.error_mapping import LOST, kind_of_status, width_hint
from penstock.targets.http.rate_limits import retry_after_s
from penstock.targets.model import ErrorKind, Limit, TargetError

__all__ = ["RowFailure", "WebApiReply", "classify", "refusal", "row_error", "row_failures", "unbelievable"]

# fmt: off
LIMITS = {
    "0x80072322": Limit.REQUESTS,
    "0x80072321": Limit.TIME,
    "0x80072326": Limit.CONCURRENCY,
}
CODES = {
    ErrorKind.THROTTLED:   (*LIMITS, "0x80072327", "0x80072329", "0x80048544"),
    ErrorKind.TOKEN:       ("0x8004a100", "0x8004a101", "0x8004a102", "0x8004a103", "0x8004a104", "0x8004a105"),
    ErrorKind.PERMISSION:  ("0x80040220", "0x80048306", "0x80040225", "0x80042f09"),  # privilege, access, user disabled
    ErrorKind.DEADLOCK:    ("0x80040255",),               # already rolled back, usually by a swallowed deadlock
    ErrorKind.TOO_BIG:     ("0x80044151", "0x8004418d"),  # SQL timeout; sandbox message size
    ErrorKind.BUSINESS:    ("0x80040265", "0x80040224"),  # a plug-in aborted
    ErrorKind.DATA:        ("0x80040237", "0x80060892", "0x80040333",   # duplicate record, key or by a detection rule
                            "0x80060891", "0x80040217",                 # alternate key, or record, not found
                            "0x80044331", "0x80048d19", "0x80060882"),  # too long; payload; version mismatch
    ErrorKind.UNSUPPORTED: ("0x80040219", "0x80044824"),
}
SQL_NUMBERS = {
    1205: ErrorKind.DEADLOCK,
    3732: ErrorKind.RACE, 2766: ErrorKind.RACE, 2812: ErrorKind.RACE,
    -2: ErrorKind.TOO_BIG,
}
# fmt: on
KINDS = {code: kind for kind, codes in CODES.items() for code in codes}
SQL_ERROR = "0x80044150"
SQL_NUMBER = re.compile(r"\bSql\s*(?:Error\s*)?Number\s*[:=]\s*(-?\d+)\b", re.IGNORECASE)
SQL_WORDS = (
    (r"\bdeadlock", ErrorKind.DEADLOCK),
    (r"could not find stored procedure", ErrorKind.RACE),
    (r"cannot drop type|definition for user-defined data type .* has changed", ErrorKind.RACE),
)
UNSUPPORTED_WORDS = re.compile(
    r"not yet been implemented|is not enabled on the entity|does not support entities of type", re.IGNORECASE
)
DOUBTFUL = frozenset({ErrorKind.CONNECTION, ErrorKind.THROTTLED})
ROW_THROTTLES = frozenset({429, 449, 503})
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
        return width_hint(self.headers, "x-ms-dop-hint")

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
    inner = error.get("innererror")
    said = error.get("message") or (inner.get("message") if isinstance(inner, dict) else None)
    message = str(said) if said else f"Dataverse answered {reply.status} without saying why"
    code = _text(error.get("code"))
    wait_s = retry_after_s(reply.headers, now)
    kind = classify(reply.status, code, message, has_retry_after="retry-after" in reply.headers)
    is_unanswered = reply.status in LOST or (not error and reply.status >= 500)
    if is_unanswered and kind is ErrorKind.OTHER:
        kind = ErrorKind.CONNECTION
    # A code that is known is the platform's own word, and it says what happened.
    is_doubtful = is_unanswered and kind in DOUBTFUL and (code or "").lower() not in KINDS
    return TargetError(
        message,
        kind=kind,
        code=code or str(reply.status),
        retry_after_s=wait_s,
        limit=limit_hit(code),
        maybe_applied=is_write and is_doubtful,
        field=named_field(message),
        details=_details(reply),
    )


def _text(value: Any) -> str | None:
    return str(value) if value else None


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
    is_lost = row.status in LOST
    return TargetError(message, kind=kind, code=str(row.status), retry_after_s=wait_s, maybe_applied=is_lost)


def unbelievable(what: str, reply: WebApiReply) -> TargetError:
    """An answer that cannot be trusted although it claims success: what was asked may or may not have been done."""
    message = f"Dataverse answered {reply.status}, but {what}"
    return TargetError(message, kind=ErrorKind.CONNECTION, maybe_applied=True, details=_details(reply))


def classify(status: int, code: str | None, message: str, *, has_retry_after: bool = False) -> ErrorKind:
    """The class of a refusal, by its status, the platform's code and, where these say too little, its words.

    A throttle comes first whatever else is said, since waiting is always right for it.
    """
    code = (code or "").lower()
    if status == 429 or KINDS.get(code) is ErrorKind.THROTTLED or (status == 503 and has_retry_after):
        return ErrorKind.THROTTLED
    if status == 401:
        return ErrorKind.TOKEN
    if UNSUPPORTED_WORDS.search(message):
        return ErrorKind.UNSUPPORTED
    if code == SQL_ERROR:  # a number counts only next to the words that announce it
        by_number = (SQL_NUMBERS[number] for number in sql_numbers(message) if number in SQL_NUMBERS)
        by_words = (kind for words, kind in SQL_WORDS if re.search(words, message, re.IGNORECASE))
        return next(by_number, None) or next(by_words, ErrorKind.OTHER)
    return KINDS.get(code) or kind_of_status(status, {}, is_single=True)


def sql_numbers(message: str) -> list[int]:
    """The SQL error numbers a message states as such."""
    return [int(number) for number in SQL_NUMBER.findall(message)]


def limit_hit(code: str | None) -> Limit | None:
    """Which of the service protection limits a code stands for."""
    return LIMITS.get((code or "").lower())


def row_error_kind(status: int) -> ErrorKind:
    """The class of one row's failure in a partly failed call on an elastic table, whose statuses are the store's."""
    return ErrorKind.THROTTLED if status in ROW_THROTTLES else kind_of_status(status, {}, is_single=True)
