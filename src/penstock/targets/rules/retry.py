"""What to do when a remote refuses a batch: pure rules, each class of error with its own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, auto
from math import isfinite
from random import Random

from penstock.targets.model import Capabilities, ErrorKind, TargetError

__all__ = ["FINITE", "RETRYABLE", "Act", "Move", "RetryBudget", "RetryPolicy", "after_lost_question", "after_refusal"]

FINITE = frozenset({ErrorKind.TOKEN, ErrorKind.CONNECTION, ErrorKind.SERVER, ErrorKind.DEADLOCK, ErrorKind.RACE})
"""Worth a few tries, counted for each class on its own."""
RETRYABLE = FINITE | {ErrorKind.THROTTLED, ErrorKind.TOO_BIG}
"""Says nothing about the records themselves."""

WAITS_IN_VAIN = 5
"""So many waits as short as a remote names them do little harm; longer ones would miss the end of a short window."""


@dataclass(frozen=True, kw_only=True)
class RetryPolicy:
    """How patient the executor is."""

    retries_max: int = 3
    """Retries after the first try, for each of token, connection, deadlock and race."""
    wait_first_s: float = 0.5
    """Doubled with every retry: 0.5, 1 and 2 s."""
    jitter: float = 0.25
    """Up to this share of a wait is added by chance."""
    throttle_default_s: float = 30.0
    """When a remote throttles without saying for how long."""
    throttle_min_s: float = 0.1
    throttle_max_s: float | None = None
    """A remote that asks for more is asked again after this; None waits as long as it says."""
    acquire_timeout_s: float = 120.0
    """Without a free slot for so long, the pool counts as exhausted; the wait goes on in steps of 1 to 32 s."""
    budget: float = 100.0
    """Retries of one call that were not yet paid for by calls that went well; see `RetryBudget`."""
    breaker_failures: int = 5
    """Calls in a row that got no answer before a source is left alone."""
    breaker_first_s: float = 1.0
    breaker_max_s: float = 30.0
    outage_s: float = 300.0
    """How long a remote may give nobody an answer before a call gives up; a restart takes less."""
    extra_calls_max: int = 512
    """Calls spent on finding the guilty records of one batch; after that what is left of it fails whole."""
    grace_s: float = 5.0
    """How long calls in flight may take to finish after a cancellation or at the deadline."""

    def wait_s(self, retry: int, random: Random) -> float:
        """Seconds before retry number `retry`, counted from 1."""
        return self.wait_first_s * 2.0 ** (retry - 1) * (1 + self.jitter * random.random())

    def outage_wait_s(self, silent_s: float) -> float:
        """Seconds before the next try at a remote that has not answered for so long."""
        return min(max(self.wait_first_s, silent_s / 4), self.breaker_max_s)

    def silent_pause_s(self, asked_s: float | None) -> float:
        """The longest that work which got no answer may wait before it tries again."""
        retry_s = self.wait_first_s * 2.0 ** max(self.retries_max - 1, 0) * (1 + self.jitter)
        return max(retry_s, self.breaker_max_s, 0.0 if asked_s is None else self.throttle_s(asked_s))

    def throttle_s(self, asked_s: float | None, in_vain: int = 0) -> float:
        """For how long a throttled source is left alone.

        A remote that was left alone `in_vain` too often named too short a wait: from then on each is longer by as much
        again, up to the one that holds where none is named.
        """
        if asked_s is None or not isfinite(asked_s):
            return self.throttle_default_s
        wait_s = max(asked_s, self.throttle_min_s)
        wait_s = max(wait_s, min(wait_s * max(1, in_vain - WAITS_IN_VAIN + 1), self.throttle_default_s))
        return wait_s if self.throttle_max_s is None else min(wait_s, self.throttle_max_s)


class RetryBudget:
    """Keeps one call from hammering a remote that is not well: two calls that went well pay for one retry."""

    def __init__(self, capacity: float) -> None:
        self._capacity = self._left = capacity

    def spend(self) -> bool:
        """Take one retry out, or say that there is none left."""
        if self._left < 1:
            return False
        self._left -= 1
        return True

    def earn(self) -> None:
        self._left = min(self._capacity, self._left + 0.5)


class Act(Enum):
    """What becomes of a refused batch."""

    AGAIN = auto()  # send it again, after the wait
    ASK = auto()  # find out first what became of it
    SPLIT = auto()  # as two halves
    ISOLATE = auto()  # look for the guilty records: one of SPLIT, EJECT, EACH, FAIL and STOP
    EJECT = auto()  # the records the remote named on their own, the rest together
    EACH = auto()  # record by record, in one call
    FAIL = auto()  # its records fail with the cause
    LEAVE_UNKNOWN = auto()  # nobody can say
    STOP = auto()  # its records fail, and no other could do better


@dataclass(frozen=True, slots=True)
class Move:
    """A decision; `retry` counts from 1 and is 0 where no retry is counted."""

    act: Act
    retry: int = 0


def after_refusal(
    error: TargetError, tries: Mapping[ErrorKind, int], capabilities: Capabilities, size: int, policy: RetryPolicy
) -> Move:
    """What to do with a batch of `size` records; `tries` counts the refusals so far, this one included."""
    if error.maybe_applied and not capabilities.is_idempotent:
        return Move(Act.ASK if capabilities.can_reconcile else Act.LEAVE_UNKNOWN)
    match error.kind:
        case ErrorKind.THROTTLED:
            return Move(Act.AGAIN)
        case ErrorKind.TOO_BIG:
            return Move(Act.SPLIT if size > 1 else Act.FAIL)
        case ErrorKind.UNSUPPORTED:
            return Move(Act.STOP)
        case kind if kind in FINITE:
            is_smaller_better = kind is ErrorKind.DEADLOCK and size > 1
            used_up = Act.SPLIT if is_smaller_better else Act.ISOLATE if kind is ErrorKind.SERVER else Act.FAIL
            return _few_times(tries[kind], policy, used_up)
        case _:
            return Move(Act.ISOLATE)


def after_lost_question(error: TargetError, tries: Mapping[ErrorKind, int], policy: RetryPolicy) -> Move:
    """What to do when the remote could not be asked what became of a batch; asking changes nothing."""
    if error.kind is ErrorKind.THROTTLED:
        return Move(Act.AGAIN)
    if error.kind in FINITE:
        return _few_times(tries[error.kind], policy, Act.LEAVE_UNKNOWN)
    return Move(Act.LEAVE_UNKNOWN)


def _few_times(refusals: int, policy: RetryPolicy, otherwise: Act) -> Move:
    return Move(Act.AGAIN, refusals) if refusals <= policy.retries_max else Move(otherwise)
