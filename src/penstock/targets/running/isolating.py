"""Looks for the guilty records of a batch that failed as a whole; its pieces are sent like any other work."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from penstock.targets.causes import cause_of
from penstock.targets.model import Outcome, TargetError, Verdict
from penstock.targets.rules.policy import RetryPolicy
from penstock.targets.rules.recovery import Course, Isolation, Search, halves, next_course, suspects_and_rest
from penstock.targets.running.desk import Desk
from penstock.targets.running.diagnosing import Diagnosing
from penstock.targets.running.job import Job
from penstock.targets.running.party import Turn
from penstock.targets.running.work import Manner, Work

__all__ = ["Isolating"]


class Isolating:
    """The searches of one bulk call."""

    def __init__(
        self, job: Job, desk: Desk, policy: RetryPolicy, diagnosing: Diagnosing, new_key: Callable[[], str]
    ) -> None:
        self._job, self._desk, self._policy, self._diagnosing, self._new_key = job, desk, policy, diagnosing, new_key
        self._search = Search()

    def refused(self, work: Work, error: TargetError) -> bool:
        """Take the next step with work that failed for its records; True when the work itself is sent again."""
        self._search.sent += 1
        self._search.failed += 1
        if work.isolation is None:
            work.isolation = Isolation(cause_of(error), self._diagnosing.of_batch(work, error))
        if not self._job.options.isolate:
            self._desk.fail(work, error)
            return False
        work.isolation.note(error)
        match self._course(work, work.isolation, error):
            case Course.EACH:
                work.isolation.calls += 1
                work.manner, work.turn = Manner.EACH, Turn.PIECE
                return True
            case Course.EJECT:
                self.split(work, suspects_and_rest(len(work), error))
            case Course.HALVE:
                self.split(work, halves(len(work)))
            case Course.FAIL:
                self._desk.fail(work, error)
            case Course.STOP:
                self._desk.fail(work, error)
                self._desk.stop("systemic", error)
        return False

    def answered(self, work: Work, verdicts: Sequence[Verdict]) -> None:
        """Learn from an answer; what it says about a piece says something about the rest of its batch."""
        self._search.sent += 1
        isolation = work.isolation
        if isolation is None:
            return
        failures = [verdict.error for verdict in verdicts if verdict.outcome is Outcome.FAILED]
        isolation.has_passed |= len(failures) < len(verdicts)
        for error in failures:
            if error is not None:
                isolation.note(error)
        if failures and failures[0] is not None and isolation.is_systemic:
            self._desk.stop("systemic", failures[0])

    def split(self, work: Work, parts: Sequence[Sequence[int]]) -> None:
        """Send the records at these positions on their own, with tries of their own."""
        for positions in parts:
            piece = work.part(positions, self._new_key())
            piece.tries.clear()
            if piece.isolation is not None:
                piece.isolation.calls += 1
            self._desk.launch(piece)

    def _course(self, work: Work, isolation: Isolation, error: TargetError) -> Course:
        return next_course(
            len(work),
            error,
            isolation,
            self._search,
            can_send_each=self._job.target.can_send_each and work.manner is Manner.SEND,
            extra_calls_max=self._policy.extra_calls_max,
        )
