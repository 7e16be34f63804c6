"""What kind of trouble a refusal of Dataverse is: a table of its codes, and the few messages that have none."""

from __future__ import annotations

import re

from penstock.targets.model import Limit, Trouble

__all__ = ["classify", "limit_hit", "row_trouble", "sql_numbers"]

# fmt: off
LIMITS = {
    "0x80072322": Limit.REQUESTS,
    "0x80072321": Limit.TIME,
    "0x80072326": Limit.CONCURRENCY,
}
CODES = {
    **dict.fromkeys(LIMITS, Trouble.THROTTLED),
    "0x80072327": Trouble.THROTTLED,
    "0x80072329": Trouble.THROTTLED,
    "0x80048544": Trouble.THROTTLED,
    "0x8004a100": Trouble.TOKEN,
    "0x8004a101": Trouble.TOKEN,        # expired ticket
    "0x8004a102": Trouble.TOKEN,
    "0x8004a103": Trouble.TOKEN,
    "0x8004a104": Trouble.TOKEN,
    "0x8004a105": Trouble.TOKEN,
    "0x80040220": Trouble.PERMISSION,   # privilege denied
    "0x80048306": Trouble.PERMISSION,   # access denied
    "0x80040225": Trouble.PERMISSION,   # user disabled
    "0x80042f09": Trouble.PERMISSION,
    "0x80040255": Trouble.DEADLOCK,     # the transaction was already rolled back, usually by a swallowed deadlock
    "0x80044151": Trouble.TOO_BIG,      # SQL timeout
    "0x8004418d": Trouble.TOO_BIG,      # sandbox message size
    "0x80040265": Trouble.BUSINESS,     # a plug-in aborted
    "0x80040224": Trouble.BUSINESS,
    "0x80040237": Trouble.DATA,         # duplicate record
    "0x80060892": Trouble.DATA,         # alternate key violated
    "0x80040333": Trouble.DATA,         # duplicate detection rule
    "0x80060891": Trouble.DATA,         # alternate key not found
    "0x80040217": Trouble.DATA,         # record not found
    "0x80044331": Trouble.DATA,         # too long
    "0x80048d19": Trouble.DATA,         # payload
    "0x80060882": Trouble.DATA,         # version mismatch
    "0x80040219": Trouble.UNSUPPORTED,
    "0x80044824": Trouble.UNSUPPORTED,
}
STATUSES = {
    401: Trouble.TOKEN,
    403: Trouble.PERMISSION,
    408: Trouble.CONNECTION, 502: Trouble.CONNECTION, 503: Trouble.CONNECTION, 504: Trouble.CONNECTION,
    413: Trouble.TOO_BIG,
    404: Trouble.DATA, 409: Trouble.DATA, 412: Trouble.DATA, 422: Trouble.DATA,
    405: Trouble.UNSUPPORTED, 501: Trouble.UNSUPPORTED,
}
SQL_NUMBERS = {
    1205: Trouble.DEADLOCK,
    3732: Trouble.RACE, 2766: Trouble.RACE, 2812: Trouble.RACE,
    -2: Trouble.TOO_BIG,
}
# fmt: on

SQL_ERROR = "0x80044150"
SQL_NUMBER = re.compile(r"\bSql\s*(?:Error\s*)?Number\s*[:=]\s*(-?\d+)\b", re.IGNORECASE)
SQL_WORDS = (
    (re.compile(r"\bdeadlock", re.IGNORECASE), Trouble.DEADLOCK),
    (re.compile(r"could not find stored procedure", re.IGNORECASE), Trouble.RACE),
    (re.compile(r"cannot drop type|definition for user-defined data type .* has changed", re.IGNORECASE), Trouble.RACE),
)
UNSUPPORTED_WORDS = re.compile(
    r"not yet been implemented|is not enabled on the entity|does not support entities of type", re.IGNORECASE
)
ROW_STATUSES = {429: Trouble.THROTTLED, 449: Trouble.THROTTLED, 503: Trouble.THROTTLED}


def classify(status: int, code: str | None, message: str, *, has_retry_after: bool = False) -> Trouble:
    """The class of a refusal, by its status, the platform's code and, where these say too little, its words.

    A throttle comes first whatever else is said, since waiting is always right for it.
    """
    code = (code or "").lower()
    if status == 429 or CODES.get(code) is Trouble.THROTTLED or (status == 503 and has_retry_after):
        return Trouble.THROTTLED
    if status == 401:
        return Trouble.TOKEN
    if UNSUPPORTED_WORDS.search(message):
        return Trouble.UNSUPPORTED
    if code == SQL_ERROR:
        return _sql_trouble(message)
    return CODES.get(code) or STATUSES.get(status) or (Trouble.DATA if status == 400 else Trouble.OTHER)


def _sql_trouble(message: str) -> Trouble:
    """What the database under the platform ran into; a number counts only next to the words that announce it."""
    for number in sql_numbers(message):
        if number in SQL_NUMBERS:
            return SQL_NUMBERS[number]
    return next((trouble for words, trouble in SQL_WORDS if words.search(message)), Trouble.OTHER)


def sql_numbers(message: str) -> list[int]:
    """The SQL error numbers a message states as such."""
    return [int(number) for number in SQL_NUMBER.findall(message)]


def limit_hit(code: str | None) -> Limit | None:
    """Which of the service protection limits a code stands for."""
    return LIMITS.get((code or "").lower())


def row_trouble(status: int) -> Trouble:
    """The class of one row's failure in a partly failed call on an elastic table, whose statuses are the store's."""
    return ROW_STATUSES.get(status) or STATUSES.get(status) or (Trouble.DATA if status == 400 else Trouble.OTHER)
