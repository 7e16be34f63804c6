"""Background services: what a worker does beside running rows."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass

__all__ = ["Service"]


@dataclass(frozen=True, slots=True)
class Service:
    """Something that is done again and again. One `tick` is one bounded pass, which several workers may make at once.

    A pass that returns True has found work for workers to claim.
    """

    name: str
    every_s: float
    tick: Callable[[], Awaitable[object]]
