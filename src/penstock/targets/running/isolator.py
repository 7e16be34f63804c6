"""Looks for the guilty records of a batch that failed as a whole, and says what is wrong with them."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from penstock.targets.diagnostics.analysis import Diagnostic, analyze_batch_failure
from penstock.targets.diagnostics.causes import cause_of
from penstock.targets.model import Outcome, TargetError, Verdict
from penstock.targets.rules.isolation import Course, Isolation, Search, halves, next_course, suspects_and_rest
from penstock.targets.rules.retry import RetryPolicy
from penstock.targets.running.batch import BatchCallbacks, CallSpec, PendingBatch, SendMode
from penstock.targets.running.waiters import Priority
from penstock.targets.target import Target

__all__ = ["Diagnoser", "Isolator"]

log = logging.getLogger("penstock.targets")


class Diagnoser:
    """Diagnostics by position in the input. What a whole batch showed is kept for the records found in it."""

    def __init__(self, spec: CallSpec) -> None:
        self._spec = spec
        target, kind = spec.target, type(spec.target)
        self._identity = spec.identity
        self._references = (
            (lambda record: target.references(spec.table, record, spec.options))
            if kind.references is not Target.references
            else None
        )

    def of_batch(self, work: PendingBatch, error: TargetError) -> Mapping[int, Sequence[Diagnostic]]:
        """What the failure of a batch says about its records; what it says about the whole goes to each of them."""
        found: defaultdict[int, list[Diagnostic]] = defaultdict(list)
        for diagnostic in self._analyzed(work.records, error, work.key):
            places = range(len(work)) if diagnostic.index is None else (diagnostic.index,)
            for place in places:
                found[work.indexes[place]].append(replace(diagnostic, index=work.indexes[place]))
        return found

    def of_verdicts(self, work: PendingBatch, verdicts: Sequence[Verdict]) -> Mapping[int, Sequence[Diagnostic]]:
        """What is known of the records that failed in the end."""
        batch = work.isolation
        found = {}
        for index, record, verdict in zip(work.indexes, work.records, verdicts, strict=True):
            if verdict.outcome is Outcome.FAILED and verdict.error is not None:
                is_same = batch is not None and batch.cause == cause_of(verdict.error)
                known = batch.diagnostics.get(index) if batch is not None and is_same else None
                alone = known or self._analyzed([record], verdict.error, work.key)
                found[index] = [replace(diagnostic, index=index) for diagnostic in alone]
        return found

    def _analyzed(self, records: Sequence[Any], error: TargetError, key: str) -> list[Diagnostic]:
        try:
            return analyze_batch_failure(
                self._spec.batch(records, key),
                error,
                references=self._references,
                identity=self._identity,
                id_field=self._spec.capabilities.id_field,
            )
        except Exception:
            log.exception("the failure of a batch could not be analysed; its records are reported without diagnostics")
            return []


class Isolator:
    """The searches of one bulk call."""

    def __init__(
        self,
        spec: CallSpec,
        callbacks: BatchCallbacks,
        policy: RetryPolicy,
        diagnoser: Diagnoser,
        new_key: Callable[[], str],
    ) -> None:
        self._spec, self._callbacks, self._policy, self._diagnoser, self._new_key = (
            spec,
            callbacks,
            policy,
            diagnoser,
            new_key,
        )
        self._search = Search()

    def refused(self, work: PendingBatch, error: TargetError) -> bool:
        """Take the next step with work that failed for its records; True when the work itself is sent again."""
        self._search.sent += 1
        self._search.failed += 1
        if work.isolation is None:
            work.isolation = Isolation(cause_of(error), self._diagnoser.of_batch(work, error))
        if not self._spec.options.isolate:
            self._callbacks.fail(work, error)
            return False
        work.isolation.note(error)
        match self._course(work, work.isolation, error):
            case Course.EACH:
                work.isolation.calls += 1
                work.send_mode, work.priority = SendMode.EACH, Priority.PIECE
                return True
            case Course.EJECT:
                self.split(work, suspects_and_rest(len(work), error))
            case Course.HALVE:
                self.split(work, halves(len(work)))
            case Course.FAIL:
                self._callbacks.fail(work, error)
            case Course.STOP:
                self._callbacks.fail(work, error)
                self._callbacks.stop("systemic", error)
        return False

    def answered(self, work: PendingBatch, verdicts: Sequence[Verdict]) -> None:
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
            self._callbacks.stop("systemic", failures[0])

    def split(self, work: PendingBatch, parts: Sequence[Sequence[int]]) -> None:
        """Send the records at these positions on their own, with tries of their own."""
        for positions in parts:
            piece = work.part(positions, self._new_key())
            piece.tries.clear()
            if piece.isolation is not None:
                piece.isolation.calls += 1
            self._callbacks.launch(piece)

    def _course(self, work: PendingBatch, isolation: Isolation, error: TargetError) -> Course:
        return next_course(
            len(work),
            error,
            isolation,
            self._search,
            can_send_each=self._spec.target.can_send_each and work.send_mode is SendMode.SEND,
            extra_calls_max=self._policy.extra_calls_max,
        )
