"""Attaches to failed records what the diagnostics find out about them."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from penstock.targets.causes import cause_of
from penstock.targets.diagnostics import Diagnostic, analyze_batch_failure
from penstock.targets.model import Outcome, TargetError, Verdict
from penstock.targets.running.job import Job
from penstock.targets.running.work import Work
from penstock.targets.target import Target

__all__ = ["Diagnosing"]

log = logging.getLogger("penstock.targets")


class Diagnosing:
    """Diagnostics by position in the input. What a whole batch showed is kept for the records found in it."""

    def __init__(self, job: Job) -> None:
        self._job = job
        target, kind = job.target, type(job.target)
        self._identity = job.identity
        self._references = (
            (lambda record: target.references(job.table, record, job.options))
            if kind.references is not Target.references
            else None
        )

    def of_batch(self, work: Work, error: TargetError) -> Mapping[int, Sequence[Diagnostic]]:
        """What the failure of a batch says about its records; what it says about the whole goes to each of them."""
        found: defaultdict[int, list[Diagnostic]] = defaultdict(list)
        for diagnostic in self._analyzed(work.records, error, work.key):
            places = range(len(work)) if diagnostic.index is None else (diagnostic.index,)
            for place in places:
                found[work.indexes[place]].append(replace(diagnostic, index=work.indexes[place]))
        return found

    def of_verdicts(self, work: Work, verdicts: Sequence[Verdict]) -> Mapping[int, Sequence[Diagnostic]]:
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
                self._job.batch(records, key),
                error,
                references=self._references,
                identity=self._identity,
                id_field=self._job.traits.id_field,
            )
        except Exception:
            log.exception("the failure of a batch could not be analysed; its records are reported without diagnostics")
            return []
