"""What a bulk call gives back: an outcome for every record, in the order of the input."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from penstock.targets.diagnostics.analysis import Diagnostic
from penstock.targets.ids import PackedIds
from penstock.targets.model import SUCCESSES, ErrorKind, Mode, Outcome, RecordId
from penstock.targets.verdicts import CODES, Outcomes

__all__ = ["CODES", "BulkError", "BulkResult", "Outcomes", "Statistics", "StoppedReason"]

StoppedReason: TypeAlias = Literal[
    "cancelled", "deadline", "systemic", "error in input", "error in on_outcomes", "stopped on error", "too many errors"
]


@dataclass(frozen=True, slots=True, kw_only=True)
class BulkError:
    """Why one record failed, or why nobody knows whether it did; `index` is its position in the input."""

    index: int
    message: str
    kind: ErrorKind = ErrorKind.OTHER
    code: str | None = None
    id: RecordId = None
    field: str | None = None
    outcome: Outcome = Outcome.FAILED
    diagnostics: tuple[Diagnostic, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Statistics:
    """What a bulk call cost."""

    calls: int = 0
    """Requests that carried records, answered or not; questions about lost answers included."""
    requests: int = 0
    """Every request: those, and descriptions of tables, look-ups and tokens. For a database, its transactions."""
    throttles: int = 0
    waited_s: float = 0.0
    """Time in which nothing could be sent because every source was throttled."""
    retries: Mapping[ErrorKind, int] = field(default_factory=dict)
    batch_size_min: int = 0
    batch_size_max: int = 0
    batch_size_last: int = 0
    """The size in force at the end; it differs from the first when sizes adapt."""
    in_flight_max: int = 0
    width_last: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class BulkResult:
    """The outcome of a bulk call, complete or partial; `stopped_reason` says why it is partial."""

    mode: Mode
    outcomes: Outcomes
    errors: Sequence[BulkError] = ()
    """One for every failed or unknown record, by index."""
    duration_s: float = 0.0
    counts_exact: bool = True
    """Whether created and updated are told apart by the remote, not by what was there shortly before."""
    stopped_reason: StoppedReason | None = None
    stopped_error: BaseException | None = None
    """What stopped the call, when that was an error."""
    statistics: Statistics = field(default_factory=Statistics)
    ids: PackedIds | None = None

    @property
    def success_count(self) -> int:
        """Records whose wish the remote fulfilled."""
        return sum(map(self.outcomes.count, SUCCESSES))

    @property
    def failure_count(self) -> int:
        """Records that failed and changed nothing."""
        return self.outcomes.count(Outcome.FAILED)

    @property
    def unknown_count(self) -> int:
        """Records that were sent and never answered for."""
        return self.outcomes.count(Outcome.UNKNOWN)

    @property
    def not_run_count(self) -> int:
        """Records that were read, or known to be there, and had no effect because the call stopped."""
        return self.outcomes.count(Outcome.NOT_RUN)

    @property
    def skipped_count(self) -> int:
        """Records left out in favour of another one of the same key."""
        return self.outcomes.count(Outcome.SKIPPED)

    @property
    def is_success(self) -> bool:
        """The call ran to its end and no record failed, is unknown or was not run."""
        return self.stopped_reason is None and not (self.failure_count or self.unknown_count or self.not_run_count)

    @property
    def created_ids(self) -> Sequence[RecordId] | None:
        """The ids of created records in the order of the input; None unless the call created and kept them."""
        ids = self.ids
        if self.mode is not Mode.CREATE or ids is None:
            return None
        return [ids.get(position) for position in self.outcomes.positions(Outcome.CREATED)]

    @property
    def created_count(self) -> int | None:
        """For an upsert, how many records are new; None when the remote did not say."""
        return self._upsert_count(Outcome.CREATED)

    @property
    def updated_count(self) -> int | None:
        """For an upsert, how many records were changed; None when the remote did not say."""
        return self._upsert_count(Outcome.UPDATED)

    def _upsert_count(self, outcome: Outcome) -> int | None:
        is_told = self.mode is Mode.UPSERT and not self.outcomes.count(Outcome.UPSERTED)
        return self.outcomes.count(outcome) if is_told else None

    @property
    def input_error(self) -> BaseException | None:
        """What the input raised while it was read; everything read before has its outcome."""
        return self.stopped_error if self.stopped_reason == "error in input" else None

    def outcome(self, index: int) -> Outcome:
        """What became of the record at this position of the input."""
        return self.outcomes[index]

    def id_of(self, index: int) -> RecordId:
        """The id the remote gave to the record at this position; None when it gave or kept none."""
        return self.ids.get(index) if self.ids is not None else None
