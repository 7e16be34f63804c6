"""Operations that a worker leaves alone for a while."""

from __future__ import annotations

from penstock.clock import ManualClock
from penstock.operations.worker.troubles import SetAside


def test_trouble_that_does_not_end_is_looked_at_less_and_less_often():
    clock = ManualClock()
    aside, pauses = SetAside(clock.monotonic), []
    for _ in range(9):
        pauses.append(aside.for_trouble(7))
        assert (7 in aside, aside.numbers) == (True, (7,))
        clock.advance(pauses[-1])
        assert (7 in aside, aside.numbers) == (False, ())
    assert pauses == [1, 2, 4, 8, 16, 32, 60, 60, 60]


def test_what_goes_on_is_looked_at_at_once_and_later_trouble_begins_anew():
    clock = ManualClock()
    aside = SetAside(clock.monotonic)
    for _ in range(3):
        aside.for_trouble(7)
    aside.take_up(7)
    assert 7 not in aside
    assert aside.for_trouble(7) == 1


def test_each_operation_is_set_aside_for_itself():
    clock = ManualClock()
    aside = SetAside(clock.monotonic)
    aside.for_trouble(8)
    aside.for_a_moment(7, 0.5)
    assert (aside.numbers, 9 in aside) == ((7, 8), False)
    clock.advance(0.5)
    assert aside.numbers == (8,)
