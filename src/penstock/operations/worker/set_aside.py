"""Operations that a worker leaves alone for a while, because it cannot go on with them now. Others may."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

__all__ = ["SetAside"]

PAUSE_FIRST_S = 1.0
PAUSE_MAX_S = 60.0
FORGOTTEN_S = 600.0


@dataclass(slots=True)
class _Pause:
    until: float
    pause_s: float  # the next one, if trouble comes again


class SetAside:
    """Which operations are set aside, and until when."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._pauses: dict[int, _Pause] = {}

    @property
    def numbers(self) -> tuple[int, ...]:
        """The operations that are set aside now."""
        now = self._monotonic()
        return tuple(sorted(number for number, pause in self._pauses.items() if pause.until > now))

    def __contains__(self, number: int) -> bool:
        pause = self._pauses.get(number)
        return pause is not None and pause.until > self._monotonic()

    def for_a_moment(self, number: int, seconds: float) -> None:
        """Set it aside for a short time: we need units that other workers will give back."""
        self._pause(number, seconds, PAUSE_FIRST_S)

    def for_trouble(self, number: int, *, pause_max_s: float = PAUSE_MAX_S) -> float:
        """Set it aside because of trouble; each time in a row the pause doubles. Returns how long it is."""
        before = self._pauses.get(number)
        pause_s = PAUSE_FIRST_S if before is None else min(before.pause_s, pause_max_s)
        self._pause(number, pause_s, min(2 * pause_s, PAUSE_MAX_S))
        return pause_s

    def _pause(self, number: int, pause_s: float, next_s: float) -> None:
        """Set it aside; what was aside long ago is forgotten, because others may have ended it."""
        now = self._monotonic()
        self._pauses = {other: pause for other, pause in self._pauses.items() if now - pause.until < FORGOTTEN_S}
        self._pauses[number] = _Pause(now + pause_s, next_s)

    def take_up(self, number: int) -> None:
        """Set it aside no longer."""
        self._pauses.pop(number, None)
