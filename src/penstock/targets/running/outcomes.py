"""What became of every record so far, and how the caller hears of it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from typing import Any, TypeAlias

from penstock.targets.diagnostics.analysis import Diagnostic
from penstock.targets.ids import PackedIds
from penstock.targets.model import SUCCESSES, BulkOptions, ErrorKind, Mode, Outcome, RecordId, TargetError, Verdict
from penstock.targets.progress import Progress
from penstock.targets.results import CODES, BulkError, Outcomes
from penstock.targets.target import UniformVerdicts

__all__ = ["Callback", "Counts", "OutcomeRecorder", "encoded"]

# Enum members hash in Python code, their identities in C; this runs once for every record.
_CODE_BY_IDENTITY = {id(outcome): code for outcome, code in CODES.items()}
_OUTCOME, _ID = attrgetter("outcome"), attrgetter("id")
_SUCCESSES = tuple(CODES[outcome] for outcome in SUCCESSES)
NOT_RUN, FAILED, UNKNOWN = CODES[Outcome.NOT_RUN], CODES[Outcome.FAILED], CODES[Outcome.UNKNOWN]

Diagnostics: TypeAlias = Mapping[int, Sequence[Diagnostic]]


def encoded(verdicts: Sequence[Verdict]) -> bytes:
    """The outcomes of verdicts, a byte each."""
    if isinstance(verdicts, UniformVerdicts):
        return bytes((CODES[verdicts.verdict.outcome],)) * len(verdicts)
    return bytes(map(_CODE_BY_IDENTITY.__getitem__, map(id, map(_OUTCOME, verdicts))))


class Counts:
    """How many records of a batch succeeded, failed and are unknown."""

    __slots__ = ("failed", "succeeded", "unknown")

    def __init__(self, codes: bytes) -> None:
        self.succeeded = sum(map(codes.count, _SUCCESSES))
        self.failed = codes.count(FAILED)
        self.unknown = codes.count(UNKNOWN)

    @property
    def has_errors(self) -> bool:
        """Whether any record did not simply succeed."""
        return bool(self.failed or self.unknown)


class OutcomeRecorder:
    """Takes verdicts as they come and knows, at any moment, what became of every record."""

    def __init__(self, mode: Mode, options: BulkOptions, own_id: Callable[[Any], RecordId]) -> None:
        self._own_id = own_id
        self._codes = bytearray()
        self._errors: list[BulkError] = []
        self.ids = PackedIds() if options.keep_ids and mode in (Mode.CREATE, Mode.UPSERT) else None
        self.skipped = 0

    @property
    def length(self) -> int:
        """Records known so far."""
        return len(self._codes)

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

    def settle(
        self,
        positions: Sequence[int],
        records: Sequence[Any],
        verdicts: Sequence[Verdict],
        diagnose: Callable[[], Diagnostics],
    ) -> Counts:
        """Write down what became of records; `diagnose` is asked only when some of them failed."""
        codes = encoded(verdicts)
        if isinstance(positions, range):
            self._codes[positions.start : positions.stop] = codes
        else:
            for position, code in zip(positions, codes, strict=True):
                self._codes[position] = code
        counts = Counts(codes)
        if counts.has_errors:
            self._keep_errors(positions, records, verdicts, diagnose())
        if self.ids is not None and counts.succeeded:
            self._keep_ids(self.ids, positions, verdicts)
        return counts

    def _keep_ids(self, ids: PackedIds, positions: Sequence[int], verdicts: Sequence[Verdict]) -> None:
        if isinstance(verdicts, UniformVerdicts):
            if verdicts.ids is not None:
                ids.put(positions, verdicts.ids)
            return
        found = list(map(_ID, verdicts))
        if any(identifier is not None for identifier in found):
            ids.put(positions, found)

    def _keep_errors(
        self, positions: Sequence[int], records: Sequence[Any], verdicts: Sequence[Verdict], diagnostics: Diagnostics
    ) -> None:
        for position, record, verdict in zip(positions, records, verdicts, strict=True):
            if verdict.outcome in (Outcome.FAILED, Outcome.UNKNOWN):
                told = tuple(diagnostics.get(position, ()))
                self._errors.append(self._error(position, record, verdict, told))

    def _error(self, position: int, record: Any, verdict: Verdict, told: tuple[Diagnostic, ...]) -> BulkError:
        cause = verdict.error or TargetError("the remote gave no reason", kind=ErrorKind.OTHER)
        return BulkError(
            index=position,
            message=cause.message,
            kind=cause.kind,
            code=cause.code,
            id=verdict.id if verdict.id is not None else self._own_id(record),
            field=cause.field,
            outcome=verdict.outcome,
            diagnostics=told,
        )


log = logging.getLogger("penstock.targets")


class Callback:
    """A caller's progress callback; what it raises is logged once and does no harm."""

    def __init__(self, progress: Callable[[Progress], None] | None) -> None:
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
