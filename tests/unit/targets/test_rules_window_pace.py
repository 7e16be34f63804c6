"""The pace of a source: free until throttles cost too much, then so many calls a window, and slowly upward again."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.targets.model import Limit
from penstock.targets.rules.pace import Pace


def calls(pace: Pace, count: int, at_s: float, apart_s: float = 0.0) -> float:
    """So many calls begin, and go well; when the last one does."""
    for number in range(count):
        pace.began(at_s + number * apart_s)
    return at_s + (count - 1) * apart_s


def throttle(pace: Pace, at_s: float, wait_s: float, limit: Limit | None = Limit.REQUESTS) -> None:
    """A call more begins and is refused."""
    pace.began(at_s)
    pace.refused()
    pace.throttled(at_s, wait_s, limit)


def room(pace: Pace, at_s: float) -> int:
    """How many calls may begin at one instant; they do."""
    count = 0
    while pace.until_s(at_s) is None:
        pace.began(at_s)
        count += 1
    return count


GROWS_S = 140
"""Twelve windows of 10 s after 20 s."""


def paced(per_second: float = 10.0) -> Pace:
    """A pace that has learned from two throttles; it resumes at 20 s and begins to grow at `GROWS_S`."""
    pace = Pace()
    calls(pace, 40, 0)
    throttle(pace, 1, 9)
    calls(pace, round(10 * per_second), 10)
    throttle(pace, 11, 9)
    return pace


def test_without_throttles_nothing_holds_a_call_back():
    pace = Pace()
    calls(pace, 1000, 0)
    assert pace.until_s(0) is None
    assert pace.per_second(0) is None


def test_one_throttle_is_no_reason_for_a_pace():
    pace = Pace()
    throttle(pace, calls(pace, 100, 0, 0.01), 5)
    assert pace.per_second(7) is None


def test_throttles_in_a_row_set_the_pace_to_what_was_let_through_meanwhile():
    assert paced(10).per_second(20) == pytest.approx(10)


@pytest.mark.parametrize("limit", [Limit.REQUESTS, Limit.TIME, None])
def test_a_limit_on_requests_or_time_sets_a_pace(limit: Limit | None):
    pace = Pace()
    calls(pace, 40, 0)
    throttle(pace, 1, 9, limit)
    calls(pace, 40, 10)
    throttle(pace, 11, 9, limit)
    assert pace.per_second(20) == pytest.approx(4)


def test_too_many_calls_at_once_are_no_matter_of_pace():
    pace = Pace()
    for at_s in (1, 11, 21):
        calls(pace, 40, at_s)
        throttle(pace, at_s, 9, Limit.CONCURRENCY)
    assert pace.per_second(30) is None


def test_a_pace_goes_up_and_down_with_our_share_of_the_quota():
    pace = paced(10)
    pace.scale(1 / 2)
    assert pace.per_second(20) == pytest.approx(5)
    assert room(pace, 20) == 50
    pace.scale(2)
    assert pace.per_second(20) == pytest.approx(10)
    assert room(pace, 20) == 50


def test_a_pace_that_was_refused_keeps_its_way_when_our_share_changes():
    whole, shared = paced(10), paced(10)
    for pace in (whole, shared):
        throttle(pace, calls(pace, 100, 20), 9)
    shared.scale(1 / 2)
    for at_s in (30.0, 60.0, 1000.0):
        assert shared.per_second(at_s) == pytest.approx((whole.per_second(at_s) or 0) / 2)


def test_what_was_let_through_of_one_share_says_nothing_about_another():
    pace = Pace()
    calls(pace, 100, 0)
    throttle(pace, 9.9, 0.1)
    pace.scale(1 / 2)
    for at_s in (10, 20):
        calls(pace, 50, at_s)
        throttle(pace, at_s + 1, 9)
    assert pace.per_second(30) == pytest.approx(5)


def test_the_first_window_of_a_share_is_no_measure_since_others_had_filled_a_part_of_it():
    pace = Pace()
    pace.scale(1 / 2)
    throttle(pace, calls(pace, 9, 0), 4)
    for at_s in (4, 14):
        throttle(pace, calls(pace, 50, at_s), 10)
    assert pace.per_second(24) == pytest.approx(5)


def test_a_window_begins_after_the_throttle_that_another_heard_of():
    pace = Pace()
    calls(pace, 50, 0)
    pace.heard(1, 9)
    throttle(pace, calls(pace, 50, 10), 10)
    throttle(pace, calls(pace, 50, 20), 10)
    assert pace.per_second(30) == pytest.approx(5)


def test_a_throttle_that_was_longer_since_we_called_in_that_of_another_does_not_make_the_window_longer():
    pace = Pace()
    for at_s in (0, 10):
        throttle(pace, calls(pace, 50, at_s), 12)
        for later_s in (0.1, 1.1):  # renewals tell of it again and again
            pace.heard(at_s + later_s, 10 - later_s)
    assert pace.per_second(20) == pytest.approx(5, rel=0.02)


def test_throttles_that_cost_little_are_waited_out_without_a_pace():
    pace = Pace()
    for at_s in (100.0, 200.0, 300.0):
        calls(pace, 1000, at_s)
        throttle(pace, at_s + 90, 1)
    assert pace.per_second(400) is None


def test_a_remote_that_lets_nothing_through_says_nothing_about_a_rate():
    pace = Pace()
    for at_s in range(0, 300, 30):
        throttle(pace, at_s, 30)
    assert pace.per_second(330) is None


def test_few_calls_between_throttles_are_added_up():
    pace = Pace()
    for at_s in (0, 2, 4):
        calls(pace, 2, at_s)
        throttle(pace, at_s + 1, 1)
    assert pace.per_second(6) == pytest.approx(6 / 6)


def test_as_many_calls_begin_at_once_as_the_window_takes():
    pace = paced(10)
    calls(pace, 99, 20)
    assert pace.until_s(20) is None
    pace.began(20.5)
    assert pace.until_s(20.5) == pytest.approx(30, abs=0.1)
    assert pace.until_s(30.1) is None


def test_a_call_that_was_refused_does_not_fill_the_window():
    pace = paced(10)
    calls(pace, 100, 20)
    pace.refused()
    assert pace.until_s(20) is None


def test_where_time_is_counted_calls_are_spread():
    pace = Pace()
    calls(pace, 40, 0)
    throttle(pace, 1, 9, Limit.TIME)
    calls(pace, 100, 10)
    throttle(pace, 11, 9, Limit.TIME)
    calls(pace, 2, 20)
    assert pace.until_s(20) == pytest.approx(20.2, abs=0.01)


def test_a_pace_that_was_just_learned_is_kept_for_a_while():
    pace = paced(10)
    assert [pace.per_second(at_s) for at_s in (20, 80, GROWS_S)] == [pytest.approx(10)] * 3


def test_a_pace_that_nobody_minds_grows_faster_and_faster_until_it_is_dropped():
    pace = paced(10)
    span_s = 2 * 10
    rates = [pace.per_second(GROWS_S + spans * span_s) for spans in range(4)]
    assert rates == [pytest.approx(10 * 1.002**n) for n in (0, 1, 3, 7)]
    assert pace.per_second(GROWS_S + 10 * span_s) is not None
    assert pace.per_second(GROWS_S + 10.5 * span_s) is None
    calls(pace, 1000, GROWS_S + 10.5 * span_s)
    assert pace.until_s(GROWS_S + 10.5 * span_s) is None


def test_after_a_pace_was_dropped_one_throttle_is_again_no_reason_for_another():
    pace = paced(10)
    calls(pace, 100, GROWS_S + 220, 0.01)
    throttle(pace, GROWS_S + 230, 1)
    assert pace.per_second(GROWS_S + 231) is None


def test_a_pace_that_was_refused_is_lowered_a_little_and_stays_there_before_it_grows_again():
    pace = paced(10)
    throttle(pace, GROWS_S + 20, 1)
    refused, resumed_s = 10 * 1.002, GROWS_S + 21
    assert [pace.per_second(resumed_s + after_s) for after_s in (0, 25, 50)] == [pytest.approx(0.98 * refused)] * 3
    assert pace.per_second(resumed_s + 100) == pytest.approx(0.98 * refused * 1.002)


def test_a_pace_that_is_refused_again_at_once_is_lowered_twice_as_much_and_comes_back_slowly():
    pace = paced(10)
    throttle(pace, GROWS_S + 20, 1)
    throttle(pace, GROWS_S + 21, 1)
    refused, resumed_s = 0.98 * 10 * 1.002, GROWS_S + 22
    assert pace.per_second(resumed_s) == pytest.approx(0.96 * refused)
    assert pace.per_second(resumed_s + 25) == pytest.approx(0.97 * refused)
    assert pace.per_second(resumed_s + 50) == pytest.approx(0.98 * refused)


def test_a_pace_that_is_refused_again_later_is_left_alone_for_longer_each_time():
    pace = paced(10)
    throttle(pace, 30, 1)
    throttle(pace, 31 + 50, 1)
    held = pace.per_second(82)
    assert pace.per_second(82 + 99) == held
    assert (pace.per_second(82 + 150) or 0) > (held or 0)


def test_a_pace_is_never_lowered_below_what_was_let_through():
    pace = paced(10)
    throttle(pace, 30, 1)
    for at_s in (31, 32, 33, 34, 35):
        calls(pace, 8, at_s)
        throttle(pace, at_s + 1, 0.1)
    assert (pace.per_second(37) or 0) >= 8


def test_throttles_that_are_far_apart_are_waited_out_without_a_pace():
    pace = Pace()
    for at_s in (0.0, 300.0, 600.0):
        calls(pace, 6000, at_s)
        throttle(pace, at_s + 60, 240)
    assert pace.per_second(900) is None


HAPPENINGS = st.tuples(st.integers(0, 60), st.floats(0, 5), st.floats(0.1, 600), st.sampled_from([*Limit, None]))


@given(st.lists(HAPPENINGS, max_size=30))
def test_whatever_happens_the_next_call_is_never_far_away(happenings):
    pace, now_s = Pace(), 0.0
    for count, apart_s, wait_s, limit in happenings:
        for _ in range(count + 1):
            due_s = pace.until_s(now_s) or now_s
            assert due_s - now_s <= 60 * 1.03  # no window is longer than a minute, less a step back
            pace.began(due_s)
            now_s = due_s + apart_s
        pace.refused()
        pace.throttled(now_s, wait_s, limit)
        now_s += wait_s


def test_calls_that_were_under_way_when_a_window_was_full_do_not_count_as_let_through():
    pace, now_s = Pace(), 0.0
    for _ in range(2):  # throttles that come again and again are worth a pace
        for _ in range(105):
            pace.began(now_s)
        now_s += 0.5
        pace.refused()
        pace.throttled(now_s, 5.0, Limit.REQUESTS)
        for _ in range(4):
            pace.refused()
        now_s += 5.0
    assert room(pace, now_s) == 100


def test_waits_in_whole_seconds_are_rounded_up_and_the_window_is_taken_to_be_whole_seconds_too():
    pace = Pace()
    for at_s in (0.0, 6.0):
        calls(pace, 50, at_s)
        throttle(pace, at_s + 0.6, 5)  # 4.4 s in truth
    assert pace.per_second(12) == pytest.approx(50 / 5, rel=0.02)


def test_waits_in_fractions_of_a_second_are_taken_as_they_are():
    pace = Pace()
    for at_s in (0.0, 6.0):
        calls(pace, 50, at_s)
        throttle(pace, at_s + 0.6, 4.9)
    assert pace.per_second(12) == pytest.approx(50 / 5.5)


def test_a_window_that_was_still_filled_from_before_a_throttle_does_not_say_how_much_a_window_takes():
    pace = Pace()
    throttle(pace, calls(pace, 101, 0, 0.02), 3)
    throttle(pace, calls(pace, 47, 5, 0.02), 1)
    assert pace.per_second(7) == pytest.approx(101 / 5, rel=0.02)
    assert room(pace, 7) == 101
    assert pace.until_s(7) == pytest.approx(12, abs=0.1)


def test_of_windows_that_took_about_as_much_the_longer_one_counts():
    pace = Pace()
    throttle(pace, calls(pace, 101, 0, 0.02), 4)  # of a window that began with the first call
    throttle(pace, calls(pace, 100, 6, 0.02), 3)  # of one that had begun a second before
    assert pace.per_second(11) == pytest.approx(100 / 6, rel=0.02)


def test_a_window_that_is_full_a_little_early_again_and_again_holds_fewer_calls():
    pace, at_s = paced(10), 20.0
    for _ in range(2):
        throttle(pace, calls(pace, 98, at_s, 0.01), 9)
        at_s += 10
    assert room(pace, at_s + 2) == 98


def test_a_pace_that_is_refused_again_and_again_is_learned_anew():
    pace, at_s = paced(10), 20.0
    for _ in range(5):  # half as much is permitted by now
        throttle(pace, calls(pace, 50, at_s, 0.01), 10)
        at_s += 11
    assert pace.per_second(at_s) == pytest.approx(5, rel=0.06)
    assert room(pace, at_s) == 50


# Remotes that do not say when they take calls again


def throttle_unnamed(pace: Pace, at_s: float, wait_s: float = 30) -> None:
    """A call more begins and is refused; the wait is our own."""
    pace.began(at_s)
    pace.refused()
    pace.throttled(at_s, wait_s, None, is_guess=True)


def guessed() -> Pace:
    """A pace of a call every three seconds; it resumes at 61 s."""
    pace = Pace()
    throttle_unnamed(pace, calls(pace, 10, 0, 0.01))
    throttle_unnamed(pace, calls(pace, 10, 31, 0.01))
    return pace


def test_what_came_through_in_a_wait_of_our_own_is_a_first_guess_that_is_doubled_in_every_such_wait():
    pace = guessed()
    first = pace.per_second(61)
    assert first == pytest.approx(10 / 30, rel=0.02)
    assert [pace.per_second(61.1 + waits * 30) for waits in (1, 2, 5)] == [
        pytest.approx(first * 2**waits, rel=0.02) for waits in (1, 2, 5)
    ]


def test_where_no_wait_is_named_calls_are_spread_since_nobody_knows_the_window():
    pace = guessed()
    assert room(pace, 61.1) == 1
    assert pace.until_s(62) == pytest.approx(61.1 + 3, rel=0.02)


def test_a_guess_that_is_refused_is_lowered_a_little_like_any_pace():
    pace = guessed()
    refused = pace.per_second(211) or 0
    throttle_unnamed(pace, 211)
    assert pace.per_second(241) == pytest.approx(0.98 * refused)
    assert pace.per_second(241 + 599) == pytest.approx(0.98 * refused)


def test_a_guess_that_went_much_too_far_is_lowered_further_each_time_and_not_made_anew():
    pace, at_s, rates = guessed(), 211.0, []
    for _ in range(7):
        throttle_unnamed(pace, at_s)
        at_s += 31
        rates.append(pace.per_second(at_s) or 0)
    assert [after / before for before, after in pairwise(rates)] == [
        pytest.approx(1 - share, rel=0.01) for share in (0.04, 0.08, 0.16, 0.32, 0.5, 0.5)
    ]


def test_a_remote_that_takes_one_call_at_a_time_and_names_no_wait_gets_a_pace_too():
    pace = Pace()
    for at_s in (0, 31):
        calls(pace, 1, at_s)
        throttle_unnamed(pace, at_s)
    assert pace.per_second(61) == pytest.approx(2 / 61)
    assert pace.per_second(61 + 5 * 30) == pytest.approx(2**5 * 2 / 61)


def test_a_guess_that_nobody_minds_through_twelve_doublings_is_dropped():
    pace = guessed()
    assert pace.per_second(61 + 12 * 30) is not None
    assert pace.per_second(62 + 12 * 30) is None


def test_a_guess_from_a_few_calls_that_are_far_apart_puts_nobody_off_for_more_than_a_minute():
    pace = Pace()
    for at_s in (0, 500):
        calls(pace, 1, at_s)
        throttle_unnamed(pace, at_s)
    pace.began(530)
    assert pace.until_s(530) == pytest.approx(530 + 60)


def test_a_pace_with_a_window_that_is_refused_without_a_wait_being_named_becomes_a_guess_in_the_end():
    pace, at_s = paced(10), 20.0
    for _ in range(5):
        throttle_unnamed(pace, calls(pace, 20, at_s, 0.01))
        at_s += 31
    assert room(pace, at_s) == 1
    assert (pace.per_second(at_s + 30) or 0) == pytest.approx(2 * (pace.per_second(at_s) or 0), rel=0.05)


@given(st.lists(st.tuples(HAPPENINGS, st.booleans()), max_size=30))
def test_whether_waits_are_named_or_not_the_next_call_is_never_far_away(happenings):
    pace, now_s = Pace(), 0.0
    for (count, apart_s, wait_s, limit), is_guess in happenings:
        for _ in range(count + 1):
            due_s = pace.until_s(now_s) or now_s
            assert due_s - now_s <= 60 * 1.03
            pace.began(due_s)
            now_s = due_s + apart_s
        pace.refused()
        pace.throttled(now_s, wait_s, limit, is_guess=is_guess)
        now_s += wait_s
