"""Ends before the end: cancellation, deadlines, first errors, and inputs or callbacks that fail."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Any

import pytest
from scripted import Lose, Refuse, Remote, executor, in_virtual_time, numbered, pool_of, trouble

from penstock.targets import (
    Answer,
    Batch,
    BulkCancelled,
    BulkOptions,
    Capabilities,
    ErrorKind,
    Mode,
    Outcome,
    Progress,
    Verdict,
)
from penstock.targets.quotas import use_quotas
from penstock.targets.rules.limits import Share


@pytest.fixture(autouse=True)
def no_quotas() -> Iterator[None]:
    """Quotas are of the whole process."""
    yield
    use_quotas(None)


def settled(result: Any) -> dict[str, int]:
    counts = {outcome.value: result.outcomes.count(outcome) for outcome in Outcome}
    return {name: count for name, count in counts.items() if count}


async def never(_: Batch) -> None:
    await asyncio.Event().wait()


@pytest.mark.covers("BX-076", "BX-107", "BX-086")
@in_virtual_time
async def test_a_cancelled_call_returns_what_was_done_and_sends_nothing_more():
    remote = Remote(width=2, latency_s=1)
    call = executor(remote).start(Mode.CREATE, "account", numbered(1000))
    await asyncio.sleep(2.5)
    result = await call.cancel()
    assert settled(result) == {"created": 600, "not run": 400}
    assert result.stopped_reason == "cancelled"
    assert len(remote.applied) == 600
    assert await call is result


@pytest.mark.covers("BX-076", "BX-107")
@in_virtual_time
async def test_cancelling_the_task_that_waits_stops_the_call_and_hangs_the_result_on_the_error():
    remote = Remote(width=2, latency_s=1)
    task = asyncio.ensure_future(executor(remote).create_multiple("account", numbered(1000)))
    await asyncio.sleep(2.5)
    task.cancel()
    with pytest.raises(asyncio.CancelledError) as caught:
        await task
    assert type(caught.value) is asyncio.CancelledError, "asyncio compares the class itself"
    result = BulkCancelled.found_in(caught.value)
    assert result is not None
    assert settled(result) == {"created": 600, "not run": 400}
    assert len(remote.applied) == 600


@pytest.mark.covers("BX-076")
@in_virtual_time
async def test_a_timeout_of_asyncio_is_still_a_timeout_and_carries_the_result():
    remote = Remote(width=1, latency_s=1)
    with pytest.raises(TimeoutError) as caught:
        async with asyncio.timeout(3.5):
            await executor(remote).create_multiple("account", numbered(1000))
    result = BulkCancelled.found_in(caught.value)
    assert result is not None
    assert settled(result) == {"created": 400, "not run": 600}


@pytest.mark.covers("BX-076")
@in_virtual_time
async def test_what_is_in_flight_has_a_moment_to_finish_and_is_unknown_after_it():
    remote = Remote(width=2, latency_s=1, script={2: never})
    call = executor(remote).start(Mode.CREATE, "account", numbered(1000))
    await asyncio.sleep(0.5)
    result = await call.cancel()
    assert settled(result) == {"created": 100, "unknown": 100, "not run": 800}
    assert result.duration_s == pytest.approx(0.5 + 5)
    assert {error.message for error in result.errors} == {"stopped before the remote answered"}


@in_virtual_time
async def test_who_cancels_twice_does_not_wait_for_what_is_in_flight():
    remote = Remote(script={1: never})
    task = asyncio.ensure_future(executor(remote).create_multiple("account", numbered(10)))
    await asyncio.sleep(1)
    task.cancel()
    await asyncio.sleep(1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError) as caught:
        await task
    result = BulkCancelled.found_in(caught.value)
    assert result is not None
    assert (settled(result), result.duration_s) == ({"unknown": 10}, pytest.approx(2))


@pytest.mark.covers("BX-086")
@in_virtual_time
async def test_a_long_throttle_can_be_cut_short():
    remote = Remote(script={1: Refuse(trouble(ErrorKind.THROTTLED, retry_after_s=500))})
    call = executor(remote).start(Mode.CREATE, "account", numbered(10))
    await asyncio.sleep(10)
    result = await call.cancel()
    assert (settled(result), result.duration_s) == ({"not run": 10}, pytest.approx(10))


@in_virtual_time
async def test_a_batch_that_waits_for_its_retry_is_not_run_when_it_surely_took_no_effect():
    remote = Remote(script={1: Refuse(trouble(ErrorKind.DEADLOCK))})
    call = executor(remote).start(Mode.CREATE, "account", numbered(10))
    await asyncio.sleep(0.2)
    assert settled(await call.cancel()) == {"not run": 10}


@in_virtual_time
async def test_a_batch_that_waits_for_its_retry_is_unknown_when_it_may_have_taken_effect():
    remote = Remote(capabilities=Capabilities(is_idempotent=True), script={1: Lose()})
    call = executor(remote).start(Mode.UPSERT, "account", numbered(10))
    await asyncio.sleep(0.2)
    assert settled(await call.cancel()) == {"unknown": 10}


@in_virtual_time
async def test_a_batch_whose_fate_is_being_asked_for_is_unknown_when_the_call_is_cut_off():
    class Slow(Remote):
        async def reconcile(self, batch: Batch, source: str) -> Any:
            await asyncio.Event().wait()

    remote = Slow(capabilities=Capabilities(can_reconcile=True), script={1: Lose()})
    call = executor(remote).start(Mode.CREATE, "account", numbered(10))
    await asyncio.sleep(1)
    assert settled(await call.cancel()) == {"unknown": 10}


@in_virtual_time
async def test_a_call_can_be_cancelled_while_the_table_is_described():
    class Slow(Remote):
        async def describe(self, *given: Any) -> Capabilities:
            await asyncio.Event().wait()
            raise AssertionError("never")

    call = executor(Slow()).start(Mode.CREATE, "account", numbered(10))
    await asyncio.sleep(1)
    result = await call.cancel()
    assert (settled(result), result.stopped_reason) == ({"not run": 10}, "cancelled")


@in_virtual_time
async def test_a_call_can_be_cancelled_before_it_has_begun():
    result = await executor(Remote()).start(Mode.CREATE, "account", numbered(10)).cancel()
    assert settled(result) == {"not run": 10}


@in_virtual_time
async def test_a_call_that_has_ended_cannot_be_cancelled_any_more():
    call = executor(Remote()).start(Mode.CREATE, "account", numbered(10))
    await call
    assert (await call.cancel()).is_success


@in_virtual_time
async def test_after_a_cancellation_the_pool_is_free():
    remote = Remote(width=2, latency_s=1)
    pool = pool_of(remote)
    call = executor(remote, pool=pool).start(Mode.CREATE, "account", numbered(1000))
    await asyncio.sleep(2.5)
    await call.cancel()
    assert pool.in_flight == 0
    assert (await executor(remote, pool=pool).create_multiple("account", numbered(100, 5000))).is_success


@in_virtual_time
async def test_a_call_stopped_during_a_race_holds_nobody_else():
    remote = Remote(script={1: Refuse(trouble(ErrorKind.RACE))})
    pool = pool_of(remote)
    call = executor(remote, pool=pool).start(Mode.CREATE, "account", numbered(10))
    await asyncio.sleep(0.2)
    await call.cancel()
    assert (await executor(remote, pool=pool).create_multiple("account", numbered(10, 100))).is_success


@in_virtual_time
async def test_a_record_that_met_a_race_and_never_came_to_its_retry_holds_nobody_else():
    async def both(_: Batch) -> Answer:
        return Answer([Verdict(Outcome.FAILED, error=trouble(kind)) for kind in (ErrorKind.DATA, ErrorKind.RACE)])

    remote = Remote(capabilities=Capabilities(is_atomic=False), script={1: both})
    pool = pool_of(remote)
    options = BulkOptions(continue_on_error=False)
    result = await executor(remote, pool=pool).create_multiple("account", numbered(2), options)
    assert settled(result) == {"failed": 1, "not run": 1}
    assert (await executor(remote, pool=pool).create_multiple("account", numbered(10, 100))).is_success


# Deadlines


@pytest.mark.covers("BX-040", "BX-019")
@in_virtual_time
async def test_at_the_deadline_the_call_returns_normally_with_what_was_done():
    remote = Remote(width=1, latency_s=1)
    result = await executor(remote).create_multiple("account", numbered(1000), BulkOptions(deadline_s=3.5))
    assert settled(result) == {"created": 400, "not run": 600}
    assert (result.stopped_reason, result.duration_s) == ("deadline", pytest.approx(4))


@pytest.mark.covers("BX-019")
@in_virtual_time
async def test_a_deadline_ends_a_throttle():
    remote = Remote(script={1: Refuse(trouble(ErrorKind.THROTTLED, retry_after_s=500))})
    result = await executor(remote).create_multiple("account", numbered(10), BulkOptions(deadline_s=20))
    assert (settled(result), result.stopped_reason, result.duration_s) == ({"not run": 10}, "deadline", 20)


@in_virtual_time
async def test_a_call_that_is_done_in_time_knows_nothing_of_its_deadline():
    result = await executor(Remote()).create_multiple("account", numbered(10), BulkOptions(deadline_s=20))
    assert result.is_success
    assert result.duration_s < 1


@in_virtual_time
async def test_a_stopped_stream_is_read_no_further():
    taken = []

    def stream() -> Iterator[dict[str, Any]]:
        for record in numbered(100_000):
            taken.append(record)
            yield record

    remote = Remote(width=1, latency_s=1)
    result = await executor(remote).create_multiple("account", stream(), BulkOptions(deadline_s=3.5))
    assert len(taken) == len(result.outcomes) <= 800
    assert not result.is_success


# The first error


@pytest.mark.covers("BX-033")
@in_virtual_time
async def test_without_continue_on_error_the_first_failed_record_stops_the_call():
    remote = Remote(width=1, bad=lambda n: trouble(ErrorKind.DATA) if n == 120 else None)
    options = BulkOptions(continue_on_error=False)
    result = await executor(remote).create_multiple("account", numbered(1000), options)
    assert [error.index for error in result.errors] == [120]
    assert result.stopped_reason == "stopped on error"
    assert result.success_count == len(remote.applied)
    assert set(remote.applied) < set(range(200)), "no new batch was begun while the record was looked for"
    assert result.not_run_count == 1000 - 1 - result.success_count


@in_virtual_time
async def test_batches_in_flight_when_an_error_stops_the_call_are_waited_for_however_long_they_take():
    async def slow(_: Batch) -> None:
        await asyncio.sleep(100)

    remote = Remote(width=2, script={2: slow}, bad=lambda n: trouble(ErrorKind.DATA) if n == 0 else None)
    options = BulkOptions(continue_on_error=False, isolate=False)
    result = await executor(remote).create_multiple("account", numbered(1000), options)
    assert settled(result) == {"created": 100, "failed": 100, "not run": 800}


@pytest.mark.parametrize("way", ["deadline", "cancel"])
@in_virtual_time
async def test_a_caller_need_not_wait_for_a_call_that_is_ending_for_another_reason(way: str):
    remote = Remote(width=2, script={2: never}, bad=lambda n: trouble(ErrorKind.DATA) if n == 0 else None)
    deadline_s = 10 if way == "deadline" else None
    options = BulkOptions(continue_on_error=False, isolate=False, deadline_s=deadline_s)
    call = executor(remote).start(Mode.CREATE, "account", numbered(1000), options)
    await asyncio.sleep(10)
    result = await (call.cancel() if way == "cancel" else call)
    assert settled(result) == {"failed": 100, "unknown": 100, "not run": 800}
    assert (result.stopped_reason, result.duration_s) == ("stopped on error", pytest.approx(15))


@in_virtual_time
async def test_a_question_in_flight_is_answered_before_a_stopped_call_ends():
    class Slow(Remote):
        async def reconcile(self, batch: Batch, source: str) -> Any:
            await asyncio.sleep(3)
            return await super().reconcile(batch, source)

    remote = Slow(capabilities=Capabilities(can_reconcile=True), script={1: Lose()})
    call = executor(remote).start(Mode.CREATE, "account", numbered(10))
    await asyncio.sleep(1)
    assert settled(await call.cancel()) == {"created": 10}


# Inputs that fail


@pytest.mark.parametrize("is_async", [False, True])
@in_virtual_time
async def test_when_the_input_raises_everything_read_before_is_finished(is_async: bool):
    def stream() -> Iterator[dict[str, Any]]:
        yield from numbered(150)
        raise OSError("the disk is gone")

    async def async_stream() -> AsyncIterator[dict[str, Any]]:
        for record in stream():
            yield record

    remote = Remote(script={1: Refuse(trouble(ErrorKind.DEADLOCK))})
    result = await executor(remote).create_multiple("account", async_stream() if is_async else stream())
    assert settled(result) == {"created": 150}
    assert result.stopped_reason == "error in input"
    assert str(result.input_error) == "the disk is gone"
    assert not result.is_success


@in_virtual_time
async def test_an_input_that_raises_before_its_first_record_sends_nothing():
    def stream() -> Iterator[dict[str, Any]]:
        raise OSError("no such file")
        yield {}

    remote = Remote()
    result = await executor(remote).create_multiple("account", stream())
    assert (result.stopped_reason, len(result.outcomes), remote.described) == ("error in input", 0, 0)


# Callers that keep their own account


@in_virtual_time
async def test_on_outcomes_sees_every_verdict_with_its_place_in_the_input():
    told: list[tuple[int, Verdict]] = []
    remote = Remote(bad=lambda n: trouble(ErrorKind.DATA) if n == 7 else None)
    options = BulkOptions(on_outcomes=told.extend, keep_ids=False)
    result = await executor(remote).create_multiple("account", numbered(250), options)
    assert sorted(index for index, _ in told) == list(range(250))
    assert {index: verdict.id for index, verdict in told}[9] == "id-9"
    assert dict(told)[7].outcome is Outcome.FAILED
    assert result.created_ids is None


@in_virtual_time
async def test_an_account_that_cannot_be_kept_stops_the_call():
    def broken(_: list[tuple[int, Verdict]]) -> None:
        raise OSError("the disk is full")

    remote = Remote(width=1)
    options = BulkOptions(on_outcomes=broken)
    result = await executor(remote).create_multiple("account", numbered(1000), options)
    assert (result.stopped_reason, str(result.stopped_error)) == ("error in on_outcomes", "the disk is full")
    assert len(remote.calls) == 1
    assert settled(result) == {"created": 100, "not run": 900}


@pytest.mark.covers("BX-050")
@in_virtual_time
async def test_the_last_report_of_a_stopped_call_counts_what_was_not_run():
    reports: list[Progress] = []
    remote = Remote(width=1, latency_s=1)
    await executor(remote).create_multiple("account", numbered(1000), BulkOptions(deadline_s=3.5), reports.append)
    last = reports[-1]
    assert (last.succeeded, last.not_run, last.total, last.phase) == (400, 600, 1000, "done")


@in_virtual_time
async def test_a_call_under_way_can_be_asked_how_far_it_is():
    call = executor(Remote(width=1, latency_s=1)).start(Mode.CREATE, "account", numbered(1000))
    await asyncio.sleep(2.5)
    assert call.progress.succeeded == 200
    await call


@in_virtual_time
async def test_a_lost_answer_is_in_doubt_from_the_moment_it_is_lost():
    """A call stopped while broken connections are dropped must not forget that its batch may have been applied."""

    class Slow(Remote):
        async def refresh(self, source: str) -> None:
            await asyncio.sleep(3)

    remote = Slow(capabilities=Capabilities(is_idempotent=True), script={1: Lose()})
    call = executor(remote).start(Mode.UPSERT, "account", numbered(10))
    await asyncio.sleep(1)
    assert settled(await call.cancel()) == {"unknown": 10}


@pytest.mark.covers("BX-050")
@in_virtual_time
async def test_a_throttle_is_reported_when_it_begins_with_its_end():
    reports: list[Progress] = []
    remote = Remote(latency_s=1, script={1: Refuse(trouble(ErrorKind.THROTTLED, retry_after_s=40))})
    await executor(remote).create_multiple("account", numbered(10), None, reports.append)
    first = reports[0]
    assert (first.phase, first.throttled_until_s, first.processed) == ("throttled", pytest.approx(41), 0)
    assert [report.phase for report in reports[1:]] == ["draining", "done"]


@pytest.mark.covers("BX-019")
@in_virtual_time
async def test_a_race_and_a_search_for_a_bad_record_do_not_wait_for_each_other():
    script = {1: Refuse(trouble(ErrorKind.RACE)), 2: Refuse(trouble(ErrorKind.DATA))}
    remote = Remote(width=2, script=script, bad=lambda n: trouble(ErrorKind.DATA) if n == 15 else None)
    pool = pool_of(remote)
    options = BulkOptions(batch_size=10, continue_on_error=False)
    first = executor(remote, pool=pool).start(Mode.CREATE, "account", numbered(20), options)
    second = await executor(remote, pool=pool).create_multiple("account", numbered(5, start=100))
    result = await first
    assert result.stopped_reason == "stopped on error"
    assert second.is_success, "another call on the same table goes on"


@pytest.mark.parametrize("stop", ["deadline", "cancel"])
@in_virtual_time
async def test_a_stalled_input_does_not_keep_a_call_whose_table_was_refused(stop: str):
    async def stalled() -> AsyncIterator[dict[str, Any]]:
        yield numbered(1)[0]
        await asyncio.Event().wait()

    remote = Remote(descriptions={1: trouble(ErrorKind.UNSUPPORTED)})
    options = BulkOptions(deadline_s=3 if stop == "deadline" else None)
    call = executor(remote).start(Mode.CREATE, "account", stalled(), options)
    if stop == "cancel":
        await asyncio.sleep(1)
        await call.cancel()
    result = await call
    assert settled(result) == {"failed": 1}
    assert result.errors[0].kind is ErrorKind.UNSUPPORTED


@pytest.mark.parametrize("is_refused", [False, True])
@in_virtual_time
async def test_an_async_input_is_closed_when_a_call_stops_early(is_refused: bool):
    is_closed = False

    async def endless() -> AsyncIterator[dict[str, Any]]:
        nonlocal is_closed
        try:
            n = 0
            while True:
                n += 1
                yield numbered(1, start=n)[0]
        finally:
            is_closed = True

    records = endless()
    remote = Remote(descriptions={1: trouble(ErrorKind.UNSUPPORTED)} if is_refused else {})
    result = await executor(remote).create_multiple("account", records, BulkOptions(deadline_s=1))
    assert result.stopped_reason == ("systemic" if is_refused else "deadline")
    assert is_closed


@in_virtual_time
async def test_a_call_stops_when_more_records_have_failed_than_it_may_lose():
    remote = Remote(width=1, bad=lambda n: trouble(ErrorKind.DATA) if n % 50 == 0 else None, sends_each=True)
    result = await executor(remote).create_multiple("account", numbered(10_000), BulkOptions(max_errors=9))
    assert result.stopped_reason == "too many errors"
    assert 10 <= result.failure_count <= 14
    assert result.not_run_count > 9000
    few = await executor(Remote(bad=remote.bad)).create_multiple("account", numbered(450), BulkOptions(max_errors=9))
    assert (few.stopped_reason, few.failure_count) == (None, 9)


@pytest.mark.parametrize("what", ["send", "describe"])
@in_virtual_time
async def test_a_target_whose_own_await_is_cancelled_holds_nobody_up(what: str):
    class Careless(Remote):
        async def describe(self, *asked: Any) -> Capabilities:
            return await (super().describe(*asked) if what == "send" else cancelled())

        async def send(self, batch: Batch, source: str) -> Answer:
            return await (cancelled() if not self.log else super().send(batch, source))

    async def cancelled() -> Any:
        future = asyncio.get_running_loop().create_future()
        future.cancel()
        await future

    remote = Careless(width=1)
    remote.log.clear()
    twice = [*numbered(1), *numbered(1), *numbered(8, start=2)]
    result = await executor(remote).upsert_multiple("account", twice, BulkOptions(batch_size=1))
    if what == "describe":
        assert settled(result) == {"not run": 9, "failed": 1}
    else:
        assert settled(result) == {"unknown": 10}, "nobody knows how far a call came"
    assert "CancelledError" in result.errors[0].message


@pytest.mark.parametrize("stop", ["deadline", "cancel"])
@in_virtual_time
async def test_a_call_stops_in_time_though_its_quota_cannot_be_asked(stop: str):
    class Silent:
        async def renew(self, remote: str, throttled_s: Mapping[str, float]) -> Mapping[str, Share]:
            await asyncio.Event().wait()
            raise AssertionError

    remote = Remote()
    remote.quota = "remote"
    use_quotas(Silent())
    began_s = asyncio.get_running_loop().time()
    options = BulkOptions(deadline_s=0.5 if stop == "deadline" else None)
    call = executor(remote).start(Mode.CREATE, "account", numbered(3), options)
    if stop == "cancel":
        await asyncio.sleep(0.5)
        await call.cancel()
    result = await call
    assert settled(result) == {"not run": 3}
    assert asyncio.get_running_loop().time() - began_s == pytest.approx(0.5)
