"""What one bulk call is about, and a batch of it on its way: its records and what has happened to them so far."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any

from penstock.targets.model import BulkOptions, ErrorKind, Mode, Outcome, RecordId, TargetError, Verdict
from penstock.targets.results import StoppedReason
from penstock.targets.rules.isolation import Isolation
from penstock.targets.running.waiters import Priority
from penstock.targets.target import Batch, Capabilities, Target, UniformVerdicts

__all__ = ["BatchCallbacks", "CallSpec", "PendingBatch", "SendMode"]


@dataclass(frozen=True, slots=True)
class CallSpec:
    """The subject of a bulk call; `capabilities` are known once the target has described the table."""

    target: Target
    table: str
    mode: Mode
    options: BulkOptions
    call_id: str
    capabilities: Capabilities = field(default_factory=Capabilities)

    def batch(self, records: Sequence[Any], key: str, indexes: Sequence[int] = ()) -> Batch:
        """Records as one call to the target."""
        return Batch(self.table, self.mode, records, self.options, key, self.call_id, indexes)

    @property
    def identity(self) -> Callable[[Any], Hashable | None] | None:
        """What makes two records the same one; None when the target does not say."""
        return self.target.identifier(self.table, self.mode, self.options)

    @property
    def size(self) -> Callable[[Any], int] | None:
        """What a record weighs; None when the target does not say."""
        return None if type(self.target).size is Target.size else self.target.size

    def own_id(self, record: Any) -> RecordId:
        """The id a record already had, for reports."""
        if self.mode is Mode.DELETE:
            return record
        field = self.capabilities.id_field
        return record.get(field) if field is not None and hasattr(record, "get") else None


class SendMode(Enum):
    """What the next call for a batch does."""

    SEND = auto()  # all records as one batch
    EACH = auto()  # every record on its own
    ASK = auto()  # find out what became of them


@dataclass(slots=True, eq=False)
class PendingBatch:
    """Records that go to the remote in one call. Pieces of it inherit what it went through."""

    indexes: Sequence[int]
    """Their positions in the input; a range when nothing was held back."""
    records: Sequence[Any]
    key: str
    identities: Sequence[Hashable | None] | None = None
    send_mode: SendMode = SendMode.SEND
    priority: Priority = Priority.NEW
    wait_s: float = 0.0
    """How long to wait before the next call."""
    tries: Counter[ErrorKind] = field(default_factory=Counter)
    """Refusals so far, by class."""
    lost_questions: Counter[ErrorKind] = field(default_factory=Counter)
    """Refusals of the question what became of it."""
    silent_since_s: float | None = None
    """Since when this work, and nobody else either, got an answer."""
    is_outage: bool = False
    """The remote answers nobody: the work waits for it."""
    lost: TargetError | None = None
    """Why an earlier call was not answered; it may have taken effect, or do so late."""
    is_asked: bool = False
    """The remote was asked since, and did not know these records."""
    refusal: TargetError | None = None
    """What the remote said to a later call; believed once it was asked what became of the lost one."""
    verdicts: Sequence[Verdict] | None = None
    """The same, where it spoke of each record."""
    answers: list[Verdict | None] = field(default_factory=list)
    """What it said so far to the question what became of the first records."""
    isolation: Isolation | None = None
    source: str = ""
    """The source of the last call."""

    def __len__(self) -> int:
        return len(self.records)

    @property
    def unresolved(self) -> TargetError | None:
        """Set while a call may have taken effect and nobody has asked."""
        return None if self.is_asked else self.lost

    def lose(self, error: TargetError) -> None:
        """A call was not answered."""
        self.lost, self.is_asked, self.refusal, self.verdicts = error, False, None, None

    def believe(self) -> None:
        """What was said last holds: no earlier call took effect."""
        self.lost, self.is_asked, self.refusal, self.verdicts = None, False, None, None

    def part(self, positions: Sequence[int], key: str, send_mode: SendMode = SendMode.SEND) -> PendingBatch:
        """Some of its records as work of their own; the same work when they are all."""
        if len(positions) == len(self.records):
            self.key, self.send_mode = key, send_mode
            return self
        return PendingBatch(
            indexes=_chosen(self.indexes, positions),
            records=_chosen(self.records, positions),
            key=key,
            identities=None if self.identities is None else _chosen(self.identities, positions),
            send_mode=send_mode,
            priority=Priority.PIECE,
            tries=self.tries.copy(),
            lost=self.lost,
            is_asked=self.is_asked,
            isolation=self.isolation,
            source=self.source,
        )


def _chosen(values: Sequence[Any], positions: Sequence[int]) -> Sequence[Any]:
    if isinstance(positions, range):
        return values[positions.start : positions.stop]
    return [values[position] for position in positions]


@dataclass(frozen=True, slots=True)
class BatchCallbacks:
    """Whom a batch asks whether it may go, and tells that it is through, in pieces, or that all must stop."""

    is_held: Callable[[PendingBatch], bool]
    settle: Callable[[PendingBatch, Sequence[Verdict]], None]
    launch: Callable[[PendingBatch], None]
    stop: Callable[[StoppedReason, BaseException], None]
    report: Callable[[], None]

    def fail(self, work: PendingBatch, error: TargetError) -> None:
        """The records of the work fail; or nobody knows, when an earlier call for them may have taken effect."""
        if work.unresolved is None:
            verdict = Verdict(Outcome.FAILED, error=error)
        else:
            verdict = Verdict(Outcome.UNKNOWN, error=work.unresolved)
        self.settle(work, UniformVerdicts(verdict, len(work)))
