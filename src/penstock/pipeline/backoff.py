"""How long to wait between two attempts: a pure function of the attempt and of chance."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from random import Random
from typing import Any, Self

from penstock.errors import DeclarationError

__all__ = ["Backoff", "Duration", "seconds"]

Duration = float | timedelta

LONGEST_S = 30.0
DURATION_MAX = timedelta(days=366_000)  # a thousand years: what is due later is no date any more


def seconds(value: object) -> float:
    """A duration as seconds; text that reads as a number counts as one. ValueError when it is not finite, or so long
    that no calendar has the date on which it ends.
    """
    if isinstance(value, timedelta):
        value = value.total_seconds()
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError("must be seconds or a timedelta")
    try:
        found = float(value)
    except ValueError:
        raise ValueError("must be seconds or a timedelta") from None
    if not math.isfinite(found):
        raise ValueError("must be a finite number of seconds")
    if found > DURATION_MAX.total_seconds():
        raise ValueError("must be at most a thousand years")
    return found


@dataclass(frozen=True, init=False)
class Backoff:
    """The wait before attempt n+1: `initial` times `factor` to the n-1, at most `max`, plus up to `jitter` of it."""

    initial: float
    factor: float
    max: float
    jitter: float

    def __init__(
        self, initial: Duration = 1, factor: float = 2, max: Duration | None = None, jitter: float = 0.5
    ) -> None:
        first = seconds(initial)
        last = seconds(max) if max is not None else sorted((LONGEST_S, first))[-1]
        if first < 0 or last < first or factor < 1 or not 0 <= jitter <= 1:
            raise DeclarationError(
                f"Backoff(initial={first:g}, factor={factor:g}, max={last:g}, jitter={jitter:g}) cannot work: "
                "it needs 0 <= initial <= max, factor >= 1 and a jitter from 0 to 1"
            )
        for name, value in (("initial", first), ("factor", factor), ("max", last), ("jitter", jitter)):
            object.__setattr__(self, name, float(value))

    @classmethod
    def constant(cls, wait: Duration) -> Self:
        """The same wait every time, without jitter."""
        return cls(initial=wait, factor=1, max=wait, jitter=0)

    @classmethod
    def of(cls, value: object) -> Backoff:
        """A Backoff as it is, a number as its first wait, or the mapping that `document` wrote."""
        if isinstance(value, Backoff):
            return value
        if isinstance(value, Mapping):
            unknown = set(value) - {"initial", "factor", "max", "jitter"}
            if unknown:
                raise ValueError(f"has no {', '.join(sorted(unknown))}; a backoff has initial, factor, max, jitter")
            return cls(**value)
        return cls(initial=seconds(value))

    def delay(self, attempt: int, random: Random) -> float:
        """Seconds to wait after failed attempt number `attempt`, counted from 1."""
        try:
            grown = self.initial * self.factor ** (attempt - 1)
        except OverflowError:
            grown = self.max
        return min(grown, self.max) * (1 + self.jitter * random.random())

    def document(self) -> dict[str, Any]:
        """The JSON form."""
        return {"initial": self.initial, "factor": self.factor, "max": self.max, "jitter": self.jitter}
