"""What capabilities register: background services, checks of `verify`, symptoms of `doctor`, and hints."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Any, Protocol

__all__ = ["Check", "OnHint", "Service", "Symptom", "SymptomSource"]


@dataclass(frozen=True, slots=True)
class Service:
    """Something that is done again and again. One `tick` is one bounded pass, which several workers may make at once.

    A pass that returns True has found work for workers to claim.
    """

    name: str
    every_s: float
    tick: Callable[[], Awaitable[object]]


@dataclass(frozen=True, slots=True)
class Check:
    """A part of `verify`: `find` gives each difference as (rule, sentence); `deep` also reads stored bytes."""

    name: str
    find: Callable[[bool], Awaitable[Iterable[tuple[str, str]]]]


@dataclass(frozen=True, slots=True)
class Symptom:
    """What is wrong, why it matters and what to do; one that is no problem is only worth knowing."""

    check: str
    what: str
    why: str
    remedy: str
    is_problem: bool = True


# A part of `doctor`: given a database (`penstock.db.Database`) whose schema is right, what is wrong with what is there.
SymptomSource = Callable[[Any], Awaitable[Iterable[Symptom]]]


class OnHint(Protocol):
    """Called when there may be work: of which operation, and from which instant on, where that is known.

    A hint may be lost, repeated or wrong: whoever gets one looks in the database.
    """

    def __call__(self, operation: str | None = None, due_us: int | None = None) -> None:
        """Pass the hint on; this must not block."""
        ...
