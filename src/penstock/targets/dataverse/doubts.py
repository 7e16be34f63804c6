"""Batches whose answer was lost, kept until they are heard of again."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from penstock.targets.dataverse.lookout import Found

__all__ = ["Doubt", "Doubts"]

KEPT_MAX = 1000  # far more than can be in flight


@dataclass(frozen=True, slots=True)
class Doubt:
    """What was known when a batch was sent whose answer never came."""

    is_atomic: bool
    """Whatever was lost was applied as a whole or not at all."""
    present: Found | None = None
    """Which of an upsert's records were there before it was first sent."""


class Doubts:
    """Doubtful batches by their key; the oldest are forgotten when there are too many."""

    def __init__(self) -> None:
        self._kept: OrderedDict[str, Doubt] = OrderedDict()

    def get(self, batch_key: str) -> Doubt | None:
        return self._kept.get(batch_key)

    def add(self, batch_key: str, doubt: Doubt) -> None:
        """Remember a batch; of several lost tries the first knows best what was there before."""
        earlier = self._kept.get(batch_key)
        if earlier is not None:
            doubt = Doubt(earlier.is_atomic and doubt.is_atomic, earlier.present or doubt.present)
        self._kept[batch_key] = doubt
        if len(self._kept) > KEPT_MAX:
            self._kept.popitem(last=False)

    def settle(self, batch_key: str) -> None:
        """The batch was answered for."""
        self._kept.pop(batch_key, None)
