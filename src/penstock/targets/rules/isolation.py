"""How the guilty records of a batch that failed as a whole are found: pure rules."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from penstock.targets.diagnostics.analysis import Diagnostic
from penstock.targets.diagnostics.causes import Cause
from penstock.targets.model import ErrorKind, TargetError
from penstock.targets.rules.retry import Act

__all__ = ["Isolation", "Search", "halves", "next_act", "suspects_and_rest"]

EACH_MAX = 16
"""A piece this small is cheaper record by record than halved again."""
EACH_MAX_WHEN_MANY_FAIL = 128
MANY = 0.1
ENOUGH_NODES = 8
SYSTEMIC_NODES = 7
"""A batch, its halves and its quarters: with one code and no exception, the records are not the cause."""
BLAMELESS = frozenset({ErrorKind.OTHER, ErrorKind.PERMISSION, ErrorKind.SERVER})
"""Errors that may be about the table or the caller; bad data and business rules are about records by definition."""


@dataclass(slots=True)
class Search:
    """The pieces sent by all isolations of a call: how often a piece fails."""

    sent: int = 0
    failed: int = 0

    @property
    def is_many(self) -> bool:
        """Whether so much fails that halving is a waste."""
        return self.sent >= ENOUGH_NODES and self.failed > MANY * self.sent


@dataclass(slots=True, eq=False)
class Isolation:
    """What is known of one batch that failed as a whole."""

    cause: Cause | None = None
    """What the failure of the batch was about."""
    diagnostics: Mapping[int, Sequence[Diagnostic]] = field(default_factory=dict)
    """What that said of its records."""
    calls: int = 0
    failed: int = 0
    has_passed: bool = False
    causes: set[tuple[ErrorKind, str]] = field(default_factory=set)

    def note(self, error: TargetError) -> None:
        """A piece of it failed, or a record on its own."""
        self.failed += 1
        self.causes.add((error.kind, error.code or error.message))

    @property
    def is_systemic(self) -> bool:
        """Everything failed alike, whichever records were in it."""
        alike = len(self.causes) == 1 and next(iter(self.causes))[0] in BLAMELESS
        return alike and not self.has_passed and self.failed >= SYSTEMIC_NODES


def next_act(
    size: int, error: TargetError, isolation: Isolation, search: Search, *, can_send_each: bool, extra_calls_max: int
) -> Act:
    """What to do with a piece of `size` records that just failed; it has been noted already."""
    if isolation.is_systemic:
        return Act.STOP
    if size == 1 or isolation.calls >= extra_calls_max:
        return Act.FAIL
    if can_send_each and (size <= EACH_MAX or (search.is_many and size <= EACH_MAX_WHEN_MANY_FAIL)):
        return Act.EACH
    return Act.EJECT if all(suspects_and_rest(size, error)) else Act.SPLIT


def suspects_and_rest(size: int, error: TargetError) -> tuple[list[int], list[int]]:
    """The positions the remote named, and the others; no suspects when it named places that do not exist."""
    named = {position for position in error.suspects if 0 <= position < size}
    suspects = sorted(named) if len(named) == len(set(error.suspects)) else []
    rest = [position for position in range(size) if position not in named]
    return suspects, rest


def halves(size: int) -> tuple[range, range]:
    """The positions of the first and the second half."""
    middle = (size + 1) // 2
    return range(middle), range(middle, size)
