"""What the parts of a bulk call tell each other about a batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from penstock.targets.model import Outcome, TargetError, Verdict
from penstock.targets.results import StoppedReason
from penstock.targets.running.work import Work
from penstock.targets.target import Same

__all__ = ["Desk"]


@dataclass(frozen=True, slots=True)
class Desk:
    """Whom a batch asks whether it may go, and tells that it is through, in pieces, or that all must stop."""

    is_held: Callable[[Work], bool]
    settle: Callable[[Work, Sequence[Verdict]], None]
    launch: Callable[[Work], None]
    stop: Callable[[StoppedReason, BaseException], None]
    report: Callable[[], None]

    def fail(self, work: Work, error: TargetError) -> None:
        """The records of the work fail; or nobody knows, when an earlier call for them may have taken effect."""
        if work.doubt is None:
            verdict = Verdict(Outcome.FAILED, error=error)
        else:
            verdict = Verdict(Outcome.UNKNOWN, error=work.doubt)
        self.settle(work, Same(verdict, len(work)))
