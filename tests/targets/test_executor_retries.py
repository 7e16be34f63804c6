"""What is tried again, how often and after which wait: the document's table of errors."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
from scripted import Lose, Refuse, Remote, executor, in_virtual_time, numbered, pool_of, trouble

from penstock.targets import (
    Answer,
    Batch,
    BulkOptions,
    Capabilities,
    ErrorKind,
    Mode,
    Outcome,
    RetryManifest,
    RetryPolicy,
    TargetError,
    Verdict,
)
from penstock.targets.pool import CallQueue
from penstock.targets.running.calls import Caller, CallSpec

IMPATIENT = RetryPolicy(jitter=0, outage_s=0)
FINITE = (ErrorKind.TOKEN, ErrorKind.CONNECTION, ErrorKind.DEADLOCK, ErrorKind.RACE)


def refuse(kind: ErrorKind, **facts: Any) -> Refuse:
    return Refuse(trouble(kind, **facts))


def gaps(remote: Remote) -> list[float]:
    """Seconds between calls, rounded, without the time the calls took."""
    times = [sent.at_s for sent in remote.calls]
    return [round(later - earlier - remote.latency_s, 2) for earlier, later in pairwise(times)]


# Throttling


@pytest.mark.covers("BX-002", "BX-019", "BX-057", "BX-106")
@in_virtual_time
async def test_a_throttled_batch_waits_as_told_and_succeeds_in_the_end():
    remote = Remote(script={1: refuse(ErrorKind.THROTTLED, retry_after_s=17)})
    result = await executor(remote).create_multiple("account", numbered(10))
    assert result.is_success
    assert gaps(remote) == [17]
    assert result.statistics.throttles == 1
    assert result.statistics.waited_s == pytest.approx(17)


@pytest.mark.covers("BX-019", "BX-057")
@in_virtual_time
async def test_a_batch_is_throttled_any_number_of_times_and_nothing_is_dropped():
    remote = Remote(script={n: refuse(ErrorKind.THROTTLED, retry_after_s=1) for n in range(1, 101)})
    result = await executor(remote).create_multiple("account", numbered(10))
    assert result.is_success
    assert result.statistics.throttles == 100
    assert not result.statistics.retries


@pytest.mark.covers("BX-057")
@pytest.mark.parametrize("asked, waited", [(None, 30), (float("nan"), 30), (-5, 0.1), (0, 0.1), (7200, 7200)])
@in_virtual_time
async def test_a_throttle_without_a_sensible_time_gets_one(asked: float | None, waited: float):
    remote = Remote(script={1: refuse(ErrorKind.THROTTLED, retry_after_s=asked)})
    await executor(remote).create_multiple("account", numbered(10))
    assert gaps(remote) == [waited]


@pytest.mark.covers("BX-015", "BX-085", "BX-010", "BX-064")
@in_virtual_time
async def test_other_batches_avoid_a_throttled_source():
    remote = Remote(sources=("ana", "ben"), width=1, script={1: refuse(ErrorKind.THROTTLED, retry_after_s=60)})
    result = await executor(remote).create_multiple("account", numbered(500))
    assert result.is_success
    first, *others = remote.calls
    assert {sent.source for sent in others} == {"ben" if first.source == "ana" else "ana"}
    assert result.statistics.waited_s == 0


@pytest.mark.covers("BX-085", "BX-019")
@in_virtual_time
async def test_when_a_throttle_comes_nothing_more_is_sent_on_that_source_until_it_is_over():
    remote = Remote(width=4, script={2: refuse(ErrorKind.THROTTLED, retry_after_s=20)})
    await executor(remote).create_multiple("account", numbered(2000))
    at = remote.calls[1].at_s + remote.latency_s
    assert not [sent for sent in remote.calls if at < sent.at_s < at + 20]


@pytest.mark.covers("BX-015")
@in_virtual_time
async def test_a_shorter_throttle_never_shortens_a_longer_one():
    script = {1: refuse(ErrorKind.THROTTLED, retry_after_s=50), 2: refuse(ErrorKind.THROTTLED, retry_after_s=5)}
    remote = Remote(width=2, script=script)
    await executor(remote).create_multiple("account", numbered(200))
    assert gaps(remote)[1] == 50


@pytest.mark.covers("BX-063")
@in_virtual_time
async def test_throttles_use_up_no_retries():
    script = {n: refuse(ErrorKind.THROTTLED, retry_after_s=1) for n in range(1, 4)}
    script |= {4: refuse(ErrorKind.DEADLOCK), 5: refuse(ErrorKind.DEADLOCK), 6: refuse(ErrorKind.DEADLOCK)}
    result = await executor(Remote(script=script)).create_multiple("account", numbered(10))
    assert result.is_success
    assert result.statistics.retries == {ErrorKind.DEADLOCK: 3}


@pytest.mark.covers("BX-065")
@in_virtual_time
async def test_after_ten_swaps_a_batch_is_sent_on_a_throttled_source_with_a_warning(caplog: pytest.LogCaptureFixture):
    remote = Remote(sources=("ana", "ben"))
    pool = pool_of(remote)
    looks = []

    def always(source: str) -> bool:
        looks.append(source)
        return True

    pool.is_throttled = always  # type: ignore[method-assign]
    with caplog.at_level(logging.WARNING, "penstock.targets"):
        result = await executor(remote, pool=pool).create_multiple("account", numbered(1))
    assert result.is_success
    assert len(looks) == 22  # the description of the table and the batch: ten swaps and a last look each
    assert caplog.text.count("10 sources in a row were throttled") == 2


@pytest.mark.covers("BX-064")
@in_virtual_time
async def test_a_source_throttled_between_the_grant_and_the_call_is_swapped_for_another():
    pool = pool_of(Remote(sources=("ana", "ben"), width=1))
    other = CallQueue(None)
    taken = [await pool.acquire(other), await pool.acquire(other)]
    used: list[str] = []

    async def ask(source: str) -> None:
        used.append(source)

    caller = Caller(CallSpec(Remote(), "account", Mode.CREATE, BulkOptions()), pool, pool.policy)
    waiting = asyncio.ensure_future(caller.call(ask))
    await asyncio.sleep(1)
    first, second = taken
    pool.release(other, first)
    pool.refused(first, trouble(ErrorKind.THROTTLED, retry_after_s=60))
    pool.release(other, second)
    await waiting
    assert used == [second]


# Finite retries


@pytest.mark.covers("BX-020", "BX-059", "BX-060", "BX-061", "BX-062")
@pytest.mark.parametrize("kind", FINITE)
@in_virtual_time
async def test_three_retries_come_after_half_a_second_one_and_two(kind: ErrorKind):
    remote = Remote(latency_s=0, script={n: refuse(kind) for n in (1, 2, 3)})
    result = await executor(remote).create_multiple("account", numbered(10))
    assert result.is_success
    assert gaps(remote) == [0.5, 1, 2]
    assert result.statistics.retries == {kind: 3}


@pytest.mark.covers("BX-020", "BX-066")
@pytest.mark.parametrize("kind", [kind for kind in FINITE if kind is not ErrorKind.DEADLOCK])
@in_virtual_time
async def test_after_the_fourth_try_the_records_fail_with_the_cause_and_the_other_results_are_kept(kind: ErrorKind):
    remote = Remote(latency_s=0, decide=lambda batch, _: refuse(kind, code="X1") if len(batch) == 7 else None)
    result = await executor(remote, policy=IMPATIENT).create_multiple("account", numbered(207))
    assert len([sent for sent in remote.calls if len(sent) == 7]) == 4
    assert (result.success_count, result.failure_count) == (200, 7)
    assert [error.index for error in result.errors] == list(range(200, 207))
    assert {(error.kind, error.code) for error in result.errors} == {(kind, "X1")}
    assert result.stopped_reason is None


@pytest.mark.covers("BX-063")
@in_virtual_time
async def test_each_class_of_error_has_its_own_count():
    kinds = [kind for kind in FINITE for _ in range(3)]
    remote = Remote(latency_s=0, script={n: refuse(kind) for n, kind in enumerate(kinds, 1)})
    result = await executor(remote).create_multiple("account", numbered(10))
    assert result.is_success
    assert result.statistics.retries == dict.fromkeys(FINITE, 3)


@in_virtual_time
async def test_waits_are_lengthened_by_chance_up_to_a_quarter():
    class Much:
        def random(self) -> float:
            return 1.0

    remote = Remote(latency_s=0, script={1: refuse(ErrorKind.DEADLOCK)})
    runner = executor(remote, policy=RetryPolicy(jitter=0.25))
    object.__setattr__(runner.pool.entropy, "jitter", Much())
    await runner.create_multiple("account", numbered(1))
    assert gaps(remote) == [0.62]


@pytest.mark.covers("BX-059")
@in_virtual_time
async def test_a_stale_token_is_renewed_once_however_many_calls_found_it_stale():
    remote = Remote(width=4, script={n: refuse(ErrorKind.TOKEN) for n in (1, 2, 3, 4)})
    result = await executor(remote).create_multiple("account", numbered(400))
    assert result.is_success
    assert remote.refreshed == ["ana"]


@pytest.mark.covers("BX-059")
@in_virtual_time
async def test_a_token_found_stale_again_is_renewed_again():
    remote = Remote(script={1: refuse(ErrorKind.TOKEN), 2: refuse(ErrorKind.TOKEN)})
    assert (await executor(remote).create_multiple("account", numbered(1))).is_success
    assert remote.refreshed == ["ana", "ana"]


@pytest.mark.covers("BX-059")
@in_virtual_time
async def test_a_renewal_that_fails_is_logged_and_the_call_goes_on(caplog: pytest.LogCaptureFixture):
    class Locked(Remote):
        async def refresh(self, source: str) -> None:
            raise OSError("no way to the login")

    result = await executor(Locked(script={1: refuse(ErrorKind.TOKEN)})).create_multiple("account", numbered(1))
    assert result.is_success
    assert "no way to the login" in caplog.text


@pytest.mark.covers("BX-060")
@in_virtual_time
async def test_connections_that_broke_are_dropped():
    remote = Remote(script={1: refuse(ErrorKind.CONNECTION)})
    assert (await executor(remote).create_multiple("account", numbered(1))).is_success
    assert remote.refreshed == ["ana"]


@pytest.mark.covers("BX-061")
@in_virtual_time
async def test_during_a_race_one_batch_tries_and_the_others_of_its_table_wait():
    remote = Remote(width=4, script={n: refuse(ErrorKind.RACE) for n in (1, 2, 3, 4, 5, 6)})
    result = await executor(remote).create_multiple("account", numbered(800))
    assert result.is_success
    times = [sent.at_s for sent in remote.calls]
    assert len({*times[:4]}) == 1
    assert times[4] < times[5] < times[6] < times[7], "one at a time until one is through"


@pytest.mark.covers("BX-061")
@in_virtual_time
async def test_a_race_that_never_ends_fails_one_batch_after_the_other_and_holds_nobody_for_ever():
    remote = Remote(width=2, latency_s=0, decide=lambda _batch, _source: refuse(ErrorKind.RACE))
    result = await executor(remote).create_multiple("account", numbered(300))
    assert result.failure_count == 300


@pytest.mark.covers("BX-062")
@in_virtual_time
async def test_a_deadlock_shrinks_the_width():
    remote = Remote(width=8, script={1: refuse(ErrorKind.DEADLOCK)})
    runner = executor(remote)
    await runner.create_multiple("account", numbered(800))
    assert runner.pool.width < 8


@pytest.mark.covers("BX-037")
@in_virtual_time
async def test_a_missing_permission_is_not_retried():
    remote = Remote(script={1: refuse(ErrorKind.PERMISSION, message="prvCreate is missing")})
    result = await executor(remote).create_multiple("account", numbered(1))
    assert [error.message for error in result.errors] == ["prvCreate is missing"]
    assert len(remote.calls) == 1


@in_virtual_time
async def test_retries_have_a_budget_so_that_a_sick_remote_is_not_hammered():
    remote = Remote(latency_s=0, decide=lambda _batch, _source: refuse(ErrorKind.DEADLOCK))
    policy = RetryPolicy(jitter=0, budget=10)
    result = await executor(remote, policy=policy).create_multiple("account", numbered(3000))
    assert result.failure_count == 3000
    assert result.statistics.retries == {ErrorKind.DEADLOCK: 10}
    assert len(remote.calls) == 30 + 10


# A remote that does not answer


@in_virtual_time
async def test_a_source_that_never_answers_is_left_alone_while_another_works():
    def dead_ana(_batch: Batch, source: str) -> Refuse | None:
        return refuse(ErrorKind.CONNECTION) if source == "ana" else None

    remote = Remote(sources=("ana", "ben"), width=2, decide=dead_ana, latency_s=0.2)
    result = await executor(remote).create_multiple("account", numbered(10_000))
    assert result.is_success
    tries = [sent for sent in remote.calls if sent.source == "ana"]
    assert len(tries) < 15


@in_virtual_time
async def test_a_remote_that_never_answers_stops_the_call_with_the_rest_not_run():
    remote = Remote(width=4, decide=lambda _batch, _source: refuse(ErrorKind.CONNECTION, message="refused"))
    result = await executor(remote).create_multiple("account", numbered(100_000))
    assert result.stopped_reason == "systemic"
    assert str(result.stopped_error) == "refused"
    assert result.failure_count + result.not_run_count == 100_000
    assert result.success_count == result.unknown_count == 0
    assert len(remote.calls) < 40
    assert 300 < result.duration_s < 360


@pytest.mark.covers("BX-060", "BX-055")
@pytest.mark.parametrize("lasts_s", [8, 60, 280])
@in_virtual_time
async def test_an_outage_of_minutes_is_waited_out(lasts_s: float):
    def away(_batch: Batch, _source: str) -> Refuse | None:
        is_away = 1003 < asyncio.get_running_loop().time() < 1003 + lasts_s
        return refuse(ErrorKind.CONNECTION) if is_away else None

    remote = Remote(width=4, latency_s=1, decide=away)
    result = await executor(remote).create_multiple("account", numbered(3000))
    assert result.is_success
    assert set(remote.applied.values()) == {1}


@pytest.mark.covers("BX-055")
@in_virtual_time
async def test_an_outage_that_lasts_too_long_leaves_what_was_done_and_what_to_send_again():
    def away(_batch: Batch, _source: str) -> Refuse | None:
        return refuse(ErrorKind.CONNECTION) if asyncio.get_running_loop().time() > 1003 else None

    remote = Remote(width=4, latency_s=1, decide=away)
    result = await executor(remote, policy=RetryPolicy(outage_s=60, jitter=0)).create_multiple(
        "account", numbered(3000)
    )
    assert (result.stopped_reason, result.success_count) == ("systemic", len(remote.applied))
    assert 60 < result.duration_s < 120
    left = list(RetryManifest.of({"account": result}).select(numbered(3000)))
    assert sorted([*remote.applied, *(record["n"] for record in left)]) == list(range(3000))


@in_virtual_time
async def test_a_table_is_described_after_an_outage():
    remote = Remote(descriptions={n: trouble(ErrorKind.CONNECTION) for n in range(1, 12)})
    assert (await executor(remote).create_multiple("account", numbered(10))).is_success


@in_virtual_time
async def test_a_remote_that_comes_back_is_found_by_one_call_and_then_used_in_full():
    def away(_batch: Batch, _source: str) -> Refuse | None:
        return refuse(ErrorKind.CONNECTION) if asyncio.get_running_loop().time() < 1003 else None

    remote = Remote(width=4, decide=away)
    result = await executor(remote).create_multiple("account", numbered(4000))
    assert result.is_success
    assert remote.total_max == 4


# Too big


@in_virtual_time
async def test_a_batch_that_is_too_big_is_split_until_it_fits():
    remote = Remote(decide=lambda batch, _: refuse(ErrorKind.TOO_BIG) if len(batch) > 30 else None)
    result = await executor(remote).create_multiple("account", numbered(100))
    assert result.is_success
    assert sorted(remote.sizes) == [25, 25, 25, 25, 50, 50, 100]
    assert set(remote.applied.values()) == {1}


@in_virtual_time
async def test_a_record_that_is_too_big_by_itself_fails_alone():
    remote = Remote(decide=lambda batch, _: refuse(ErrorKind.TOO_BIG) if 5 in [r["n"] for r in batch.records] else None)
    result = await executor(remote).create_multiple("account", numbered(20), BulkOptions(isolate=False))
    assert [(error.index, error.kind) for error in result.errors] == [(5, ErrorKind.TOO_BIG)]
    assert result.success_count == 19


# Records that want another try although their batch was answered


def partly(kind: ErrorKind, **facts: Any) -> Callable[[Batch], Any]:
    """Every second record of a batch of more than five is refused."""

    async def answer(batch: Batch) -> Answer:
        error = TargetError("try again", kind=kind, **facts)
        return Answer(
            [
                Verdict(Outcome.FAILED, error=error) if n % 2 else Verdict(Outcome.CREATED, f"id-{record['n']}")
                for n, record in enumerate(batch.records)
            ]
        )

    return answer


@pytest.mark.parametrize("kind", [*FINITE, ErrorKind.THROTTLED, ErrorKind.TOO_BIG])
@in_virtual_time
async def test_records_refused_for_a_passing_reason_are_sent_again_without_the_others(kind: ErrorKind):
    remote = Remote(capabilities=Capabilities(is_atomic=False), script={1: partly(kind, retry_after_s=3)})
    result = await executor(remote).create_multiple("account", numbered(10))
    assert result.is_success
    assert result.created_ids == [f"id-{n}" for n in range(10)]
    assert sorted(n for sent in remote.calls[1:] for n in sent.numbers) == [1, 3, 5, 7, 9]


@pytest.mark.covers("BX-057")
@in_virtual_time
async def test_a_throttle_of_single_records_holds_their_source_like_any_other():
    remote = Remote(
        capabilities=Capabilities(is_atomic=False), script={1: partly(ErrorKind.THROTTLED, retry_after_s=3)}
    )
    await executor(remote).create_multiple("account", numbered(10))
    assert gaps(remote) == [3]


@in_virtual_time
async def test_records_that_stay_refused_fail_after_their_fourth_try():
    remote = Remote(
        capabilities=Capabilities(is_atomic=False), bad=lambda n: trouble(ErrorKind.DEADLOCK) if n == 3 else None
    )
    result = await executor(remote).create_multiple("account", numbered(10))
    assert [(error.index, error.kind) for error in result.errors] == [(3, ErrorKind.DEADLOCK)]
    assert remote.sizes == [10, 1, 1, 1]


@in_virtual_time
async def test_records_keep_their_count_of_tries_when_they_are_parted_from_others():
    tries: dict[int, int] = {}

    def refused(n: int) -> TargetError | None:
        tries[n] = tries.get(n, 0) + 1
        return trouble(ErrorKind.DEADLOCK) if n == 3 or (n in (4, 5) and tries[n] < n - 2) else None

    remote = Remote(capabilities=Capabilities(is_atomic=False), bad=refused)
    result = await executor(remote).create_multiple("account", numbered(10))
    assert remote.sizes == [10, 3, 2, 1]
    assert [error.index for error in result.errors] == [3]


# Before the first batch


@pytest.mark.covers("BX-057")
@in_virtual_time
async def test_the_question_how_a_table_behaves_is_retried_like_a_batch():
    troubles = [trouble(ErrorKind.THROTTLED, retry_after_s=5), trouble(ErrorKind.CONNECTION), trouble(ErrorKind.TOKEN)]
    remote = Remote(descriptions=dict(enumerate(troubles, 1)))
    result = await executor(remote).create_multiple("account", numbered(10))
    assert result.is_success
    assert remote.described == 4


@in_virtual_time
async def test_a_table_that_cannot_be_described_fails_the_records_at_hand_and_runs_no_others():
    remote = Remote(descriptions={1: trouble(ErrorKind.UNSUPPORTED, "no such table")})
    result = await executor(remote).create_multiple("account", numbered(250))
    assert (result.failure_count, result.not_run_count) == (100, 150)
    assert result.stopped_reason == "systemic"
    assert {error.message for error in result.errors} == {"no such table"}
    assert not remote.calls


@in_virtual_time
async def test_what_a_target_raises_that_is_no_target_error_leaves_the_records_unknown(
    caplog: pytest.LogCaptureFixture,
):
    async def broken(_: Batch) -> None:
        raise ZeroDivisionError("a mistake in the target")

    remote = Remote(script={1: broken})
    result = await executor(remote).create_multiple("account", numbered(10))
    assert result.unknown_count == 10
    assert "ZeroDivisionError" in result.errors[0].message
    assert "a mistake in the target" in caplog.text


@in_virtual_time
async def test_an_answer_with_the_wrong_number_of_verdicts_is_not_believed():
    async def short(_: Batch) -> Answer:
        return Answer([Verdict(Outcome.CREATED)] * 3)

    result = await executor(Remote(script={1: short})).create_multiple("account", numbered(10))
    assert result.unknown_count == 10
    assert result.errors[0].message == "3 verdicts came for 10 records"


@in_virtual_time
async def test_an_answer_lost_while_throttled_is_not_simply_sent_again():
    remote = Remote(script={1: Lose(kind=ErrorKind.THROTTLED)})
    result = await executor(remote).create_multiple("account", numbered(10))
    assert result.unknown_count == 10
    assert set(remote.applied.values()) == {1}


@pytest.mark.covers("BX-061")
@in_virtual_time
async def test_a_batch_that_deadlocks_again_and_again_is_split():
    remote = Remote(decide=lambda batch, _: refuse(ErrorKind.DEADLOCK) if len(batch) > 25 else None)
    result = await executor(remote).create_multiple("account", numbered(100))
    assert result.is_success
    assert remote.sizes == [100] * 4 + [50] * 8 + [25] * 4
