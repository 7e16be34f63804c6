"""What became of every record so far, what is wrong with those that failed, and how the caller hears of it."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from operator import attrgetter
from typing import Any, NamedTuple, TypeAlias

from penstock.targets.diagnostics.analysis import Diagnostic, analyze_batch_failure
from penstock.targets.diagnostics.causes import cause_of
from penstock.targets.ids import PackedIds
from penstock.targets.model import SUCCESSES, Mode, Outcome, TargetError, Verdict
from penstock.targets.progress import Progress, Report
from penstock.targets.results import BulkError
from penstock.targets.running.calls import CallSpec, PendingBatch
from penstock.targets.target import Reference, Target
from penstock.targets.verdicts import CODES, FAILED, Outcomes, Verdicts

__all__ = ["Callback", "Counts", "OutcomeRecorder", "batch_diagnostics"]

log = logging.getLogger("penstock.targets")

_SUCCESSES = tuple(CODES[outcome] for outcome in SUCCESSES)
NOT_RUN, UNKNOWN = CODES[Outcome.NOT_RUN], CODES[Outcome.UNKNOWN]

Diagnostics: TypeAlias = Mapping[int, Sequence[Diagnostic]]


def batch_diagnostics(spec: CallSpec, work: PendingBatch, error: TargetError) -> Diagnostics:
    """What the failure of a batch says about its records; what it says about the whole goes to each of them."""
    found: defaultdict[int, list[Diagnostic]] = defaultdict(list)
    for diagnostic in _analyzed(spec, work.records, error, work.key):
        places = range(len(work)) if diagnostic.index is None else (diagnostic.index,)
        for place in places:
            found[work.indexes[place]].append(replace(diagnostic, index=work.indexes[place]))
    return found


def _diagnostics_of(
    spec: CallSpec, work: PendingBatch, index: int, record: Any, verdict: Verdict
) -> Sequence[Diagnostic]:
    """What is known of a record that failed in the end; what its batch showed counts when the cause is the same."""
    if verdict.outcome is not Outcome.FAILED or verdict.error is None:
        return ()
    batch = work.isolation
    is_same = batch is not None and batch.cause == cause_of(verdict.error)
    known = batch.diagnostics.get(index) if batch is not None and is_same else None
    return known or _analyzed(spec, [record], verdict.error, work.key)


def _analyzed(spec: CallSpec, records: Sequence[Any], error: TargetError, key: str) -> list[Diagnostic]:
    def references(record: Any) -> Iterable[Reference]:
        return spec.target.references(spec.table, record, spec.options)

    try:
        return analyze_batch_failure(
            spec.batch(records, key),
            error,
            references=references if type(spec.target).references is not Target.references else None,
            identity=spec.identity,
            id_field=spec.capabilities.id_field,
        )
    except Exception:
        log.exception("the failure of a batch could not be analysed; its records are reported without diagnostics")
        return []


class Counts(NamedTuple):
    """How many records of a batch succeeded, failed and are unknown."""

    succeeded: int
    failed: int
    unknown: int


class OutcomeRecorder:
    """Takes verdicts as they come and knows, at any moment, what became of every record."""

    def __init__(self, spec: CallSpec) -> None:
        self._spec = spec
        self._codes = bytearray()
        self._errors: list[BulkError] = []
        has_ids = spec.options.keep_ids and spec.mode in (Mode.CREATE, Mode.UPSERT)
        self.ids = PackedIds() if has_ids else None
        self.skipped = 0

    @property
    def outcomes(self) -> Outcomes:
        """What became of every record so far."""
        return Outcomes(self._codes)

    @property
    def errors(self) -> list[BulkError]:
        """Every error so far, in the order of the input."""
        return sorted(self._errors, key=attrgetter("index"))

    def reach(self, length: int) -> None:
        """So many records are known now; those not yet settled are not run."""
        self._codes.extend(bytes((NOT_RUN,)) * (length - len(self._codes)))

    def skip(self, positions: Sequence[int]) -> None:
        """Leave records out in favour of others of the same key."""
        self.skipped += len(positions)
        for position in positions:
            self._codes[position] = CODES[Outcome.SKIPPED]

    def settle(self, work: PendingBatch, verdicts: Verdicts) -> Counts:
        """Write down what became of the records of a batch."""
        positions, codes = work.indexes, verdicts.codes
        if isinstance(positions, range):
            self._codes[positions.start : positions.stop] = codes
        else:
            for position, code in zip(positions, codes, strict=True):
                self._codes[position] = code
        counts = Counts(sum(map(codes.count, _SUCCESSES)), codes.count(FAILED), codes.count(UNKNOWN))
        if counts.failed or counts.unknown:
            self._keep_errors(work, verdicts)
        if self.ids is not None and counts.succeeded and verdicts.ids is not None:
            self.ids.put(positions, verdicts.ids)
        return counts

    def _keep_errors(self, work: PendingBatch, verdicts: Verdicts) -> None:
        for position, record, verdict in zip(work.indexes, work.records, verdicts, strict=True):
            if verdict.outcome in (Outcome.FAILED, Outcome.UNKNOWN):
                cause = verdict.error or TargetError("the remote gave no reason")
                found = _diagnostics_of(self._spec, work, position, record, verdict)
                self._errors.append(
                    BulkError(
                        index=position,
                        message=cause.message,
                        kind=cause.kind,
                        code=cause.code,
                        id=verdict.id if verdict.id is not None else self._spec.own_id(record),
                        field=cause.field,
                        outcome=verdict.outcome,
                        diagnostics=tuple(replace(diagnostic, index=position) for diagnostic in found),
                    )
                )


class Callback:
    """A caller's progress callback; what it raises is logged once and does no harm."""

    def __init__(self, progress: Report) -> None:
        self._progress = progress
        self._has_complained = False

    @property
    def is_given(self) -> bool:
        """Whether anyone wants reports."""
        return self._progress is not None

    def __call__(self, now: Progress) -> None:
        if self._progress is None:
            return
        try:
            self._progress(now)
        except Exception:
            if not self._has_complained:
                log.exception("the progress callback failed; the bulk call goes on")
            self._has_complained = True
