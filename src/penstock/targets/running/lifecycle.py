"""Takes a batch to its end: makes calls for it, and acts on what the remote says until its records are settled.

`attempt` makes one call. Its result is an answer (`_answered`), a refusal (`_refused`) or news of what became of a lost
call (`_reconciled`). `_sort_verdicts` settles the records that are through; the others go on as a batch that was
refused. `rules.retry` decides what becomes of a refused batch, and `rules.isolation` how its guilty records are found;
`_act` does it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from enum import Enum, auto
from itertools import count

from penstock.targets.diagnostics.causes import cause_of
from penstock.targets.model import JUDGED, ErrorKind, Mode, Outcome, TargetError, Verdict
from penstock.targets.pool import Priority
from penstock.targets.results import StoppedReason
from penstock.targets.rules.isolation import Isolation, Search, halves, next_act, suspects_and_rest
from penstock.targets.rules.retry import RETRYABLE, Act, Move, RetryBudget, after_lost_question, after_refusal
from penstock.targets.running.calls import Caller, CallPostponed, CallSpec, PendingBatch, SendMode
from penstock.targets.running.outcomes import batch_diagnostics
from penstock.targets.target import Answer
from penstock.targets.verdicts import UniformVerdicts, Verdicts

__all__ = ["BatchLifecycle"]


class _Next(Enum):
    """What is done with records of which the remote has told something."""

    SETTLE = auto()
    ASK = auto()  # whether an earlier call took effect after all
    ABSENT = auto()  # it did not


class BatchLifecycle:
    """Knows what to do with an answer and with a refusal; keeps what the batches of a call learn from each other.

    Whoever acts on a batch returns what is left to do of it: nothing when its records are settled, the batch itself
    when it needs another call, or pieces of it.
    """

    def __init__(
        self,
        spec: CallSpec,
        caller: Caller,
        *,
        settle: Callable[[PendingBatch, Verdicts], None],
        stop: Callable[[StoppedReason, BaseException], None],
    ) -> None:
        self._spec, self._caller, self._settle, self._stop = spec, caller, settle, stop
        self._pool, self._policy = caller.pool, caller.policy
        self._budget = RetryBudget(self._policy.budget)
        self._search = Search()
        self._numbers = count(1)
        self.retries: Counter[ErrorKind] = Counter()
        self.throttles = 0
        self.counts_exact = True

    def new_key(self) -> str:
        """A key that no other batch has."""
        return f"{self._spec.call_id}-{next(self._numbers)}"

    async def attempt(self, work: PendingBatch) -> list[PendingBatch]:
        """Make one call for the work, and act on what comes of it."""
        try:
            if work.send_mode is SendMode.ASK:
                work.answers += await self._caller.ask(work)
                work.lost_questions.clear()
                return self._reconciled(work) if len(work.answers) == len(work) else [work]
            answer = await self._caller.send(work)
        except TargetError as error:
            return self._refused(work, error)
        except CallPostponed:
            return [work]
        return self._answered(work, answer)

    def _answered(self, work: PendingBatch, answer: Answer) -> list[PendingBatch]:
        verdicts = Verdicts.of(answer.verdicts)
        self._budget.earn()
        # After a lost answer, what that call created is updated by this one.
        self.counts_exact &= answer.counts_exact and (work.unresolved is None or self._spec.mode is not Mode.UPSERT)
        self._learn(work, verdicts)
        if verdicts.errors or work.unresolved is not None:
            return self._sort_verdicts(work, verdicts)
        self._settle(work, verdicts)
        return []

    def _learn(self, work: PendingBatch, verdicts: Sequence[Verdict]) -> None:
        """What is said of a piece says something about the rest of the batch that failed."""
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
            self._stop("systemic", failures[0])

    def _reconciled(self, work: PendingBatch) -> list[PendingBatch]:
        """What the remote knows counts; what it does not know was not applied, so what it said last holds."""
        assert work.lost is not None
        known, refusal, verdicts = work.answers, work.refusal, work.verdicts
        if refusal is None and verdicts is None:
            work.is_asked = True
            return self._sort_verdicts(work, known, work.lost.but(maybe_applied=False))
        work.believe()
        told = known if verdicts is None else [one or said for one, said in zip(known, verdicts, strict=True)]
        return self._sort_verdicts(work, told, refusal)

    def _sort_verdicts(
        self, work: PendingBatch, verdicts: Sequence[Verdict | None], absent: TargetError | None = None
    ) -> list[PendingBatch]:
        """Settle the records that were judged; the others go on as if a batch of them had been refused.

        Those without a verdict, which the remote does not know, were refused with `absent`.
        """
        groups: dict[_Next | tuple[ErrorKind, bool], list[int]] = {}
        for position, verdict in enumerate(verdicts):
            groups.setdefault(self._next(work, verdict), []).append(position)
        send_mode = SendMode.SEND if work.send_mode is SendMode.ASK else work.send_mode
        pieces = []
        for what, group in groups.items():
            # A key is for one answer: records that got one go on under another.
            is_unanswered = what is _Next.ABSENT and len(group) == len(work)
            key = work.key if is_unanswered or what in (_Next.SETTLE, _Next.ASK) else self.new_key()
            pieces.append((what, work.part(group, key, send_mode), [verdicts[at] for at in group]))
        return [left for what, piece, told in pieces for left in self._go_on(what, piece, told, absent)]

    def _next(self, work: PendingBatch, verdict: Verdict | None) -> _Next | tuple[ErrorKind, bool]:
        if verdict is None:
            return _Next.ABSENT
        error = verdict.error
        if error is None or (error.maybe_applied and work.send_mode is SendMode.ASK):
            return _Next.SETTLE  # a remote that was asked and does not know would not know if it were asked again
        if error.kind in RETRYABLE or error.maybe_applied:
            return error.kind, error.maybe_applied
        return _Next.ASK if self._is_unproven(work, error) else _Next.SETTLE

    def _go_on(
        self,
        what: _Next | tuple[ErrorKind, bool],
        piece: PendingBatch,
        told: Sequence[Verdict | None],
        absent: TargetError | None,
    ) -> list[PendingBatch]:
        verdicts = [verdict for verdict in told if verdict is not None]
        match what:
            case _Next.SETTLE:
                self._settle(piece, Verdicts.of([_in_doubt(piece, verdict) for verdict in verdicts]))
                return []
            case _Next.ASK:
                piece.verdicts = verdicts
                return self._ask(piece)
            case _Next.ABSENT:
                assert absent is not None
                return self._decide(piece, absent)
        error = verdicts[0].error
        assert error is not None
        if error.kind is ErrorKind.THROTTLED:
            self._pool.refused(piece.source, error, self._policy)
        return self._refused(piece, error)

    def _is_unproven(self, work: PendingBatch, error: TargetError) -> bool:
        """Whether a refusal may be about what an earlier, unanswered call of the same records has done by now."""
        capabilities = self._spec.capabilities
        is_lost = work.lost is not None and work.send_mode is not SendMode.ASK
        return is_lost and capabilities.can_reconcile and not capabilities.is_idempotent and error.kind not in RETRYABLE

    def _ask(self, work: PendingBatch) -> list[PendingBatch]:
        work.send_mode, work.priority, work.is_asked = SendMode.ASK, Priority.RETRY, False
        work.lost_questions.clear()
        work.answers = []
        return [work]

    def _refused(self, work: PendingBatch, error: TargetError) -> list[PendingBatch]:
        if error.kind is ErrorKind.THROTTLED:
            self.throttles += 1
            self._caller.size.throttled(error.limit)
        elif error.kind in (ErrorKind.TOO_BIG, ErrorKind.DEADLOCK):
            self._caller.size.was_too_much()
        counts = work.lost_questions if work.send_mode is SendMode.ASK else work.tries
        counts[error.kind] = self._count(work, error, counts[error.kind])
        if work.send_mode is SendMode.ASK:
            return self._act(work, error, after_lost_question(error, counts, self._policy))
        if error.maybe_applied:
            work.lose(error)
        elif self._is_unproven(work, error):
            work.refusal = error
            return self._ask(work)
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

    def _decide(self, work: PendingBatch, error: TargetError) -> list[PendingBatch]:
        move = after_refusal(error, work.tries, self._spec.capabilities, len(work), self._policy)
        return self._act(work, error, move)

    def _act(self, work: PendingBatch, error: TargetError, move: Move) -> list[PendingBatch]:
        match move.act:
            case Act.AGAIN:
                return self._again(work, error, move.retry)
            case Act.ASK:
                return self._ask(work)
            case Act.ISOLATE:
                return self._isolate(work, error)
            case Act.SPLIT:
                return self._split(work, halves(len(work)))
            case Act.EJECT:
                return self._split(work, suspects_and_rest(len(work), error))
            case Act.STOP:
                self._fail(work, error)
                self._stop("systemic", error)
            case Act.FAIL | Act.LEAVE_UNKNOWN:
                self._give_up(work, error)
        return []

    def _again(self, work: PendingBatch, error: TargetError, retry: int) -> list[PendingBatch]:
        if retry and not work.is_outage and not self._budget.spend():
            self._give_up(work, error)
            return []
        if retry:
            self.retries[error.kind] += 1
            work.wait_s = self._policy.wait_s(retry, self._pool.entropy.jitter)
            if work.is_outage:
                work.wait_s = max(work.wait_s, self._policy.outage_wait_s(self._pool.silent_s))
            if error.retry_after_s is not None:
                work.wait_s = max(work.wait_s, self._policy.throttle_s(error.retry_after_s))
        if error.kind is ErrorKind.RACE:
            self._pool.table_gate.begin(self._spec.table, work)
        work.priority = Priority.RETRY
        return [work]

    def _isolate(self, work: PendingBatch, error: TargetError) -> list[PendingBatch]:
        """Take the next step with work that failed for its records."""
        self._search.sent += 1
        self._search.failed += 1
        if work.isolation is None:
            work.isolation = Isolation(cause_of(error), batch_diagnostics(self._spec, work, error))
        if not self._spec.options.isolate:
            self._fail(work, error)
            return []
        work.isolation.note(error)
        act = next_act(
            len(work),
            error,
            work.isolation,
            self._search,
            can_send_each=self._spec.target.can_send_each and work.send_mode is SendMode.SEND,
            extra_calls_max=self._policy.extra_calls_max,
        )
        if act is Act.EACH:
            work.isolation.calls += 1
            work.send_mode, work.priority = SendMode.EACH, Priority.PIECE
            return [work]
        return self._act(work, error, Move(act))

    def _split(self, work: PendingBatch, parts: Sequence[Sequence[int]]) -> list[PendingBatch]:
        """Send the records at these positions on their own, with tries of their own."""
        pieces = [work.part(positions, self.new_key()) for positions in parts]
        for piece in pieces:
            piece.tries.clear()
            if piece.isolation is not None:
                piece.isolation.calls += 1
        return pieces

    def _give_up(self, work: PendingBatch, error: TargetError) -> None:
        """No more tries for this work; and for no other, when the remote does not answer at all."""
        self._fail(work, error)
        is_over = error.kind is ErrorKind.TOKEN or self._pool.silent_s >= self._policy.outage_s
        if error.kind in (ErrorKind.TOKEN, ErrorKind.CONNECTION) and is_over and self._pool.is_broken:
            self._stop("systemic", error)

    def _fail(self, work: PendingBatch, error: TargetError) -> None:
        """The records of the work fail; or nobody knows, when an earlier call for them may have taken effect."""
        verdict = _in_doubt(work, Verdict(Outcome.FAILED, error=error))
        self._settle(work, UniformVerdicts(verdict, len(work)))


def _in_doubt(work: PendingBatch, verdict: Verdict) -> Verdict:
    """A verdict; that nobody knows, where it does not tell what became of a call for the work that was not answered.

    What judges the record was the answer to that call too.
    """
    error = verdict.error
    is_judged = error is not None and error.kind in JUDGED and not error.maybe_applied
    if work.unresolved is None or is_judged or verdict.outcome not in (Outcome.FAILED, Outcome.NOT_RUN):
        return verdict
    return Verdict(Outcome.UNKNOWN, verdict.id, work.unresolved)
