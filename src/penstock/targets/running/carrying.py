"""Carries a batch to its end: makes calls for it, and acts on what the remote says until its records are settled."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence, Set
from itertools import count
from operator import attrgetter

from penstock.targets.model import Mode, TargetError, Trouble, Verdict
from penstock.targets.rules.policy import (
    RETRYABLE,
    Act,
    Move,
    RetryBudget,
    after_lost_question,
    after_refusal,
    not_applied,
)
from penstock.targets.rules.recovery import halves
from penstock.targets.rules.sizing import BatchSize
from penstock.targets.running.calling import Caller, NotNow
from penstock.targets.running.desk import Desk
from penstock.targets.running.diagnosing import Diagnosing
from penstock.targets.running.isolating import Isolating
from penstock.targets.running.job import Job
from penstock.targets.running.party import Turn
from penstock.targets.running.sending import Sender
from penstock.targets.running.work import Manner, Work
from penstock.targets.target import Answer, Same

__all__ = ["Carrier"]

JUDGED = frozenset({Trouble.DATA, Trouble.BUSINESS})
"""The remote looked at the records and said no; an earlier, unanswered call was told the same."""
SILENT = frozenset({Trouble.CONNECTION, Trouble.TOKEN})
_ERROR = attrgetter("error")


class Carrier:
    """Knows what to do with an answer and with a refusal; keeps what the batches of a call learn from each other."""

    def __init__(self, job: Job, desk: Desk, caller: Caller, size: BatchSize) -> None:
        self._job, self._desk, self._size = job, desk, size
        self._pool, self._policy = caller.pool, caller.pool.policy
        self._sender = Sender(job, caller, size, desk.is_held)
        self._budget = RetryBudget(self._policy.budget)
        self._numbers = count(1)
        self.diagnosing = Diagnosing(job)
        self._isolating = Isolating(job, desk, self._policy, self.diagnosing, self.new_key)
        self.retries: Counter[Trouble] = Counter()
        self.throttles = 0
        self.counts_exact = True

    @property
    def in_flight(self) -> Set[Work]:
        """Work whose call is under way."""
        return self._sender.in_flight

    @property
    def calls(self) -> int:
        """Calls made so far."""
        return self._sender.calls

    def new_key(self) -> str:
        """A key that no other batch has."""
        return f"{self._job.call_id}-{next(self._numbers)}"

    async def attempt(self, work: Work) -> bool:
        """Make one call for the work; False when it is settled or in pieces, True when it needs another."""
        try:
            if work.manner is Manner.ASK:
                return self._reconciled(work, await self._sender.ask(work))
            answer = await self._sender.send(work)
        except TargetError as error:
            return self._refused(work, error)
        except NotNow:
            return True
        return self._answered(work, answer)

    def _answered(self, work: Work, answer: Answer) -> bool:
        verdicts = answer.verdicts
        self._budget.earn()
        # After a lost answer, what that call created is updated by this one.
        self.counts_exact &= answer.counts_exact and (work.doubt is None or self._job.mode is not Mode.UPSERT)
        has_errors = verdicts.verdict.error if isinstance(verdicts, Same) else any(map(_ERROR, verdicts))
        self._isolating.answered(work, verdicts)
        if not has_errors:
            self._desk.settle(work, verdicts)
            return False
        return self._partly_answered(work, verdicts)

    def _partly_answered(self, work: Work, verdicts: Sequence[Verdict]) -> bool:
        """Settle the records that were judged; the others are treated as if their batch had been refused."""
        groups: dict[tuple[Trouble, bool], list[int]] = {}
        done = []
        for position, verdict in enumerate(verdicts):
            error = verdict.error
            if error is not None and (error.kind in RETRYABLE or error.maybe_applied):
                groups.setdefault((error.kind, error.maybe_applied), []).append(position)
            else:
                done.append(position)
        manner = work.manner
        pieces = [(work.part(group, self.new_key(), manner), verdicts[group[0]].error) for group in groups.values()]
        if done:
            self._desk.settle(work.part(done, work.key), [verdicts[position] for position in done])
        is_again = False
        for piece, error in pieces:
            assert error is not None
            if error.kind is Trouble.THROTTLED:
                self._pool.refused(work.source, error)
            is_again |= self._continue(work, piece, self._refused(piece, error))
        return is_again

    def _continue(self, work: Work, piece: Work, is_again: bool) -> bool:
        """Whether the work itself goes on; a piece of it that does is launched."""
        if is_again and piece is not work:
            self._desk.launch(piece)
            return False
        return is_again

    def _reconciled(self, work: Work, known: Sequence[Verdict | None]) -> bool:
        """What the remote knows is final; what it does not know was not applied, and is treated as refused."""
        assert work.doubt is not None
        error = not_applied(work.doubt)
        absent = [position for position, verdict in enumerate(known) if verdict is None]
        done = [position for position, verdict in enumerate(known) if verdict is not None]
        piece = work.part(absent, self.new_key()) if absent else None
        if done:
            self._desk.settle(work.part(done, work.key), [verdict for verdict in known if verdict is not None])
        if piece is None:
            return False
        piece.doubt = None
        return self._continue(work, piece, self._decide(piece, error))

    def _refused(self, work: Work, error: TargetError) -> bool:
        self._adapt(error)
        if work.manner is Manner.ASK:
            work.lost_questions[error.kind] += 1
            return self._act(work, error, after_lost_question(error, work.lost_questions, self._policy))
        work.tries[error.kind] += 1
        if error.maybe_applied:
            work.doubt = error
        elif error.kind in JUDGED:
            work.doubt = None
        return self._decide(work, error)

    def _adapt(self, error: TargetError) -> None:
        match error.kind:
            case Trouble.THROTTLED:
                self.throttles += 1
                self._size.throttled(error.limit)
                self._desk.report()
            case Trouble.TOO_BIG | Trouble.DEADLOCK:
                self._size.was_too_much()

    def _decide(self, work: Work, error: TargetError) -> bool:
        return self._act(work, error, after_refusal(error, work.tries, self._job.traits, len(work), self._policy))

    def _act(self, work: Work, error: TargetError, move: Move) -> bool:
        match move.act:
            case Act.AGAIN:
                return self._again(work, error, move.retry)
            case Act.ASK:
                work.manner, work.turn = Manner.ASK, Turn.RETRY
                work.lost_questions.clear()
                return True
            case Act.SPLIT:
                self._isolating.split(work, halves(len(work)))
            case Act.ISOLATE:
                return self._isolating.refused(work, error)
            case Act.STOP:
                self._desk.fail(work, error)
                self._desk.stop("systemic", error)
            case Act.FAIL | Act.LEAVE_UNKNOWN:
                self._give_up(work, error)
        return False

    def _again(self, work: Work, error: TargetError, retry: int) -> bool:
        if retry and not self._budget.spend():
            self._give_up(work, error)
            return False
        if retry:
            self.retries[error.kind] += 1
            work.wait_s = self._policy.wait_s(retry, self._pool.entropy.jitter)
        if error.kind is Trouble.RACE:
            self._pool.races.begin(self._job.table, work)
        work.turn = Turn.RETRY
        return True

    def _give_up(self, work: Work, error: TargetError) -> None:
        """No more tries for this work; and for no other, when the remote does not answer at all."""
        self._desk.fail(work, error)
        if error.kind in SILENT and self._pool.is_broken:
            self._desk.stop("systemic", error)
