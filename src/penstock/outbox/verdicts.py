"""What an attempt to deliver leads to: done, again later, given up, or nothing more to this receiver."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

__all__ = ["ATTEMPTS_MAX", "RETRY_AFTER_S_MAX", "Answer", "Verdict", "judge", "retry_after_s"]

MINUTE, HOUR = 60, 3600
# After the first attempt, the second, and so on: the schedule that Standard Webhooks recommends.
WAITS_S = (5, 5 * MINUTE, 30 * MINUTE, 2 * HOUR, 5 * HOUR, 10 * HOUR, 14 * HOUR, 20 * HOUR, 24 * HOUR)
ATTEMPTS_MAX = len(WAITS_S) + 1
JITTER = 0.2
RETRY_AFTER_S_MAX = 24 * HOUR
BUSY = (429, 502, 503, 504)
GONE = 410


@dataclass(frozen=True, slots=True)
class Answer:
    """What came of an attempt: an HTTP status, or the fault why there was none."""

    status: int | None = None
    fault: str | None = None
    retry_after_s: int | None = None

    @property
    def is_success(self) -> bool:
        """Whether the receiver took it."""
        return self.fault is None and (self.status is None or 200 <= self.status < 300)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What becomes of a delivery. `holds_s` is for how long its receiver gets nothing else; `ends` means for ever."""

    event: str  # processed, postponed or failed
    reason: str | None = None
    wait_s: float = 0
    holds_s: float = 0
    ends: bool = False


def judge(answer: Answer, *, attempts: int, attempts_max: int, chance: float) -> Verdict:
    """What becomes of a delivery after so many attempts; `chance` from 0 to 1 scatters the next one."""
    if answer.is_success:
        return Verdict("processed")
    reason = answer.fault or _said(answer.status or 0)
    if answer.status == GONE:
        return Verdict("failed", reason, ends=True)
    is_busy, asked_s = answer.status in BUSY, answer.retry_after_s or 0
    if attempts >= attempts_max:
        return Verdict("failed", reason, holds_s=asked_s if is_busy else 0)
    anew = attempts - max(0, attempts_max - ATTEMPTS_MAX)  # since it was sent again by hand
    wait = max(WAITS_S[min(anew, len(WAITS_S)) - 1] * (1 + JITTER * chance), asked_s)
    return Verdict("postponed", reason, wait, wait if is_busy else 0)


def retry_after_s(value: str | None, now: datetime) -> int | None:
    """The header `Retry-After`, seconds or a date, as seconds from now: a day at most; None when it says nothing."""
    if value is None:
        return None
    text = value.strip()
    if text.isascii() and text.isdigit():
        return min(int(text[:9]), RETRY_AFTER_S_MAX)
    try:
        at = parsedate_to_datetime(text)
    except ValueError:
        return None
    at = at if at.tzinfo is not None else at.replace(tzinfo=UTC)
    return min(max(0, round((at - now).total_seconds())), RETRY_AFTER_S_MAX)


def _said(status: int) -> str:
    if 300 <= status < 400:
        return f"the receiver answered {status}; redirects are not followed"
    return f"the receiver answered {status}"
