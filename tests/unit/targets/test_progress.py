"""How far a bulk call has come, how fast it goes and when it will end."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.clock import ManualClock
from penstock.targets.model import BadInput
from penstock.targets.progress import SAMPLES_MAX, Phase, Progress, ProgressTracker


def started(total: int | None = 1000) -> tuple[ProgressTracker, ManualClock]:
    clock = ManualClock()
    return ProgressTracker(total, monotonic=clock.monotonic), clock


def worked(tracker: ProgressTracker, clock: ManualClock, *, batches: int, size: int, every_s: float) -> None:
    for _ in range(batches):
        clock.advance(every_s)
        tracker.record(succeeded=size)


@pytest.mark.covers("BX-050")
def test_a_snapshot_counts_what_was_recorded():
    tracker, _ = started(10)
    tracker.record(succeeded=3, failed=1)
    tracker.record(succeeded=2, unknown=1, not_run=2)
    now = tracker.snapshot()
    assert (now.succeeded, now.failed, now.unknown, now.not_run, now.total) == (5, 1, 1, 2, 10)
    assert now.processed == 7


@pytest.mark.covers("BX-053")
def test_a_snapshot_never_changes():
    tracker, _ = started()
    before = tracker.snapshot()
    tracker.record(succeeded=1)
    assert before.succeeded == 0
    with pytest.raises(dataclasses.FrozenInstanceError):
        before.succeeded = 9  # type: ignore[misc]


@pytest.mark.covers("BX-051")
def test_percent_is_the_processed_share_of_the_total():
    tracker, _ = started(200)
    tracker.record(succeeded=40, failed=10)
    assert tracker.snapshot().percent_complete == 25


@pytest.mark.covers("BX-051")
def test_total_and_percent_are_unknown_while_a_stream_runs_and_known_at_its_end():
    tracker, _ = started(None)
    tracker.record(succeeded=30)
    assert (tracker.snapshot().total, tracker.snapshot().percent_complete) == (None, None)
    tracker.finish()
    assert (tracker.snapshot().total, tracker.snapshot().percent_complete) == (30, 100)


@pytest.mark.covers("BX-072")
def test_a_call_on_nothing_ends_at_a_hundred_percent():
    tracker, _ = started(0)
    assert tracker.snapshot().percent_complete == 0
    tracker.finish()
    assert tracker.snapshot().percent_complete == 100


def test_a_total_that_becomes_known_on_the_way_is_used():
    tracker, _ = started(None)
    tracker.record(succeeded=30)
    tracker.state(total=60)
    assert tracker.snapshot().percent_complete == 50


def test_records_that_were_never_run_do_not_count_as_progress():
    tracker, clock = started(100)
    clock.advance(10)
    tracker.record(succeeded=50, not_run=50)
    tracker.finish()
    now = tracker.snapshot()
    assert (now.percent_complete, now.overall_rate_per_second) == (50, 5)


def test_more_records_than_were_announced_never_make_more_than_a_hundred_percent():
    tracker, _ = started(10)
    tracker.record(succeeded=11)
    assert tracker.snapshot().percent_complete == 100


@pytest.mark.covers("BX-052")
def test_the_overall_rate_is_what_was_processed_in_the_time_elapsed():
    tracker, clock = started()
    worked(tracker, clock, batches=4, size=25, every_s=5)
    now = tracker.snapshot()
    assert (now.overall_rate_per_second, now.elapsed_s) == (5, 20)


def test_no_rate_is_claimed_before_a_tenth_of_a_second():
    tracker, clock = started()
    clock.advance(0.09)
    tracker.record(succeeded=500)
    assert (tracker.snapshot().overall_rate_per_second, tracker.snapshot().instant_rate_per_second) == (0, 0)


@pytest.mark.covers("BX-052")
def test_the_instant_rate_looks_at_the_last_thirty_seconds():
    tracker, clock = started(100_000)
    worked(tracker, clock, batches=100, size=10, every_s=1)
    worked(tracker, clock, batches=30, size=50, every_s=1)
    now = tracker.snapshot()
    assert now.instant_rate_per_second == pytest.approx(50)
    assert now.overall_rate_per_second == pytest.approx(2500 / 130)


def test_batches_slower_than_the_window_still_have_an_instant_rate():
    tracker, clock = started()
    worked(tracker, clock, batches=3, size=80, every_s=40)
    assert tracker.snapshot().instant_rate_per_second == pytest.approx(2)


def test_the_instant_rate_falls_to_nothing_when_nothing_comes_back():
    tracker, clock = started()
    worked(tracker, clock, batches=20, size=10, every_s=1)
    clock.advance(100)
    assert tracker.snapshot().instant_rate_per_second == 0


@pytest.mark.covers("BX-052", "BX-021")
def test_the_estimate_is_what_remains_at_the_present_rate():
    tracker, clock = started(1000)
    worked(tracker, clock, batches=10, size=10, every_s=1)
    assert tracker.snapshot().estimated_remaining_s == pytest.approx(90)


def test_the_estimate_blends_the_window_with_the_whole_run():
    tracker, clock = started(100_000)
    worked(tracker, clock, batches=300, size=10, every_s=1)
    worked(tracker, clock, batches=30, size=40, every_s=1)
    left, overall = 100_000 - 4200, 4200 / 330
    assert tracker.snapshot().estimated_remaining_s == pytest.approx(left / ((overall + 40) / 2))


def test_waiting_out_a_throttle_does_not_spoil_the_estimate():
    tracker, clock = started(1000)
    worked(tracker, clock, batches=10, size=10, every_s=1)
    tracker.state(phase=Phase.THROTTLED, throttled_until_s=clock.monotonic() + 300)
    clock.advance(300)
    tracker.state(phase="running")
    worked(tracker, clock, batches=10, size=10, every_s=1)
    now = tracker.snapshot()
    assert now.estimated_remaining_s == pytest.approx(80)
    assert now.overall_rate_per_second == pytest.approx(200 / 320), "the rate shown tells the truth about the time"


def test_the_estimate_adds_what_is_left_of_the_present_throttle():
    tracker, clock = started(1000)
    worked(tracker, clock, batches=10, size=10, every_s=1)
    tracker.state(phase="throttled", throttled_until_s=clock.monotonic() + 30)
    clock.advance(10)
    now = tracker.snapshot()
    assert now.estimated_remaining_s == pytest.approx(90 + 20)
    assert (now.phase, now.throttled_until_s) == (Phase.THROTTLED, 40)


@pytest.mark.parametrize("processed, elapsed_s", [(0, 60), (1, 1001), (1000, 1_000_000 / 7)])
def test_an_estimate_nobody_could_believe_is_not_given(processed: int, elapsed_s: float):
    tracker, clock = started(10_000_000)
    clock.advance(elapsed_s)
    tracker.record(succeeded=processed)
    assert tracker.snapshot().estimated_remaining_s is None


def test_hardly_any_rate_gives_no_estimate_even_for_a_single_record():
    tracker, clock = started(2)
    clock.advance(1001)
    tracker.record(succeeded=1)
    assert tracker.snapshot().estimated_remaining_s is None


def test_a_stream_without_a_known_end_has_no_estimate():
    tracker, clock = started(None)
    worked(tracker, clock, batches=10, size=10, every_s=1)
    assert tracker.snapshot().estimated_remaining_s is None


def test_nothing_remains_when_all_is_processed():
    tracker, clock = started(100)
    worked(tracker, clock, batches=10, size=10, every_s=1)
    assert tracker.snapshot().estimated_remaining_s == 0


def test_facts_stay_until_they_are_said_anew():
    tracker, _ = started()
    tracker.state(in_flight=3, retries=1, batch_size=100, width=4)
    tracker.state(in_flight=2)
    now = tracker.snapshot()
    assert (now.in_flight, now.retries, now.batch_size, now.width) == (2, 1, 100, 4)


def test_a_new_phase_forgets_the_throttle():
    tracker, clock = started()
    tracker.state(phase="throttled", throttled_until_s=clock.monotonic() + 5)
    tracker.state(phase="running")
    assert tracker.snapshot().throttled_until_s is None


def test_time_stands_still_after_the_end():
    tracker, clock = started(10)
    clock.advance(5)
    tracker.record(succeeded=10)
    tracker.state(in_flight=2)
    tracker.finish()
    clock.advance(500)
    now = tracker.snapshot()
    assert (now.elapsed_s, now.overall_rate_per_second, now.in_flight) == (5, 2, 0)
    assert (now.phase, now.estimated_remaining_s) == (Phase.DONE, 0)


def test_a_reset_tracker_is_a_new_one():
    tracker, clock = started(10)
    clock.advance(5)
    tracker.record(succeeded=10)
    tracker.finish()
    tracker.reset()
    assert tracker.snapshot() == Progress(total=10)


@pytest.mark.parametrize("name", ["succeeded", "failed", "unknown", "not_run"])
def test_negative_outcomes_are_refused_by_name(name: str):
    tracker, _ = started()
    with pytest.raises(BadInput, match=name):
        tracker.record(**{name: -1})


@pytest.mark.parametrize("name", ["in_flight", "retries", "batch_size", "width", "total"])
def test_negative_facts_are_refused_by_name(name: str):
    tracker, _ = started()
    with pytest.raises(BadInput, match=name):
        tracker.state(**{name: -1})


def test_a_negative_total_is_refused():
    with pytest.raises(BadInput, match="total"):
        ProgressTracker(-1, monotonic=lambda: 0.0)


def test_many_small_batches_keep_few_samples_that_still_span_the_window():
    tracker, clock = started(10_000_000)
    worked(tracker, clock, batches=5_000, size=1, every_s=0.001)
    worked(tracker, clock, batches=15_000, size=2, every_s=0.002)
    assert len(tracker._samples) <= SAMPLES_MAX
    assert tracker.snapshot().instant_rate_per_second == pytest.approx(1000, rel=0.01)


batches = st.tuples(st.integers(0, 50), st.integers(0, 50), st.integers(0, 5), st.floats(0, 60), st.booleans())


@given(st.lists(batches, max_size=60), st.integers(0, 2000) | st.none())
def test_counts_only_grow_and_no_figure_is_ever_absurd(
    steps: list[tuple[int, int, int, float, bool]], total: int | None
):
    tracker, clock = started(total)
    before = tracker.snapshot()
    for succeeded, failed, unknown, seconds, is_throttled in steps:
        tracker.state(phase="throttled" if is_throttled else "running")
        clock.advance(seconds)
        tracker.record(succeeded=succeeded, failed=failed, unknown=unknown)
        now = tracker.snapshot()
        assert now.processed - before.processed == succeeded + failed + unknown
        assert now.elapsed_s >= before.elapsed_s
        assert now.overall_rate_per_second >= 0
        assert now.instant_rate_per_second >= 0
        assert now.percent_complete is None or 0 <= now.percent_complete <= 100
        assert now.estimated_remaining_s is None or 0 <= now.estimated_remaining_s <= 7 * 24 * 3600
        before = now
