"""Several records of one key: never two of them under way at once, and each policy its own way."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import Any, Literal, TypeAlias

from penstock.targets.model import BadInput, ErrorKind, TargetError

__all__ = ["Claim", "DuplicateKeys", "Policy", "find_duplicates"]

Policy: TypeAlias = Literal["keep-order", "first", "last", "error"]
Claim: TypeAlias = Literal["go", "wait", "skip", "refuse"]
Waiting: TypeAlias = tuple[int, Any, Hashable | None]


class DuplicateKeys:
    """Which keys are under way, and which records wait for them.

    `first` and `error` remember every key of the input; `last` is told beforehand which records to leave out.
    """

    def __init__(
        self, identity: Callable[[Any], Hashable | None], policy: Policy, left_out: frozenset[int] = frozenset()
    ) -> None:
        self.identity = identity
        self._of_all = getattr(identity, "of_all", None)
        self._policy = policy
        self._left_out = left_out
        self._busy: set[Hashable] = set()
        self._seen: set[Hashable] | None = set() if policy in ("first", "error") else None
        self._held: dict[Hashable, deque[Waiting]] = {}
        self.held_count = 0

    def identities(self, records: Sequence[Any]) -> list[Hashable | None]:
        """The keys of records, at once where that is quicker."""
        keys: list[Hashable | None] = self._of_all(records) if self._of_all else list(map(self.identity, records))
        return keys

    def claim_all(self, identities: Sequence[Hashable | None]) -> bool:
        """Take all these keys at once, or none of them when they are not all free and different."""
        keys = set(identities)
        if len(keys) != len(identities) or None in keys or self._left_out or not self._busy.isdisjoint(keys):
            return False
        if self._seen is not None:
            if not self._seen.isdisjoint(keys):
                return False
            self._seen |= keys
        self._busy |= keys
        return True

    def claim(self, index: int, record: Any, identity: Hashable | None) -> Claim:
        """What to do with one record; a waiting one comes back from `release`."""
        if index in self._left_out:
            return "skip"
        if identity is None:
            return "go"
        if self._seen is not None:
            if identity in self._seen:
                return "skip" if self._policy == "first" else "refuse"
            self._seen.add(identity)
        if identity in self._busy:
            self._held.setdefault(identity, deque()).append((index, record, identity))
            self.held_count += 1
            return "wait"
        self._busy.add(identity)
        return "go"

    def release(self, identities: Iterable[Hashable | None]) -> list[Waiting]:
        """Let keys go; the next record of each, if any, takes its key at once and may be sent."""
        self._busy.difference_update(identities)
        return [self._next_of(identity) for identity in identities if identity in self._held] if self._held else []

    def _next_of(self, identity: Hashable) -> Waiting:
        waiting = self._held[identity]
        if len(waiting) == 1:
            del self._held[identity]
        self._busy.add(identity)
        self.held_count -= 1
        return waiting.popleft()


def find_duplicates(
    records: Sequence[Any] | None, identity: Callable[[Any], Hashable | None], policy: Policy
) -> tuple[frozenset[int], dict[int, TargetError]]:
    """Of a whole list: the positions that `last` leaves out, and those that `error` refuses; None is a stream."""
    if policy == "last" and records is None:
        raise BadInput("duplicates='last' needs a list: which record of a stream is the last shows only at its end")
    if policy not in ("last", "error") or records is None:
        return frozenset(), {}
    places: dict[Hashable, int] = {}
    earlier: set[int] = set()
    later: dict[int, TargetError] = {}
    for index, record in enumerate(records):
        key = identity(record)
        if key is not None and key in places:
            earlier.add(places[key])
            message = f"it has the same key as index {places[key]}: {key!r}"
            later[index] = TargetError(message, kind=ErrorKind.DATA, code="DuplicateKey")
        places[key] = index
    return (frozenset(earlier), {}) if policy == "last" else (frozenset(), later)
