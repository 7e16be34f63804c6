"""Time as a worker tells it: ticks that never jump, and an offset that follows the database's clock."""

from __future__ import annotations

import time
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.clock import NEGLIGIBLE_NS, FollowingClock, ManualClock, SystemClock

HOUR_NS = 3_600_000_000_000


class SetClock(SystemClock):
    """A machine whose wall clock was set wrong, and whose ticks stand still."""

    def __init__(self, wrong_ns: int = 0) -> None:
        self.wrong_ns = wrong_ns

    def ticks_ns(self) -> int:
        return 5_000_000_000

    def now_ns(self) -> int:
        return 1_000 * HOUR_NS + self.wrong_ns


@pytest.mark.parametrize(
    "clock", [ManualClock(), SetClock(7), FollowingClock(SetClock(7)), FollowingClock(ManualClock())]
)
def test_an_instant_is_ticks_and_an_offset(clock):
    assert clock.now_ns() == clock.ticks_ns() + clock.offset_ns
    assert clock.now_us() == clock.now_ns() // 1000


def test_the_machines_ticks_count_on_and_are_told_in_seconds_too():
    clock = SystemClock()
    before, seconds, after = clock.ticks_ns(), clock.monotonic(), clock.ticks_ns()
    assert before <= round(seconds * 1e9) + 1000
    assert round(seconds * 1e9) - 1000 <= after
    assert abs(clock.now_ns() - time.time_ns()) < HOUR_NS


def test_a_manual_clock_moves_under_the_one_that_follows_it():
    manual = ManualClock()
    clock = FollowingClock(manual)
    before = clock.now_us()
    manual.advance(3)
    assert clock.now_us() - before == 3_000_000


def test_setting_the_wall_clock_changes_nothing():
    machine = SetClock()
    clock = FollowingClock(machine)
    before = clock.now_ns()
    for machine.wrong_ns in (HOUR_NS, -HOUR_NS):
        assert clock.now_ns() == before


@pytest.mark.parametrize("wrong_ns", [-HOUR_NS, HOUR_NS])
def test_a_clock_that_is_an_hour_off_is_right_once_it_has_followed(wrong_ns):
    clock, right = FollowingClock(SetClock(wrong_ns)), SetClock()
    clock.follow(right.offset_ns - 1000, right.offset_ns + 1000)
    assert clock.now_ns() == right.now_ns() - 1000


def test_a_difference_that_is_noise_does_not_take_time_back_and_a_true_one_does():
    clock = FollowingClock(SetClock())
    offset = clock.offset_ns
    clock.follow(offset, offset)
    clock.follow(offset - NEGLIGIBLE_NS - 2, offset - NEGLIGIBLE_NS)
    assert clock.offset_ns == offset
    clock.follow(offset - NEGLIGIBLE_NS - 2, offset - NEGLIGIBLE_NS - 1)
    assert clock.offset_ns == offset - NEGLIGIBLE_NS - 2


@given(
    first=st.integers(-HOUR_NS, HOUR_NS),
    trips=st.lists(st.tuples(st.integers(0, HOUR_NS), st.integers(0, HOUR_NS)), min_size=2),
)
def test_however_long_questions_and_answers_travel_time_never_runs_back_nor_ahead(first, trips):
    clock, offsets = FollowingClock(SetClock(first)), []
    truth = SetClock().offset_ns
    for there_ns, back_ns in trips:
        clock.follow(truth - back_ns, truth + there_ns)
        offsets.append(clock.offset_ns)
    assert all(before <= after for before, after in pairwise(offsets))
    assert all(truth - back_ns <= offset <= truth for offset, (_, back_ns) in zip(offsets, trips, strict=True))
