"""What one of several processes may use of a quota that they have in common."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["WHOLE", "Share"]


@dataclass(frozen=True, slots=True)
class Share:
    """One of `members` who use a quota at the moment; `rank` counts from 0."""

    rank: int = 0
    members: int = 1
    throttled_s: float = 0.0
    """For how long the remote still wants to be left alone, as another member heard."""

    def of(self, width: int) -> int:
        """Our part of so many calls at once. All parts together are the whole, but nobody gets less than one."""
        return max(1, (width - self.rank + self.members - 1) // self.members)


WHOLE = Share()
