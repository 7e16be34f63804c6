"""What a target remembers of batches until it has heard what became of them."""

from __future__ import annotations

from typing import TypeVar

__all__ = ["RecentBatches"]

T = TypeVar("T")


class RecentBatches(dict[str, T]):
    """Something about batches, by their keys; the oldest are forgotten beyond `limit`.

    So many are not in flight at once: the callers of the oldest have given them up.
    """

    def __init__(self, limit: int = 1000) -> None:
        super().__init__()
        self._limit = limit

    def __setitem__(self, batch_key: str, known: T) -> None:
        super().__setitem__(batch_key, known)
        if len(self) > self._limit:
            del self[next(iter(self))]
