"""A batch on its way: the records, where they stood in the input, and what has happened to them so far."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any

from penstock.targets.model import TargetError, Trouble, Verdict
from penstock.targets.rules.recovery import Isolation
from penstock.targets.running.party import Turn

__all__ = ["Manner", "Work"]


class Manner(Enum):
    """What the next call for a batch does."""

    SEND = auto()  # all records as one batch
    EACH = auto()  # every record on its own
    ASK = auto()  # find out what became of them


@dataclass(slots=True, eq=False)
class Work:
    """Records that go to the remote in one call. Pieces of it inherit what it went through."""

    indexes: Sequence[int]
    """Their positions in the input; a range when nothing was held back."""
    records: Sequence[Any]
    key: str
    identities: Sequence[Hashable | None] | None = None
    manner: Manner = Manner.SEND
    turn: Turn = Turn.NEW
    wait_s: float = 0.0
    """How long to wait before the next call."""
    tries: Counter[Trouble] = field(default_factory=Counter)
    """Refusals so far, by class."""
    lost_questions: Counter[Trouble] = field(default_factory=Counter)
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
    isolation: Isolation | None = None
    source: str = ""
    """The source of the last call."""

    def __len__(self) -> int:
        return len(self.records)

    @property
    def doubt(self) -> TargetError | None:
        """Set while a call may have taken effect and nobody has asked."""
        return None if self.is_asked else self.lost

    def lose(self, error: TargetError) -> None:
        """A call was not answered."""
        self.lost, self.is_asked, self.refusal, self.verdicts = error, False, None, None

    def believe(self) -> None:
        """What was said last holds: no earlier call took effect."""
        self.lost, self.is_asked, self.refusal, self.verdicts = None, False, None, None

    def part(self, positions: Sequence[int], key: str, manner: Manner = Manner.SEND) -> Work:
        """Some of its records as work of their own; the same work when they are all."""
        if len(positions) == len(self.records):
            self.key, self.manner = key, manner
            return self
        return Work(
            indexes=_chosen(self.indexes, positions),
            records=_chosen(self.records, positions),
            key=key,
            identities=None if self.identities is None else _chosen(self.identities, positions),
            manner=manner,
            turn=Turn.PIECE,
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
