"""What becomes of a row after one attempt: pure rules, no clock, no database."""

from __future__ import annotations

import random
import re
import zlib
from dataclasses import dataclass
from datetime import timedelta

from penstock.errors import Fault, RetryLater, StepFailed
from penstock.pipeline import StepOptions

__all__ = [
    "MESSAGE_MAX",
    "RETRY_LATER_MAX_S",
    "AttemptTimedOut",
    "OutputLost",
    "Verdict",
    "WrongLength",
    "cut",
    "describe",
    "error_group",
    "error_text",
    "in_doubt",
    "judge",
    "message_of",
]

MESSAGE_MAX = 2000
RETRY_LATER_MAX_S = timedelta(hours=24).total_seconds()


@dataclass(frozen=True, slots=True)
class Verdict:
    """The event a row step takes, and what to record with it; `after` is the delay of a postponement."""

    event: str
    error_type: str
    message: str
    after: float = 0.0
    spends_retry: bool = False


def judge(
    error: BaseException, options: StepOptions, *, errors: int, postponed_s: float, jitter: random.Random
) -> Verdict:
    """What an attempt that raised leads to.

    `errors` counts the earlier attempts of this generation that spent a retry; `postponed_s` is how long the row
    has been put off by `RetryLater` so far. A step that may run at most once is in doubt when nobody knows what became
    of its call; that it raised an error is its own word, and no doubt.
    """
    if options.delivery == "at_most_once" and _is_unknown(error):
        what = error_text(error) if isinstance(error, Exception) else f"the call was cut off ({error_text(error)})"
        return Verdict("left_in_doubt", "InDoubt", in_doubt(what), spends_retry=True)
    if isinstance(error, RetryLater):
        if postponed_s + error.after > RETRY_LATER_MAX_S:
            return Verdict("failed", "Timeout", f"still told to retry later after 24 h: {error_text(error)}")
        return Verdict("postponed", "StepFailure", error_text(error) or "asked to retry later", after=error.after)
    is_timeout = isinstance(error, AttemptTimedOut)
    error_type = "Timeout" if is_timeout else "StepFailure"
    if (
        not isinstance(error, StepFailed)
        and (is_timeout or isinstance(error, options.retry_on))
        and errors < options.retries
    ):
        after = options.backoff.delay(errors + 1, jitter)
        return Verdict("postponed", error_type, error_text(error), after=after, spends_retry=True)
    return Verdict("timed_out" if is_timeout else "failed", error_type, error_text(error), spends_retry=True)


class AttemptTimedOut(Exception):
    """An attempt ran past its step's timeout."""

    def __init__(self, seconds: float) -> None:
        super().__init__(f"no answer within {seconds:g} s")


class WrongLength(StepFailed):
    """A batch step answered for another number of rows than it was given; a retry would not help."""


class OutputLost(Exception):
    """A step that may run at most once came to its end, but what it returned cannot be stored."""


def _is_unknown(error: BaseException) -> bool:
    """Whether a call was cut off, or ended without an answer that can be used, rather than failed by itself.

    What is no `Exception` comes from outside: a cancellation that leaked, a signal, a library's timeout. But
    `SystemExit` is raised by code that wants to leave.
    """
    return isinstance(error, AttemptTimedOut | WrongLength | OutputLost) or not isinstance(
        error, Exception | SystemExit
    )


_DOUBT = ", so it may or may not have taken effect"


def in_doubt(what: str) -> str:
    """What to say of a call after which this is all that is known."""
    return cut(what, MESSAGE_MAX - len(_DOUBT)) + _DOUBT


def error_text(error: BaseException) -> str:
    """What to show of an exception: its message, or its type when it has none; the type leads unless it is ours."""
    text = message_of(error)
    if isinstance(error, StepFailed | RetryLater | AttemptTimedOut | OutputLost):
        return cut(text or type(error).__name__)
    return cut(f"{type(error).__name__}: {text}" if text else type(error).__name__)


def message_of(error: BaseException) -> str:
    """An exception's own text, which may be empty."""
    try:
        return str(error)
    except Exception:  # a user's exception may fail even at this
        return "(its text could not be made)"


def cut(text: str, limit: int = MESSAGE_MAX) -> str:
    """Text of at most `limit` characters, safe for every database, the cut marked."""
    text = text.replace("\x00", "\\x00").encode("utf-8", "backslashreplace").decode()
    if len(text) <= limit:
        return text
    mark = f"… ({len(text)} characters)"
    return text[: limit - len(mark)] + mark


_VARIABLE = re.compile(
    r"""'[^']*'|"[^"]*"|(?<=\)=)\([^)]*\)|\b0x[0-9a-f]+\b|\b[0-9a-f]{8}-[0-9a-f-]{27}\b|\d+""", re.IGNORECASE
)


def error_group(message: str) -> str:
    """A short key that is the same for messages that differ only in numbers, ids and quoted values."""
    return f"{zlib.crc32(_VARIABLE.sub('#', message).encode()):08x}"


def describe(faults: list[Fault]) -> str:
    """All faults of a row as one message."""
    return cut("; ".join(map(str, faults)))
