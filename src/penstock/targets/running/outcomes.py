"""What became of every record so far, what is wrong with those that failed, and how the caller hears of it."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from penstock.targets.diagnostics.analysis import Diagnostic, analyze_batch_failure
from penstock.targets.diagnostics.causes import cause_of
from penstock.targets.ids import PackedIds
from penstock.targets.model import SUCCESSES, Mode, Outcome, TargetError
from penstock.targets.progress import Progress, Report
from penstock.targets.results import BulkError
from penstock.targets.running.calls import CallSpec, PendingBatch
from penstock.targets.target import Reference, Target
from penstock.targets.verdicts import CODES, FAILED, Outcomes, Verdicts

__all__ = ["Callback", "OutcomeRecorder", "batch_diagnostics"]

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
    spec: CallSpec, work: PendingBatch, index: int, record: Any, error: TargetError
) -> Sequence[Diagnostic]:
    """What is known of a record that failed in the end; what its batch showed counts when the cause is the same."""
    batch = work.isolation
    if batch is not None and batch.cause == cause_of(error) and index in batch.diagnostics:
        return batch.diagnostics[index]
    return _analyzed(spec, [record], error, work.key)


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


class OutcomeRecorder:
    """Takes verdicts as they come and knows, at any moment, what became of every record."""

    def __init__(self, spec: CallSpec) -> None:
        self._spec = spec
        self._codes = bytearray()
        self.outcomes = Outcomes(self._codes)
        self.errors: list[BulkError] = []
        """In the order in which they came."""
        has_ids = spec.options.keep_ids and spec.mode in (Mode.CREATE, Mode.UPSERT)
        self.ids = PackedIds() if has_ids else None
        self.skipped = 0

    def reach(self, length: int) -> None:
        """So many records are known now; those not yet settled are not run."""
        self._codes.extend(bytes((NOT_RUN,)) * (length - len(self._codes)))

    def skip(self, positions: Sequence[int]) -> None:
        """Leave records out in favour of others of the same key."""
        self.skipped += len(positions)
        for position in positions:
            self._codes[position] = CODES[Outcome.SKIPPED]

    def settle(self, work: PendingBatch, verdicts: Verdicts) -> tuple[int, int, int]:
        """Write down what became of the records of a batch; how many succeeded, failed and are unknown."""
        positions, codes = work.indexes, verdicts.codes
        if isinstance(positions, range):
            self._codes[positions.start : positions.stop] = codes
        else:
            for position, code in zip(positions, codes, strict=True):
                self._codes[position] = code
        succeeded, failed, unknown = sum(map(codes.count, _SUCCESSES)), codes.count(FAILED), codes.count(UNKNOWN)
        if failed or unknown:
            self._keep_errors(work, verdicts)
        if self.ids is not None and succeeded and verdicts.ids is not None:
            self.ids.put(positions, verdicts.ids)
        return succeeded, failed, unknown

    def _keep_errors(self, work: PendingBatch, verdicts: Verdicts) -> None:
        for position, record, verdict in zip(work.indexes, work.records, verdicts, strict=True):
            if verdict.outcome in (Outcome.FAILED, Outcome.UNKNOWN):
                cause = verdict.error or TargetError("the remote gave no reason")
                is_told = verdict.outcome is Outcome.FAILED and verdict.error is not None
                found = _diagnostics_of(self._spec, work, position, record, cause) if is_told else ()
                self.errors.append(
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


@dataclass(slots=True)
class Callback:
    """A caller's progress callback; what it raises is logged once and does no harm."""

    progress: Report
    has_failed: bool = False

    def __call__(self, now: Progress) -> None:
        try:
            if self.progress is not None:
                self.progress(now)
        except Exception:
            if not self.has_failed:
                log.exception("the progress callback failed; the bulk call goes on")
            self.has_failed = True
