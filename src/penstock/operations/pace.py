"""How fast an operation goes, from looks at its counters; pure, so that displays can be tested without waiting."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from penstock.operations.model import Operation
from penstock.printable import duration, per_second

__all__ = ["AT_REST", "Look", "Pace", "sentence"]

WINDOW_S = 10.0
AT_REST = ("Paused", "Stopping")  # rows that run may still end, but no rate says when the others will


@dataclass(frozen=True, slots=True)
class Look:
    """One look at an operation: its phase, how many rows are done, of how many, and how many went wrong."""

    phase: str
    done: int
    total: int | None
    failed: int
    waiting: int
    share: float | None = None  # of the steps of all rows that are done

    @classmethod
    def at(cls, operation: Operation) -> Look:
        """The rows that count in the operation's phase."""
        is_paused_reading = operation.status == "Paused" and not operation.total_rows
        is_reading = operation.status in ("Pending", "Validating") or is_paused_reading
        return cls(
            phase=operation.status,
            done=operation.rows_read if is_reading else operation.processed_rows,
            total=None if is_reading else operation.total_rows,
            failed=operation.failed_rows,
            waiting=operation.waiting_rows,
            share=operation.steps_done / operation.steps_total if operation.steps_total else None,
        )


@dataclass
class Pace:
    """Rows a second over the last seconds of one phase, and how long the rest will take."""

    window_s: float = WINDOW_S
    _phase: str = ""
    _seen: deque[tuple[float, int]] = field(default_factory=deque)

    def note(self, look: Look, now: float) -> None:
        """Take a look into account; a new phase starts anew."""
        if look.phase != self._phase:
            self._phase = look.phase
            self._seen.clear()
        self._seen.append((now, look.done))
        while len(self._seen) > 2 and self._seen[0][0] < now - self.window_s:
            self._seen.popleft()

    @property
    def rate(self) -> float | None:
        """Rows a second; None as long as there is nothing to tell, and while nothing new begins."""
        if len(self._seen) < 2 or self._phase in AT_REST:
            return None
        (began, first), (ended, last) = self._seen[0], self._seen[-1]
        return (last - first) / (ended - began) if ended > began and last > first else None

    def left_s(self, look: Look) -> float | None:
        """How long the rest will take at this rate."""
        rate = self.rate
        return None if rate is None or look.total is None else (look.total - look.done - look.waiting) / rate


def sentence(look: Look, pace: Pace) -> str:
    """One line of progress for a log."""
    parts = [f"{look.done:,} of {look.total:,} rows" if look.total is not None else f"{look.done:,} rows read"]
    if look.share is not None and look.total is not None:
        parts[0] += f" ({int(look.share * 100)} %)"
    if look.failed:
        parts.append(f"{look.failed:,} failed")
    if look.waiting:
        parts.append(f"{look.waiting:,} waiting")
    if pace.rate is not None:
        parts.append(per_second(pace.rate))
    left = pace.left_s(look)
    if left:
        parts.append(f"{duration(left)} left")
    return f"{look.phase}: {', '.join(parts)}"
