"""Time, identity and chance come in from outside, so that tests can hold them still."""

from __future__ import annotations

import random
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from time import time_ns
from typing import Protocol

__all__ = ["Clock", "Entropy", "FollowingClock", "ManualClock", "SystemClock", "from_micros", "micros", "operation_id"]

NEGLIGIBLE_US = 20_000
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def micros(instant: datetime) -> int:
    """An instant as whole microseconds since 1970, the form in which every database stores it."""
    return (instant - EPOCH) // timedelta(microseconds=1)


def from_micros(value: int) -> datetime:
    """The instant, in UTC, that `micros` wrote."""
    return EPOCH + timedelta(microseconds=value)


class Clock(Protocol):
    """Where the time comes from; `is_real` says whether the database may use its own clock instead."""

    is_real: bool

    def now_ns(self) -> int:
        """Nanoseconds since 1970."""

    def now_us(self) -> int:
        """Microseconds since 1970."""

    def monotonic(self) -> float:
        """Seconds on a clock that never jumps and also counts suspend."""


class SystemClock:
    """The machine's clock."""

    is_real = True
    now_ns = staticmethod(time_ns)

    def now_us(self) -> int:
        return time_ns() // 1000

    def monotonic(self) -> float:
        return time.clock_gettime(time.CLOCK_BOOTTIME)


class FollowingClock:
    """The machine's clock, corrected by how far the database's is ahead of it."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.is_real = clock.is_real
        self.monotonic = clock.monotonic
        self.follow(0)

    def follow(self, ahead_us: int) -> None:
        """The database's clock is so far ahead; differences too small to matter cost nothing."""
        clock = self._clock
        self.ahead_us = ahead_us if abs(ahead_us) > NEGLIGIBLE_US else 0
        self.now_ns = self._ahead_ns if self.ahead_us else clock.now_ns
        self.now_us = self._ahead_us if self.ahead_us else clock.now_us

    def _ahead_ns(self) -> int:
        return self._clock.now_ns() + self.ahead_us * 1000

    def _ahead_us(self) -> int:
        return self._clock.now_us() + self.ahead_us


class ManualClock:
    """A clock that moves only when told; for tests."""

    is_real = False

    def __init__(self, start: datetime = datetime(2030, 1, 1, tzinfo=UTC)) -> None:
        self._us = micros(start)

    def now_ns(self) -> int:
        return self._us * 1000

    def now_us(self) -> int:
        return self._us

    def monotonic(self) -> float:
        return self._us / 1e6

    def advance(self, seconds: float) -> None:
        """Move time forward."""
        self._us += round(seconds * 1e6)


@dataclass(frozen=True)
class Entropy:
    """Chance: random bits for ids and a generator for jitter."""

    bits: Callable[[int], int] = secrets.randbits
    jitter: random.Random = field(default_factory=random.Random)


def operation_id(clock: Clock, entropy: Entropy) -> str:
    """A new UUID version 7: ids sort by time of creation."""
    value = (clock.now_us() // 1000) << 80 | 0x7 << 76 | entropy.bits(12) << 64 | 0b10 << 62 | entropy.bits(62)
    text = f"{value:032x}"
    return "-".join((text[:8], text[8:12], text[12:16], text[16:20], text[20:]))
