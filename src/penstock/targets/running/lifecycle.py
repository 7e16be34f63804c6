"""Takes a batch to its end: makes calls for it, and acts on what the remote says until its records are settled.

`attempt` makes one call. Its result is an answer (`_answered`), a refusal (`_refused`) or news of what became of a lost
call (`_reconciled`). `_sort_verdicts` settles the records that are through; the others go on as a batch that was
refused. `rules.retry` decides what becomes of a refused batch, `_act` does it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence, Set
from enum import Enum, auto
from itertools import count
from operator import attrgetter

from penstock.targets.model import ErrorKind, Mode, TargetError, Verdict
from penstock.targets.rules.batch_size import BatchSize
from penstock.targets.rules.isolation import halves
from penstock.targets.rules.retry import (
    RETRYABLE,
    Act,
    Move,
    RetryBudget,
    after_lost_question,
    after_refusal,
    not_applied,
)
from penstock.targets.running.batch import BatchCallbacks, CallSpec, PendingBatch, SendMode
from penstock.targets.running.calls import CallPostponed, Sender, SlotCaller
from penstock.targets.running.isolator import Diagnoser, Isolator
from penstock.targets.running.waiters import Priority
from penstock.targets.target import Answer, UniformVerdicts

__all__ = ["BatchLifecycle"]

JUDGED = frozenset({ErrorKind.DATA, ErrorKind.BUSINESS})
"""The remote looked at the records and said no; an earlier, unanswered call was told the same."""
_ERROR = attrgetter("error")


class _Next(Enum):
    """What is done with records of which the remote has told something."""

    SETTLE = auto()
    ASK = auto()  # whether an earlier call took effect after all
    ABSENT = auto()  # it did not


class BatchLifecycle:
    """Knows what to do with an answer and with a refusal; keeps what the batches of a call learn from each other."""

    def __init__(self, spec: CallSpec, callbacks: BatchCallbacks, caller: SlotCaller, size: BatchSize) -> None:
        self._spec, self._callbacks, self._size = spec, callbacks, size
        self._pool, self._policy = caller.pool, caller.policy
        self._sender = Sender(spec, caller, size, callbacks.is_held)
        self._budget = RetryBudget(self._policy.budget)
        self._numbers = count(1)
        self.diagnoser = Diagnoser(spec)
        self._isolator = Isolator(spec, callbacks, self._policy, self.diagnoser, self.new_key)
        self.retries: Counter[ErrorKind] = Counter()
        self.throttles = 0
        self.counts_exact = True

    @property
    def in_flight(self) -> Set[PendingBatch]:
        """Work whose call is under way."""
        return self._sender.in_flight

    @property
    def calls(self) -> int:
        """Calls made so far."""
        return self._sender.calls

    def new_key(self) -> str:
        """A key that no other batch has."""
        return f"{self._spec.call_id}-{next(self._numbers)}"

    async def attempt(self, work: PendingBatch) -> bool:
        """Make one call for the work; False when it is settled or in pieces, True when it needs another."""
        try:
            if work.send_mode is SendMode.ASK:
                work.answers += await self._sender.ask(work)
                work.lost_questions.clear()
                return len(work.answers) < len(work) or self._reconciled(work, work.answers)
            answer = await self._sender.send(work)
        except TargetError as error:
            return self._refused(work, error)
        except CallPostponed:
            return True
        return self._answered(work, answer)

    def _answered(self, work: PendingBatch, answer: Answer) -> bool:
        verdicts = answer.verdicts
        self._budget.earn()
        # After a lost answer, what that call created is updated by this one.
        self.counts_exact &= answer.counts_exact and (work.unresolved is None or self._spec.mode is not Mode.UPSERT)
        has_errors = verdicts.verdict.error if isinstance(verdicts, UniformVerdicts) else any(map(_ERROR, verdicts))
        self._isolator.answered(work, verdicts)
        if not has_errors:
            self._callbacks.settle(work, verdicts)
            return False
        return self._sort_verdicts(work, verdicts)

    def _reconciled(self, work: PendingBatch, known: Sequence[Verdict | None]) -> bool:
        """What the remote knows counts; what it does not know was not applied, so what it said last holds."""
        assert work.lost is not None
        refusal, verdicts = work.refusal, work.verdicts
        if refusal is None and verdicts is None:
            work.is_asked = True
            return self._sort_verdicts(work, known, not_applied(work.lost))
        work.believe()
        told = known if verdicts is None else [one or said for one, said in zip(known, verdicts, strict=True)]
        return self._sort_verdicts(work, told, refusal)

    def _sort_verdicts(
        self, work: PendingBatch, verdicts: Sequence[Verdict | None], absent: TargetError | None = None
    ) -> bool:
        """Settle the records that were judged; the others go on as if a batch of them had been refused.

        Those without a verdict, which the remote does not know, were refused with `absent`.
        """
        groups: dict[_Next | tuple[ErrorKind, bool], list[int]] = {}
        for position, verdict in enumerate(verdicts):
            groups.setdefault(self._next(work, verdict), []).append(position)
        send_mode = SendMode.SEND if work.send_mode is SendMode.ASK else work.send_mode
        pieces = [
            (what, work.part(group, self._key_for(what, work, group), send_mode), [verdicts[at] for at in group])
            for what, group in groups.items()
        ]
        is_again = [self._go_on(work, what, piece, told, absent) for what, piece, told in pieces]
        return any(is_again)

    def _next(self, work: PendingBatch, verdict: Verdict | None) -> _Next | tuple[ErrorKind, bool]:
        if verdict is None:
            return _Next.ABSENT
        error = verdict.error
        if error is None or (error.maybe_applied and work.send_mode is SendMode.ASK):
            return _Next.SETTLE  # a remote that was asked and does not know would not know if it were asked again
        if error.kind in RETRYABLE or error.maybe_applied:
            return error.kind, error.maybe_applied
        return _Next.ASK if self._is_unproven(work, error) else _Next.SETTLE

    def _key_for(self, what: object, work: PendingBatch, group: Sequence[int]) -> str:
        """A key is for one answer: records that got one go on under another."""
        is_unanswered = what is _Next.ABSENT and len(group) == len(work)
        return work.key if is_unanswered or what in (_Next.SETTLE, _Next.ASK) else self.new_key()

    def _go_on(
        self,
        work: PendingBatch,
        what: _Next | tuple[ErrorKind, bool],
        piece: PendingBatch,
        told: Sequence[Verdict | None],
        absent: TargetError | None,
    ) -> bool:
        """Do the next thing with a piece of the work; True when the piece is all of it and needs another call."""
        verdicts = [verdict for verdict in told if verdict is not None]
        match what:
            case _Next.SETTLE:
                self._callbacks.settle(piece, verdicts)
                return False
            case _Next.ASK:
                piece.verdicts = verdicts
                is_again = self._ask(piece)
            case _Next.ABSENT:
                assert absent is not None
                is_again = self._decide(piece, absent)
            case _:
                error = verdicts[0].error
                assert error is not None
                if error.kind is ErrorKind.THROTTLED:
                    self._pool.refused(work.source, error, self._policy)
                is_again = self._refused(piece, error)
        if is_again and piece is not work:
            self._callbacks.launch(piece)
            return False
        return is_again

    def _is_unproven(self, work: PendingBatch, error: TargetError) -> bool:
        """Whether a refusal may be about what an earlier, unanswered call of the same records has done by now."""
        capabilities = self._spec.capabilities
        is_lost = work.lost is not None and work.send_mode is not SendMode.ASK
        return is_lost and capabilities.can_reconcile and not capabilities.is_idempotent and error.kind not in RETRYABLE

    def _ask(self, work: PendingBatch) -> bool:
        work.send_mode, work.priority, work.is_asked = SendMode.ASK, Priority.RETRY, False
        work.lost_questions.clear()
        work.answers = []
        return True

    def _refused(self, work: PendingBatch, error: TargetError) -> bool:
        self._adapt(error)
        counts = work.lost_questions if work.send_mode is SendMode.ASK else work.tries
        counts[error.kind] = self._count(work, error, counts[error.kind])
        if work.send_mode is SendMode.ASK:
            return self._act(work, error, after_lost_question(error, counts, self._policy))
        if error.maybe_applied:
            work.lose(error)
        elif self._is_unproven(work, error):
            work.refusal = error
            return self._ask(work)
        elif error.kind in JUDGED:
            work.believe()
        return self._decide(work, error)

    def _count(self, work: PendingBatch, error: TargetError, tries: int) -> int:
        """The tries that failed so; while the remote answers nobody, the last one does not count."""
        was_outage, work.is_outage = work.is_outage, False
        if error.kind is not ErrorKind.CONNECTION:
            work.silent_since_s = None
            return tries + 1
        now = self._pool.clock.monotonic()
        if work.silent_since_s is None or self._pool.silent_s < now - work.silent_since_s:
            work.silent_since_s = now
            return 1 if was_outage else tries + 1
        work.is_outage = self._pool.silent_s < self._policy.outage_s
        return min(tries + 1, self._policy.retries_max) if work.is_outage else tries + 1

    def _adapt(self, error: TargetError) -> None:
        match error.kind:
            case ErrorKind.THROTTLED:
                self.throttles += 1
                self._size.throttled(error.limit)
                self._callbacks.report()
            case ErrorKind.TOO_BIG | ErrorKind.DEADLOCK:
                self._size.was_too_much()

    def _decide(self, work: PendingBatch, error: TargetError) -> bool:
        return self._act(
            work, error, after_refusal(error, work.tries, self._spec.capabilities, len(work), self._policy)
        )

    def _act(self, work: PendingBatch, error: TargetError, move: Move) -> bool:
        match move.act:
            case Act.AGAIN:
                return self._again(work, error, move.retry)
            case Act.ASK:
                return self._ask(work)
            case Act.SPLIT:
                self._isolator.split(work, halves(len(work)))
            case Act.ISOLATE:
                return self._isolator.refused(work, error)
            case Act.STOP:
                self._callbacks.fail(work, error)
                self._callbacks.stop("systemic", error)
            case Act.FAIL | Act.LEAVE_UNKNOWN:
                self._give_up(work, error)
        return False

    def _again(self, work: PendingBatch, error: TargetError, retry: int) -> bool:
        if retry and not work.is_outage and not self._budget.spend():
            self._give_up(work, error)
            return False
        if retry:
            self.retries[error.kind] += 1
            work.wait_s = self._policy.wait_s(retry, self._pool.entropy.jitter)
            if work.is_outage:
                work.wait_s = max(work.wait_s, self._policy.outage_wait_s(self._pool.silent_s))
        if error.kind is ErrorKind.RACE:
            self._pool.table_gate.begin(self._spec.table, work)
        work.priority = Priority.RETRY
        return True

    def _give_up(self, work: PendingBatch, error: TargetError) -> None:
        """No more tries for this work; and for no other, when the remote does not answer at all."""
        self._callbacks.fail(work, error)
        is_over = error.kind is ErrorKind.TOKEN or self._pool.silent_s >= self._policy.outage_s
        if error.kind in (ErrorKind.TOKEN, ErrorKind.CONNECTION) and is_over and self._pool.is_broken:
            self._callbacks.stop("systemic", error)
