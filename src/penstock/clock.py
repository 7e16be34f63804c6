"""Time, identity and chance come in from outside, so that tests can hold them still."""

from __future__ import annotations

import os
import random
import secrets
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import cache, partial
from time import time_ns
from typing import Protocol

__all__ = ["Clock", "Entropy", "FollowingClock", "ManualClock", "SystemClock", "from_micros", "micros", "operation_id"]

NEGLIGIBLE_NS = 20_000_000
# Linux alone has a clock of this name; elsewhere the monotonic one counts suspend, or there is none that does.
TICKS = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def micros(instant: datetime) -> int:
    """An instant as whole microseconds since 1970, the form in which every database stores it."""
    return (instant - EPOCH) // timedelta(microseconds=1)


def from_micros(value: int) -> datetime:
    """The instant, in UTC, that `micros` wrote."""
    return EPOCH + timedelta(microseconds=value)


class Clock(Protocol):
    """Where the time comes from; `is_real` says whether the database may use its own clock instead.

    Instants are `now`; what must not jump, such as a lease or a pause, is counted in ticks.
    """

    is_real: bool

    @property
    def boot(self) -> str | None:
        """From when the ticks are counted: the same for all that can compare theirs. None when it cannot be told."""

    def ticks_ns(self) -> int:
        """Nanoseconds on a clock that never jumps and also counts suspend."""

    @property
    def offset_ns(self) -> int:
        """What makes an instant of ticks: `now_ns() == ticks_ns() + offset_ns`."""

    def now_ns(self) -> int:
        """Nanoseconds since 1970."""

    def now_us(self) -> int:
        """Microseconds since 1970."""

    def monotonic(self) -> float:
        """The ticks in seconds."""


class SystemClock:
    """The machine's clock."""

    is_real = True
    now_ns = staticmethod(time_ns)
    ticks_ns = staticmethod(partial(time.clock_gettime_ns, TICKS))

    @property
    def boot(self) -> str | None:
        return _boot()

    @property
    def offset_ns(self) -> int:
        return self.now_ns() - self.ticks_ns()

    def now_us(self) -> int:
        return self.now_ns() // 1000

    def monotonic(self) -> float:
        return time.clock_gettime(TICKS)


class FollowingClock:
    """Ticks and an offset that follows the database's clock; what becomes of the machine's wall clock is nothing to it.

    Until it has followed, the offset is that of the given clock.
    """

    def __init__(self, clock: Clock) -> None:
        self.is_real, self.boot = clock.is_real, clock.boot
        self.ticks_ns, self.monotonic = clock.ticks_ns, clock.monotonic
        self.offset_ns = clock.offset_ns
        self._has_followed = False

    def follow(self, least_ns: int, most_ns: int) -> None:
        """The database's clock is ahead of our ticks by something from `least_ns` to `most_ns`.

        Of what is possible the least is taken, so a finer measurement later moves our time forward, never back. It goes
        back only when it is ahead of all that is possible by more than the noise of clocks.
        """
        if not (self._has_followed and least_ns <= self.offset_ns <= most_ns + NEGLIGIBLE_NS):
            self.offset_ns, self._has_followed = least_ns, True

    def now_ns(self) -> int:
        return self.ticks_ns() + self.offset_ns

    def now_us(self) -> int:
        return (self.ticks_ns() + self.offset_ns) // 1000


class ManualClock:
    """A clock that moves only when told; for tests."""

    is_real = False
    boot = None
    offset_ns = 0

    def __init__(self, start: datetime = datetime(2030, 1, 1, tzinfo=UTC)) -> None:
        self._us = micros(start)

    def ticks_ns(self) -> int:
        return self._us * 1000

    def now_ns(self) -> int:
        return self._us * 1000

    def now_us(self) -> int:
        return self._us

    def monotonic(self) -> float:
        return self._us / 1e6

    def advance(self, seconds: float) -> None:
        """Move time forward."""
        self._us += round(seconds * 1e6)


@cache
def _boot() -> str | None:
    """This boot of the machine; and this namespace of time, because each may count from another moment."""
    try:
        with open("/proc/sys/kernel/random/boot_id") as file:
            boot = file.read().strip()
    except OSError:
        return None
    with suppress(OSError):  # a kernel without namespaces of time
        return f"{boot}/{os.readlink('/proc/self/ns/time')}"
    return boot


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
