"""Sizes, widths, throttles and breakers: how fast a remote is driven."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.targets.model import BulkOptions, Limit
from penstock.targets.rules.batch_size import BatchSize
from penstock.targets.rules.limits import Breaker, Throttles, Width
from penstock.targets.target import Capabilities

# Batch sizes


def adapting(size: int = 100, most: int = 1000, **capabilities: int) -> BatchSize:
    return BatchSize(
        BulkOptions(batch_size=size, adapt_batch_size=True, batch_size_max=most), Capabilities(**capabilities)
    )


@pytest.mark.covers("BX-110")
def test_a_size_grows_by_half_at_most_towards_two_seconds_a_call():
    size = adapting()
    seen = []
    for _ in range(8):
        size.answered(size.now, size.now * 0.01)
        seen.append(size.now)
    assert seen == [150, 200, 200, 200, 200, 200, 200, 200]


@pytest.mark.covers("BX-110")
def test_a_size_shrinks_by_half_at_most_when_calls_are_slow():
    size = adapting()
    size.answered(100, 1000)
    assert size.now == 50


@pytest.mark.covers("BX-110")
def test_after_a_batch_was_too_much_the_size_grows_by_a_tenth_after_three_good_calls():
    size = adapting()
    size.was_too_much()
    seen = []
    for _ in range(7):
        size.answered(size.now, 0.01)
        seen.append(size.now)
    assert seen == [50, 50, 55, 55, 55, 60, 60]


def test_a_size_of_one_still_grows():
    size = adapting(1)
    size.was_too_much()
    for _ in range(3):
        size.answered(1, 0.01)
    assert size.now == 2


@pytest.mark.parametrize(
    "limit, size", [(Limit.TIME, 50), (Limit.REQUESTS, 150), (Limit.CONCURRENCY, 100), (None, 100)]
)
@pytest.mark.covers("BX-057")
def test_the_limit_that_was_hit_says_whether_batches_shrink_or_grow(limit: Limit | None, size: int):
    adapted = adapting()
    adapted.throttled(limit)
    assert adapted.now == size


def test_the_last_small_batch_of_an_input_says_nothing_about_full_ones():
    size = adapting()
    size.answered(3, 30)
    assert size.now == 100


@given(
    st.integers(1, 500),
    st.integers(1, 500),
    st.lists(st.sampled_from(["good", "slow", "much", "time", "requests"]), max_size=40),
)
def test_a_size_stays_between_one_and_its_limits(first: int, most: int, happenings: list[str]):
    size = adapting(first, most, records_max=300)
    for happening in happenings:
        match happening:
            case "good":
                size.answered(size.now, 0.001)
            case "slow":
                size.answered(size.now, 500)
            case "much":
                size.was_too_much()
            case limit:
                size.throttled(Limit(limit))
        assert 1 <= size.now <= min(most, 300)


@pytest.mark.covers("BX-034")
def test_a_fixed_size_never_moves_but_is_capped_by_the_table():
    size = BatchSize(BulkOptions(batch_size=5000), Capabilities())
    size.was_too_much()
    size.answered(5000, 100)
    assert size.now == 5000
    assert BatchSize(BulkOptions(batch_size=500), Capabilities(records_max=100)).now == 100


def test_calls_that_take_no_time_at_all_are_no_reason_to_fail():
    size = adapting()
    size.answered(100, 0.0)
    assert size.now == 150


# Widths


def test_a_width_begins_at_what_the_remote_recommends():
    assert Width(4, 52).now == 4
    assert Width(99, 52).now == 52
    assert Width(0, 0).now == 1


def after(width: Width, good_calls: int) -> int:
    for _ in range(good_calls):
        width.answered()
    return width.now


def test_after_a_throttle_half_is_left_and_each_window_of_good_calls_adds_one():
    width = Width(8, 52)
    width.throttled(None)
    assert width.now == 4
    assert [after(width, calls) for calls in (3, 1, 5, 6, 7, 100)] == [4, 5, 6, 7, 8, 8]


def test_a_collision_takes_a_quarter():
    width = Width(8, 52)
    width.collided()
    assert width.now == 6


def test_a_lower_recommendation_holds_at_once_and_a_higher_one_when_nothing_was_wrong():
    width = Width(4, 52)
    width.hinted(10)
    assert width.now == 10
    width.hinted(2)
    assert width.now == 2
    width.throttled(None)
    width.hinted(10)
    assert width.now == 1


def test_the_width_at_which_calls_were_too_many_is_reached_again_only_after_eight_windows():
    width = Width(4, 52)
    width.throttled(Limit.CONCURRENCY)
    assert after(width, 2) == 3
    assert after(width, 3 * 8 - 1) == 3
    assert after(width, 1) == 4


@given(st.integers(-5, 80), st.lists(st.sampled_from(["good", "none", "concurrency", "collided", "-3", "7", "90"])))
def test_a_width_is_never_below_one_nor_above_its_limit(first: int, happenings: list[str]):
    width = Width(first, 52)
    for happening in happenings:
        match happening:
            case "good":
                width.answered()
            case "none":
                width.throttled(None)
            case "concurrency":
                width.throttled(Limit.CONCURRENCY)
            case "collided":
                width.collided()
            case hint:
                width.hinted(int(hint))
        assert 1 <= width.now <= 52


# Throttles


@given(st.lists(st.tuples(st.sampled_from("ab"), st.floats(0, 100)), max_size=20))
def test_a_later_word_never_shortens_a_throttle(words: list[tuple[str, float]]):
    throttles = Throttles("ab")
    longest = {"a": 0.0, "b": 0.0}
    for source, until in words:
        throttles.record(source, until, 0.0)
        longest[source] = max(longest[source], until)
        for name, end in longest.items():
            assert throttles.until_s(name, 0.0) == (end if end > 0 else None)


@given(st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 20), st.integers(0, 9)), max_size=15))
def test_the_time_in_which_all_were_throttled_is_what_a_second_by_second_count_gives(
    words: list[tuple[str, int, int]],
):
    throttles, ends, counted, now = Throttles("ab"), {"a": 0, "b": 0}, 0, 0
    for source, seconds, pause in words:
        throttles.record(source, now + seconds, now)
        ends[source] = max(ends[source], now + seconds)
        for _ in range(pause):
            counted += now < min(ends.values())
            now += 1
        assert throttles.held_s(now) == counted
        assert throttles.all_until_s(now) == (min(ends.values()) if min(ends.values()) > now else None)


# Breakers


def test_a_breaker_opens_after_five_failures_in_a_row_for_twice_as_long_each_time():
    breaker = Breaker(failures=5, first_s=1, max_s=30)
    for _ in range(4):
        breaker.failed(0)
    assert breaker.admits(0, 3)
    now, waits = 0.0, []
    for _ in range(8):
        breaker.failed(now)
        until = breaker.until_s(now)
        assert until is not None
        assert breaker.is_open
        assert not breaker.admits(now, 0)
        waits.append(until - now)
        now = until
    assert waits == [1, 2, 4, 8, 16, 30, 30, 30]


def test_an_open_breaker_lets_one_call_try_when_its_time_is_up_and_closes_on_an_answer():
    breaker = Breaker(failures=1, first_s=1, max_s=30)
    breaker.failed(0)
    assert [breaker.admits(0.9, 0), breaker.admits(1, 0), breaker.admits(1, 1)] == [False, True, False]
    breaker.answered()
    assert breaker.admits(1, 5)
    assert not breaker.is_open


def test_an_answer_in_between_starts_the_count_anew():
    breaker = Breaker(failures=2, first_s=1, max_s=30)
    breaker.failed(0)
    breaker.answered()
    breaker.failed(0)
    assert not breaker.is_open


def test_calls_under_way_when_it_opened_do_not_prolong_it():
    breaker = Breaker(failures=2, first_s=1, max_s=30)
    for _ in range(10):
        breaker.failed(0)
    assert breaker.until_s(0) == 1
