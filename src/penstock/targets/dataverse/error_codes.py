"""What kind of error a refusal of Dataverse is: a table of its codes, and the few messages that have none."""

from __future__ import annotations

import re

from penstock.targets.model import ErrorKind, Limit

__all__ = ["classify", "limit_hit", "row_error_kind", "sql_numbers"]

# fmt: off
LIMITS = {
    "0x80072322": Limit.REQUESTS,
    "0x80072321": Limit.TIME,
    "0x80072326": Limit.CONCURRENCY,
}
CODES = {
    **dict.fromkeys(LIMITS, ErrorKind.THROTTLED),
    "0x80072327": ErrorKind.THROTTLED,
    "0x80072329": ErrorKind.THROTTLED,
    "0x80048544": ErrorKind.THROTTLED,
    "0x8004a100": ErrorKind.TOKEN,
    "0x8004a101": ErrorKind.TOKEN,        # expired ticket
    "0x8004a102": ErrorKind.TOKEN,
    "0x8004a103": ErrorKind.TOKEN,
    "0x8004a104": ErrorKind.TOKEN,
    "0x8004a105": ErrorKind.TOKEN,
    "0x80040220": ErrorKind.PERMISSION,   # privilege denied
    "0x80048306": ErrorKind.PERMISSION,   # access denied
    "0x80040225": ErrorKind.PERMISSION,   # user disabled
    "0x80042f09": ErrorKind.PERMISSION,
    "0x80040255": ErrorKind.DEADLOCK,     # the transaction was already rolled back, usually by a swallowed deadlock
    "0x80044151": ErrorKind.TOO_BIG,      # SQL timeout
    "0x8004418d": ErrorKind.TOO_BIG,      # sandbox message size
    "0x80040265": ErrorKind.BUSINESS,     # a plug-in aborted
    "0x80040224": ErrorKind.BUSINESS,
    "0x80040237": ErrorKind.DATA,         # duplicate record
    "0x80060892": ErrorKind.DATA,         # alternate key violated
    "0x80040333": ErrorKind.DATA,         # duplicate detection rule
    "0x80060891": ErrorKind.DATA,         # alternate key not found
    "0x80040217": ErrorKind.DATA,         # record not found
    "0x80044331": ErrorKind.DATA,         # too long
    "0x80048d19": ErrorKind.DATA,         # payload
    "0x80060882": ErrorKind.DATA,         # version mismatch
    "0x80040219": ErrorKind.UNSUPPORTED,
    "0x80044824": ErrorKind.UNSUPPORTED,
}
STATUSES = {
    401: ErrorKind.TOKEN,
    403: ErrorKind.PERMISSION,
    408: ErrorKind.CONNECTION, 502: ErrorKind.CONNECTION, 503: ErrorKind.CONNECTION, 504: ErrorKind.CONNECTION,
    413: ErrorKind.TOO_BIG,
    404: ErrorKind.DATA, 409: ErrorKind.DATA, 412: ErrorKind.DATA, 422: ErrorKind.DATA,
    405: ErrorKind.UNSUPPORTED, 501: ErrorKind.UNSUPPORTED,
}
SQL_NUMBERS = {
    1205: ErrorKind.DEADLOCK,
    3732: ErrorKind.RACE, 2766: ErrorKind.RACE, 2812: ErrorKind.RACE,
    -2: ErrorKind.TOO_BIG,
}
# fmt: on

SQL_ERROR = "0x80044150"
SQL_NUMBER = re.compile(r"\bSql\s*(?:Error\s*)?Number\s*[:=]\s*(-?\d+)\b", re.IGNORECASE)
SQL_WORDS = (
    (re.compile(r"\bdeadlock", re.IGNORECASE), ErrorKind.DEADLOCK),
    (re.compile(r"could not find stored procedure", re.IGNORECASE), ErrorKind.RACE),
    (
        re.compile(r"cannot drop type|definition for user-defined data type .* has changed", re.IGNORECASE),
        ErrorKind.RACE,
    ),
)
UNSUPPORTED_WORDS = re.compile(
    r"not yet been implemented|is not enabled on the entity|does not support entities of type", re.IGNORECASE
)
ROW_STATUSES = {429: ErrorKind.THROTTLED, 449: ErrorKind.THROTTLED, 503: ErrorKind.THROTTLED}


def classify(status: int, code: str | None, message: str, *, has_retry_after: bool = False) -> ErrorKind:
    """The class of a refusal, by its status, the platform's code and, where these say too little, its words.

    A throttle comes first whatever else is said, since waiting is always right for it.
    """
    code = (code or "").lower()
    if status == 429 or CODES.get(code) is ErrorKind.THROTTLED or (status == 503 and has_retry_after):
        return ErrorKind.THROTTLED
    if status == 401:
        return ErrorKind.TOKEN
    if UNSUPPORTED_WORDS.search(message):
        return ErrorKind.UNSUPPORTED
    if code == SQL_ERROR:
        return _sql_error_kind(message)
    return CODES.get(code) or STATUSES.get(status) or (ErrorKind.DATA if status == 400 else ErrorKind.OTHER)


def _sql_error_kind(message: str) -> ErrorKind:
    """What the database under the platform ran into; a number counts only next to the words that announce it."""
    for number in sql_numbers(message):
        if number in SQL_NUMBERS:
            return SQL_NUMBERS[number]
    return next((kind for words, kind in SQL_WORDS if words.search(message)), ErrorKind.OTHER)


def sql_numbers(message: str) -> list[int]:
    """The SQL error numbers a message states as such."""
    return [int(number) for number in SQL_NUMBER.findall(message)]


def limit_hit(code: str | None) -> Limit | None:
    """Which of the service protection limits a code stands for."""
    return LIMITS.get((code or "").lower())


def row_error_kind(status: int) -> ErrorKind:
    """The class of one row's failure in a partly failed call on an elastic table, whose statuses are the store's."""
    return ROW_STATUSES.get(status) or STATUSES.get(status) or (ErrorKind.DATA if status == 400 else ErrorKind.OTHER)
