"""Sharing: widths per source and in total, fairness between bulk calls, growing, shrinking and running out."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from typing import Any

import pytest
from scripted import LoopClock, Refuse, Remote, executor, in_virtual_time, numbered, pool_of, trouble

from penstock.targets import (
    Answer,
    Batch,
    BulkOptions,
    Capabilities,
    ErrorKind,
    Limit,
    Mode,
    Outcome,
    Pool,
    RateLimit,
    RetryPolicy,
    UniformVerdicts,
    Verdict,
)


@pytest.mark.covers("BX-016", "BX-018", "BX-084")
@in_virtual_time
async def test_the_width_of_a_pool_is_the_sum_of_its_sources_and_each_keeps_its_own():
    remote = Remote(sources=("ana", "ben", "eva"), width=2)
    await executor(remote).create_multiple("account", numbered(3000))
    assert remote.total_max == 6
    assert remote.in_flight_max == {"ana": 2, "ben": 2, "eva": 2}


@pytest.mark.covers("BX-018", "BX-085")
@in_virtual_time
async def test_while_one_source_is_throttled_the_other_is_not_used_beyond_its_width():
    remote = Remote(
        sources=("ana", "ben"), width=2, script={1: Refuse(trouble(ErrorKind.THROTTLED, retry_after_s=100))}
    )
    await executor(remote).create_multiple("account", numbered(3000))
    assert max(remote.in_flight_max.values()) == 2


@pytest.mark.covers("BX-084")
@in_virtual_time
async def test_the_width_follows_what_the_remote_recommends_up_and_down():
    remote = Remote(width=2, hint=6)
    runner = executor(remote)
    await runner.create_multiple("account", numbered(3000))
    assert (remote.total_max, runner.pool.width) == (6, 6)
    remote.hint, remote.total_max = 1, 0
    await runner.create_multiple("account", numbered(100))
    remote.total_max = 0
    await runner.create_multiple("account", numbered(2000))
    assert (remote.total_max, runner.pool.width) == (1, 1)


@pytest.mark.covers("BX-084")
@pytest.mark.parametrize("hint, width", [(0, 1), (-3, 1), (500, 52)])
@in_virtual_time
async def test_a_recommendation_out_of_bounds_is_brought_within(hint: int, width: int):
    runner = executor(Remote(hint=hint))
    await runner.create_multiple("account", numbered(100))
    assert runner.pool.width == width


@pytest.mark.covers("BX-018")
@in_virtual_time
async def test_a_width_that_shrinks_is_kept_by_calls_that_already_run():
    seen = []

    async def shrinking(batch: Batch) -> Answer:
        remote.hint = 1 if len(remote.calls) > 8 else 8
        seen.append((len(remote.calls), remote.in_flight.total()))
        return Answer(UniformVerdicts(Verdict(Outcome.CREATED), len(batch)), width_hint=remote.hint)

    remote = Remote(width=8, decide=lambda _batch, _source: shrinking)
    await executor(remote).create_multiple("account", numbered(4000))
    assert max(now for _, now in seen[:8]) == 8
    assert max(now for _, now in seen[-10:]) == 1


@pytest.mark.covers("BX-057", "BX-085")
@in_virtual_time
async def test_after_a_throttle_half_as_many_calls_start_and_one_more_follows_each_good_window():
    remote = Remote(width=8, latency_s=1, script={1: Refuse(trouble(ErrorKind.THROTTLED, retry_after_s=30))})
    await executor(remote).create_multiple("account", numbered(8000))
    after = Counter(sent.at_s for sent in remote.calls if sent.at_s > remote.calls[0].at_s + 20)
    assert [after[at] for at in sorted(after)][:5] == [4, 5, 6, 7, 8]


@pytest.mark.covers("BX-057")
@in_virtual_time
async def test_calls_that_were_under_way_when_a_throttle_began_lower_the_width_only_once():
    throttled = Refuse(trouble(ErrorKind.THROTTLED, retry_after_s=30))
    remote = Remote(width=8, script=dict.fromkeys(range(1, 9), throttled))
    runner = executor(remote)
    call = runner.start("create", "account", numbered(800))  # type: ignore[arg-type]
    await asyncio.sleep(1)
    assert runner.pool.width == 4
    assert (await call).is_success


@in_virtual_time
async def test_a_width_at_which_the_remote_complained_is_approached_slowly():
    complained = Refuse(trouble(ErrorKind.THROTTLED, retry_after_s=1, limit=Limit.CONCURRENCY))
    remote = Remote(width=4, script={1: complained})
    runner = executor(remote)
    await runner.create_multiple("account", numbered(1500))
    assert runner.pool.width == 3
    await runner.create_multiple("account", numbered(5000))
    assert runner.pool.width == 4


@pytest.mark.covers("BX-083", "BX-019")
@in_virtual_time
async def test_no_slot_is_held_while_a_throttle_is_waited_out():
    remote = Remote(width=1, script={1: Refuse(trouble(ErrorKind.THROTTLED, retry_after_s=60))})
    runner = executor(remote)
    call = runner.start("create", "account", numbered(10))  # type: ignore[arg-type]
    await asyncio.sleep(5)
    assert runner.pool.in_flight == 0
    assert (await call).is_success


@pytest.mark.covers("BX-082")
@pytest.mark.parametrize("fault", [None, ErrorKind.DATA, ErrorKind.OTHER, ErrorKind.DEADLOCK, ErrorKind.TOO_BIG])
@in_virtual_time
async def test_slots_come_back_whatever_happened(fault: ErrorKind | None):
    remote = Remote(decide=lambda _batch, _source: Refuse(trouble(fault)) if fault else None)
    runner = executor(remote)
    await runner.create_multiple("account", numbered(500))
    assert runner.pool.in_flight == 0


@pytest.mark.covers("BX-007", "BX-082")
@in_virtual_time
async def test_calls_that_share_a_pool_share_its_width():
    remote = Remote(width=3)
    pool = pool_of(remote)
    calls = [executor(remote, pool=pool).create_multiple("t", numbered(1000, start)) for start in (0, 5000, 9000)]
    results = await asyncio.gather(*calls)
    assert all(result.is_success for result in results)
    assert remote.total_max == 3


@pytest.mark.covers("BX-082")
@in_virtual_time
async def test_calls_take_turns_so_that_a_small_one_does_not_wait_for_a_big_one():
    remote = Remote(width=2, latency_s=1)
    pool = pool_of(remote)
    big = asyncio.ensure_future(executor(remote, pool=pool).create_multiple("t", numbered(10_000)))
    await asyncio.sleep(5.5)
    small = await executor(remote, pool=pool).create_multiple("t", numbered(300, 50_000))
    assert small.duration_s < 5
    await big


@pytest.mark.covers("BX-082")
@in_virtual_time
async def test_between_two_calls_of_many_batches_each_gets_half():
    remote = Remote(width=4, latency_s=1)
    pool = pool_of(remote)
    one = executor(remote, pool=pool).create_multiple("t", numbered(4000))
    other = executor(remote, pool=pool).create_multiple("t", numbered(4000, 50_000))
    await asyncio.gather(one, other)
    halfway = remote.calls[: len(remote.calls) // 2]
    assert abs(sum(sent.numbers[0] < 50_000 for sent in halfway) - len(halfway) / 2) <= 2


@pytest.mark.covers("BX-043")
@in_virtual_time
async def test_a_narrow_call_leaves_its_unused_share_to_others():
    remote = Remote(width=4, latency_s=1)
    pool = pool_of(remote)
    narrow = executor(remote, pool=pool).create_multiple("t", numbered(1000), BulkOptions(max_parallel_batches=1))
    wide = executor(remote, pool=pool).create_multiple("t", numbered(3000, 50_000))
    results = await asyncio.gather(narrow, wide)
    assert [result.statistics.in_flight_max for result in results] == [1, 3]
    assert max(result.duration_s for result in results) == pytest.approx(10)


@pytest.mark.covers("BX-058")
@in_virtual_time
async def test_an_exhausted_pool_is_asked_again_after_one_second_to_thirty_two_without_end(
    caplog: pytest.LogCaptureFixture,
):
    remote = Remote(width=1)
    pool = pool_of(remote, RetryPolicy(jitter=0, acquire_timeout_s=10))
    hog = asyncio.Event()

    async def hold(batch: Batch) -> None:
        await hog.wait()

    remote.script = {1: hold}
    first = asyncio.ensure_future(executor(remote, pool=pool).create_multiple("t", numbered(1)))
    await asyncio.sleep(1)
    with caplog.at_level(logging.WARNING, "penstock.targets"):
        second = asyncio.ensure_future(executor(remote, pool=pool).create_multiple("t", numbered(1, 5)))
        await asyncio.sleep(300)
    pauses = [record.getMessage().rpartition("in ")[2] for record in caplog.records]
    assert pauses[:7] == ["1 s", "2 s", "4 s", "8 s", "16 s", "32 s", "32 s"]
    hog.set()
    assert all(result.is_success for result in await asyncio.gather(first, second))


@pytest.mark.covers("BX-058", "BX-083")
@in_virtual_time
async def test_a_long_throttle_does_not_count_as_an_exhausted_pool(caplog: pytest.LogCaptureFixture):
    remote = Remote(width=1, script={1: Refuse(trouble(ErrorKind.THROTTLED, retry_after_s=500))})
    result = await executor(remote).create_multiple("t", numbered(300))
    assert result.is_success
    assert "no slot" not in caplog.text


@in_virtual_time
async def test_who_stops_waiting_gives_its_place_and_its_slot_to_others():
    remote = Remote(width=1, latency_s=1)
    pool = pool_of(remote)
    first = asyncio.ensure_future(executor(remote, pool=pool).create_multiple("t", numbered(300)))
    waiting = [executor(remote, pool=pool).start("create", "t", numbered(100, 1000)) for _ in range(5)]  # type: ignore[arg-type]
    await asyncio.sleep(1.5)
    await asyncio.gather(*(call.cancel() for call in waiting))
    assert (await first).is_success
    assert pool.in_flight == 0


def test_a_pool_needs_a_source():
    with pytest.raises(ValueError, match="at least one source"):
        Pool(())


@in_virtual_time
async def test_the_time_waited_together_is_counted_once():
    faults: dict[int, Any] = dict.fromkeys(range(1, 5), Refuse(trouble(ErrorKind.THROTTLED, retry_after_s=40)))
    remote = Remote(width=4, script=faults | {6: Refuse(trouble(ErrorKind.THROTTLED, retry_after_s=20))})
    result = await executor(remote).create_multiple("t", numbered(2000))
    assert result.statistics.waited_s == pytest.approx(60, abs=0.1)


class SlowLooks(LoopClock):
    """Time goes on between two looks at the clock, as it does."""

    def __init__(self) -> None:
        self._looks = 0

    def monotonic(self) -> float:
        self._looks += 1
        return super().monotonic() + self._looks * 1e-4


@pytest.mark.parametrize("early_us", range(0, 1500, 50))
@in_virtual_time
async def test_a_source_that_becomes_usable_while_the_pool_looks_at_it_is_used(early_us: int):
    async def sleep(seconds: float) -> None:
        await asyncio.sleep(max(0.0, seconds - early_us / 1e6))  # no timer is exact

    target = Remote()
    pool = Pool(target.sources, width=1, rate_limit=RateLimit(10), clock=SlowLooks(), sleep=sleep)
    runner = executor(target, pool=pool)
    began_s = asyncio.get_running_loop().time()
    await runner.create_multiple("account", numbered(40), BulkOptions(batch_size=1))
    assert asyncio.get_running_loop().time() - began_s < 10


# Remotes whose waits are too short


@pytest.mark.covers("BX-057", "BX-085")
@in_virtual_time
async def test_after_two_throttles_with_nothing_let_through_between_one_call_tries_first():
    throttled = Refuse(trouble(ErrorKind.THROTTLED, retry_after_s=1, limit=Limit.REQUESTS))
    remote = Remote(width=4, script=dict.fromkeys(range(1, 10), throttled))
    result = await executor(remote).create_multiple("t", numbered(4000))
    starts = Counter(round(sent.at_s - remote.calls[0].at_s) for sent in remote.calls[:13])
    assert [starts[second] for second in range(5)] == [4, 4, 1, 4, 0]
    assert result.is_success


@in_virtual_time
async def test_a_lone_try_that_is_refused_for_its_records_shows_that_the_remote_takes_calls_again():
    throttled = Refuse(trouble(ErrorKind.THROTTLED, retry_after_s=1, limit=Limit.REQUESTS))
    remote = Remote(width=4, script=dict.fromkeys(range(1, 9), throttled) | {9: Refuse(trouble(ErrorKind.DATA))})
    await executor(remote).create_multiple("t", numbered(4000))
    assert len({sent.at_s for sent in remote.calls[9:13]}) == 1


# Patience with a remote that is away


class Absent(Remote):
    """Answers nobody for a while."""

    until_s = 0.0

    def is_away_for(self, seconds: float) -> None:
        self.until_s = asyncio.get_running_loop().time() + seconds

    async def describe(self, table: str, mode: Mode, options: BulkOptions, source: str) -> Capabilities:
        self._answer()
        return await super().describe(table, mode, options, source)

    async def send(self, batch: Batch, source: str) -> Answer:
        self._answer()
        return await super().send(batch, source)

    def _answer(self) -> None:
        if asyncio.get_running_loop().time() < self.until_s:
            raise trouble(ErrorKind.CONNECTION)


@pytest.mark.parametrize("restart_s", [5, 60, 200])
@in_virtual_time
async def test_hours_in_which_nobody_called_take_nothing_from_the_patience_with_a_restart(restart_s: float):
    remote = Absent()
    runner = executor(remote)
    remote.is_away_for(30)
    ended = await runner.create_multiple("t", numbered(10), BulkOptions(deadline_s=2))
    assert ended.stopped_reason == "deadline"
    await asyncio.sleep(8 * 3600)
    remote.is_away_for(restart_s)
    assert (await runner.create_multiple("t", numbered(10))).is_success


@in_virtual_time
async def test_calls_that_meet_a_remote_which_is_away_one_after_another_have_one_patience():
    remote = Absent()
    runner = executor(remote)
    remote.is_away_for(3600)
    for _ in range(11):
        await runner.create_multiple("t", numbered(10), BulkOptions(deadline_s=2))
        await asyncio.sleep(28)
    result = await runner.create_multiple("t", numbered(10))
    assert result.success_count == 0
    assert result.duration_s < 150, "it has not the whole five minutes"


@in_virtual_time
async def test_who_waits_for_a_remote_that_is_away_gives_up_in_time_though_others_begin_calls():
    remote = Absent()
    runner = executor(remote)
    remote.is_away_for(3600)
    patient = asyncio.ensure_future(runner.create_multiple("t", numbered(10)))
    for number in range(20):
        await asyncio.sleep(20)
        await runner.create_multiple("t", numbered(10, 100 + 10 * number), BulkOptions(deadline_s=0.01))
    result = await patient
    assert (result.success_count, result.duration_s) == (0, pytest.approx(300, abs=40))
