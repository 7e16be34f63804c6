"""What became of many records, by columns: an outcome is a byte, and only a record that failed has more to it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import repeat
from operator import attrgetter, eq
from typing import Any, overload

from penstock.targets.model import Outcome, RecordId, TargetError, Verdict

__all__ = ["CODES", "FAILED", "Outcomes", "UniformVerdicts", "Verdicts"]

BY_CODE = tuple(Outcome)
CODES = {outcome: code for code, outcome in enumerate(BY_CODE)}
FAILED = CODES[Outcome.FAILED]
# Enum members hash in Python code, their identities in C; this runs once for every record.
_CODE_BY_IDENTITY = {id(outcome): code for outcome, code in CODES.items()}
_OUTCOME, _ID, _ERROR = attrgetter("outcome"), attrgetter("id"), attrgetter("error")


class Outcomes(Sequence[Outcome]):
    """The outcome of every record by its position in the input, a byte each."""

    __slots__ = ("_codes",)

    def __init__(self, codes: bytes | bytearray) -> None:
        self._codes = codes

    def __len__(self) -> int:
        return len(self._codes)

    @overload
    def __getitem__(self, position: int) -> Outcome: ...
    @overload
    def __getitem__(self, position: slice) -> Outcomes: ...
    def __getitem__(self, position: int | slice) -> Outcome | Outcomes:
        if isinstance(position, slice):
            return Outcomes(self._codes[position])
        return BY_CODE[self._codes[position]]

    def __iter__(self) -> Iterator[Outcome]:
        return map(BY_CODE.__getitem__, self._codes)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and len(self) == len(other) and all(map(eq, self, other))

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        counts = ((self.count(outcome), outcome) for outcome in BY_CODE)
        return f"<outcomes: {', '.join(f'{count} {outcome}' for count, outcome in counts if count) or 'none'}>"

    def count(self, value: Any) -> int:
        """How many records ended so."""
        return self._codes.count(CODES[value])

    def positions(self, outcome: Outcome) -> Iterator[int]:
        """Where in the input the records of this outcome are."""
        wanted = CODES[outcome]
        return (position for position, code in enumerate(self._codes) if code == wanted)


class Verdicts(Sequence[Verdict]):
    """What the remote said of the records of a batch: a list of `Verdict`s says the same, with an object for each.

    `codes` has the outcome of each, `ids` the ids if there are any, and `errors` what is wrong, by position.
    """

    __slots__ = ("codes", "errors", "ids")

    def __init__(
        self, codes: bytes, ids: Sequence[RecordId] | None = None, errors: Mapping[int, TargetError] | None = None
    ) -> None:
        self.codes, self.ids, self.errors = codes, ids, errors or {}

    @classmethod
    def of(cls, verdicts: Sequence[Verdict]) -> Verdicts:
        """The same verdicts by columns."""
        if isinstance(verdicts, Verdicts):
            return verdicts
        codes = bytes(map(_CODE_BY_IDENTITY.__getitem__, map(id, map(_OUTCOME, verdicts))))
        ids = list(map(_ID, verdicts))
        errors = {n: error for n, error in enumerate(map(_ERROR, verdicts)) if error is not None}
        return cls(codes, ids if ids.count(None) < len(ids) else None, errors)

    @property
    def are_alike(self) -> bool:
        """Whether all say the same, whichever record they are about."""
        return self.ids is None and not self.errors and len(set(self.codes)) == 1

    def __len__(self) -> int:
        return len(self.codes)

    @overload
    def __getitem__(self, position: int) -> Verdict: ...
    @overload
    def __getitem__(self, position: slice) -> list[Verdict]: ...
    def __getitem__(self, position: int | slice) -> Verdict | list[Verdict]:
        place = range(len(self))[position]
        if isinstance(place, range):
            return [self[n] for n in place]
        return Verdict(BY_CODE[self.codes[place]], self.ids[place] if self.ids else None, self.errors.get(place))

    def __iter__(self) -> Iterator[Verdict]:
        errors = map(self.errors.get, range(len(self)))
        return map(Verdict, map(BY_CODE.__getitem__, self.codes), self.ids or repeat(None), errors)


class UniformVerdicts(Verdicts):
    """One outcome for every record of a batch; `ids` are the records' own, when they have any."""

    def __init__(self, verdict: Verdict, length: int, ids: Sequence[RecordId] | None = None) -> None:
        errors = dict.fromkeys(range(length), verdict.error) if verdict.error is not None else {}
        super().__init__(bytes((CODES[verdict.outcome],)) * length, ids, errors)
