"""Until when user code may start."""

from __future__ import annotations

from penstock.clock import Clock
from penstock.operations.rows.gates import Refused

__all__ = ["FOREVER", "LeaseOver", "StartLimit"]

FOREVER = 2**63


class LeaseOver(Refused):
    """No time is left in our lease: user code may not start."""


class StartLimit:
    """Until when user code may start, in ticks. It is checked directly before each call of user code.

    Another thread moves the limit, so it is read anew each time.
    """

    __slots__ = ("_ticks_ns", "until_ns")

    def __init__(self, clock: Clock, until_ns: int = 0) -> None:
        self._ticks_ns, self.until_ns = clock.ticks_ns, until_ns

    def may_start(self) -> bool:
        """Whether user code may start now."""
        return self._ticks_ns() < self.until_ns

    def check(self) -> None:
        """Raise `LeaseOver` unless user code may start now."""
        if self._ticks_ns() >= self.until_ns:
            raise LeaseOver
