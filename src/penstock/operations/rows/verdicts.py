"""What becomes of a row after one attempt: pure rules, no clock, no database."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from penstock.errors import RetryLater, StepFailed
from penstock.operations.messages import cut, in_doubt, message_of
from penstock.pipeline import StepOptions

__all__ = ["RETRY_LATER_MAX_S", "AttemptTimedOut", "OutputLost", "Verdict", "WrongLength", "error_text", "judge"]

RETRY_LATER_MAX_S = timedelta(hours=24).total_seconds()
RETRY_LATER_MIN_S = 0.1  # each attempt is an intent and a flush


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
    of its call; when it raised an error itself, that is no doubt.
    """
    if options.delivery == "at_most_once" and _is_unknown(error):
        what = error_text(error) if isinstance(error, Exception) else f"the call was cut off ({error_text(error)})"
        return Verdict("left_in_doubt", "InDoubt", in_doubt(what), spends_retry=True)
    if isinstance(error, RetryLater) and (seconds := _seconds_of(error)) is not None:
        after = max(seconds, RETRY_LATER_MIN_S)
        if postponed_s + after > RETRY_LATER_MAX_S:
            return Verdict("failed", "Timeout", f"still told to retry later after 24 h: {error_text(error)}")
        return Verdict("postponed", "StepFailure", error_text(error) or "asked to retry later", after=after)
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


def _seconds_of(error: RetryLater) -> float | None:
    """After how many seconds to try again; None when a subclass has not said it."""
    try:
        after: Any = error.after
        return float(after) if isinstance(after, int | float) and 0 <= after < math.inf else None
    except BaseException:  # a user's class may have made anything of it
        return None


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


def error_text(error: BaseException) -> str:
    """What to show of an exception: its message, or its type when it has none; the type leads unless it is ours."""
    text = message_of(error)
    if isinstance(error, StepFailed | RetryLater | AttemptTimedOut | OutputLost):
        return cut(text or type(error).__name__)
    return cut(f"{type(error).__name__}: {text}" if text else type(error).__name__)
