"""Tables that take no bulk calls: found out once, remembered, and served one record at a time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scripted import Lose, Refuse, Remote, executor, in_virtual_time, numbered, trouble, virtually

from penstock.targets import (
    BadInput,
    BulkCancelled,
    BulkOptions,
    Capabilities,
    ErrorKind,
    Mode,
    Outcome,
    Progress,
    TargetError,
    Verdict,
)
from penstock.targets.composite.prober import Prober

NO_BULK = trouble(ErrorKind.UNSUPPORTED, "CreateMultiple is not enabled on the entity")


def without_bulk(*tables: str, **facts: Any) -> Remote:
    """A remote where these tables take no bulk calls."""
    refused = Refuse(NO_BULK)
    return Remote(decide=lambda batch, _: refused if batch.table.casefold() in tables else None, **facts)


class Singles:
    """A fallback that writes down what it was given, and fails as it is told."""

    def __init__(self, *faults: BaseException | None) -> None:
        self.sent: list[Any] = []
        self.at_s: list[float] = []
        self.faults = list(faults)

    async def __call__(self, table: str, record: Any, source: str) -> Any:
        self.at_s.append(asyncio.get_running_loop().time())
        await asyncio.sleep(0.01)
        fault = self.faults.pop(0) if self.faults else None
        if fault is not None:
            raise fault
        self.sent.append(record["n"] if isinstance(record, dict) else record)
        return f"single-{self.sent[-1]}"


async def probed(prober: Prober, count: int = 5, table: str = "t", fallback: Any = None, **how: Any) -> Any:
    how.setdefault("mode", Mode.CREATE)
    return await prober.run(table, numbered(count), fallback=fallback or Singles(), **how)


@pytest.mark.covers("BX-088")
@in_virtual_time
async def test_the_first_record_goes_alone_and_the_others_in_bulk():
    remote = Remote()
    result = await probed(Prober(executor(remote)), 250)
    assert remote.sizes == [1, 100, 100, 49]
    assert result.is_success
    assert list(result.created_ids) == [f"id-{n}" for n in range(250)]


@in_virtual_time
async def test_options_that_cannot_be_followed_are_refused_before_the_remote_is_asked():
    remote = Remote()
    with pytest.raises(BadInput, match="max_parallel_batches"):
        await probed(Prober(executor(remote)), options=BulkOptions(max_parallel_batches=0))
    assert remote.described == 0


@pytest.mark.covers("BX-089")
@in_virtual_time
async def test_a_table_without_bulk_calls_goes_through_the_fallback_record_by_record():
    remote, singles = without_bulk("t"), Singles()
    prober = Prober(executor(remote))
    result = await probed(prober, 5, fallback=singles)
    assert sorted(singles.sent) == [0, 1, 2, 3, 4], "the first record too"
    assert list(result.created_ids) == [f"single-{n}" for n in range(5)]
    assert (result.is_success, remote.sizes, prober.is_supported("t", Mode.CREATE)) == (True, [1], False)


@pytest.mark.covers("BX-090")
@in_virtual_time
async def test_what_a_table_takes_is_remembered_both_ways_and_whatever_the_case():
    remote = without_bulk("old")
    prober = Prober(executor(remote))
    for table in ("old", "new"):
        await probed(prober, 5, table)
    before = len(remote.calls)
    await probed(prober, 5, "OLD")
    assert len(remote.calls) == before, "no bulk call is tried again"
    await probed(prober, 5, "New")
    assert remote.sizes[before:] == [5], "nor a first record sent alone"


@pytest.mark.covers("BX-090")
@in_virtual_time
async def test_each_mode_is_known_on_its_own():
    prober = Prober(executor(without_bulk("t")))
    await probed(prober)
    assert prober.is_supported("t", Mode.CREATE) is False
    assert prober.is_supported("t", Mode.UPDATE) is None


@in_virtual_time
async def test_knowledge_can_be_given_and_taken_back():
    remote = Remote()
    prober = Prober(executor(remote))
    prober.mark("T", Mode.CREATE, is_supported=False)
    await probed(prober)
    assert remote.calls == []
    prober.forget("t", Mode.CREATE)
    await probed(prober)
    assert remote.sizes == [1, 4]


@in_virtual_time
async def test_metadata_that_object_spare_the_probe():
    remote, singles = Remote(descriptions={1: NO_BULK}), Singles()
    result = await probed(Prober(executor(remote)), fallback=singles)
    assert (remote.calls, len(singles.sent), result.is_success) == ([], 5, True)


@in_virtual_time
async def test_the_deadline_of_a_probe_holds_while_its_table_is_described():
    class Silent(Remote):
        async def describe(self, *given: Any) -> Capabilities:
            await asyncio.Event().wait()
            raise AssertionError("never")

    began_s = asyncio.get_running_loop().time()
    result = await probed(Prober(executor(Silent())), 5, options=BulkOptions(deadline_s=20))
    assert (result.stopped_reason, result.not_run_count) == ("deadline", 5)
    assert asyncio.get_running_loop().time() - began_s == pytest.approx(20, abs=0.1)


@pytest.mark.parametrize("kind", [ErrorKind.DATA, ErrorKind.BUSINESS])
@in_virtual_time
async def test_a_first_record_that_is_merely_wrong_does_not_condemn_its_table(kind: ErrorKind):
    remote = Remote(bad=lambda number: trouble(kind) if number in (0, 3) else None)
    prober = Prober(executor(remote))
    result = await probed(prober, 5)
    assert [error.index for error in result.errors] == [0, 3]
    assert (result.success_count, prober.is_supported("t", Mode.CREATE)) == (3, True)


@in_virtual_time
async def test_a_first_record_that_proves_nothing_leaves_the_question_open():
    remote = Remote(decide=lambda *_: Refuse(trouble(ErrorKind.PERMISSION)))
    prober = Prober(executor(remote))
    await probed(prober, 1)
    assert prober.is_supported("t", Mode.CREATE) is None


@pytest.mark.covers("BX-091")
@in_virtual_time
async def test_a_throttle_in_the_fallback_is_waited_out_and_loses_no_record():
    throttle = trouble(ErrorKind.THROTTLED, retry_after_s=60)
    singles = Singles(throttle, throttle)
    result = await probed(Prober(executor(without_bulk("t"))), 3, fallback=singles)
    assert (result.is_success, sorted(singles.sent)) == (True, [0, 1, 2])
    assert max(singles.at_s) - min(singles.at_s) >= 60
    assert result.statistics.throttles == 2


@in_virtual_time
async def test_an_update_that_lost_its_connection_in_the_fallback_is_tried_again():
    singles = Singles(TimeoutError())
    remote = without_bulk("t")
    result = await probed(Prober(executor(remote)), 1, fallback=singles, mode=Mode.UPDATE)
    assert (result.is_success, singles.sent, remote.refreshed) == (True, [0], ["ana"])


@in_virtual_time
async def test_a_create_that_lost_its_connection_in_the_fallback_is_never_sent_twice():
    singles = Singles(ConnectionResetError())
    result = await probed(Prober(executor(without_bulk("t"))), 1, fallback=singles)
    assert (list(result.outcomes), len(singles.at_s)) == ([Outcome.UNKNOWN], 1)


@in_virtual_time
async def test_a_record_that_the_fallback_cannot_send_fails_alone():
    singles = Singles(trouble(ErrorKind.DATA, "too long", code="long"))
    result = await probed(Prober(executor(without_bulk("t"))), 3, fallback=singles)
    assert (result.success_count, result.failure_count, result.errors[0].code) == (2, 1, "long")


@in_virtual_time
async def test_the_fallback_may_say_exactly_what_happened():
    async def told(table: str, record: Any, source: str) -> Verdict:
        return Verdict(Outcome.CREATED if record["n"] % 2 else Outcome.UPDATED, record["n"])

    result = await probed(Prober(executor(without_bulk("t"))), 4, fallback=told, mode=Mode.UPSERT)
    assert (result.created_count, result.updated_count, result.counts_exact) == (2, 2, True)


@in_virtual_time
async def test_an_upsert_whose_fallback_tells_only_ids_is_counted_but_not_exactly():
    result = await probed(Prober(executor(without_bulk("t"))), 2, mode=Mode.UPSERT)
    assert (list(result.outcomes), result.counts_exact) == ([Outcome.UPSERTED] * 2, False)


@in_virtual_time
async def test_ids_are_deleted_through_the_fallback_too():
    singles = Singles()
    prober = Prober(executor(without_bulk("t")))
    result = await prober.run("t", ["a", "b"], mode=Mode.DELETE, fallback=singles)
    assert (list(result.outcomes), singles.sent) == ([Outcome.DELETED] * 2, ["a", "b"])


@pytest.mark.covers("BX-091")
@in_virtual_time
async def test_progress_counts_every_record_once():
    for remote in (Remote(), without_bulk("t")):
        seen: list[Progress] = []
        await probed(Prober(executor(remote)), 250, progress=seen.append)
        assert [progress.processed for progress in seen] == sorted(progress.processed for progress in seen)
        assert (seen[-1].succeeded, seen[-1].failed, seen[-1].percent_complete) == (250, 0, 100)


@in_virtual_time
async def test_nothing_to_send_is_a_success_with_one_report():
    seen: list[Progress] = []
    remote = Remote()
    result = await probed(Prober(executor(remote)), 0, progress=seen.append)
    assert (result.is_success, remote.calls, [progress.percent_complete for progress in seen]) == (True, [], [100])


async def as_stream(count: int) -> AsyncIterator[Any]:
    for record in numbered(count):
        yield record


@pytest.mark.parametrize("form", [iter, as_stream])
@pytest.mark.parametrize("tables", [(), ("t",)])
@in_virtual_time
async def test_streams_are_probed_like_lists(form: Any, tables: tuple[str, ...]):
    records = form(150) if form is as_stream else form(numbered(150))
    result = await Prober(executor(without_bulk(*tables))).run("t", records, mode=Mode.CREATE, fallback=Singles())
    assert (result.is_success, len(result.outcomes)) == (True, 150)


@in_virtual_time
async def test_an_input_that_fails_is_reported_as_the_executor_does():
    def broken() -> Iterator[Any]:
        yield from numbered(2)
        raise OSError("disk")

    def broken_at_once() -> Iterator[Any]:
        raise OSError("disk")
        yield

    for records, done in ((broken(), 2), (broken_at_once(), 0)):
        result = await Prober(executor(Remote())).run("t", records, mode=Mode.CREATE, fallback=Singles())
        assert (result.success_count, str(result.input_error)) == (done, "disk")


@pytest.mark.parametrize("stop", ["deadline", "cancel"])
@pytest.mark.parametrize("given", [0, 1])
@pytest.mark.parametrize("tables", [(), ("t",)])
@in_virtual_time
async def test_a_stalled_input_does_not_keep_a_run(stop: str, given: int, tables: tuple[str, ...]):
    is_closed = False

    async def stalled() -> AsyncIterator[Any]:
        nonlocal is_closed
        try:
            for record in numbered(given):
                yield record
            await asyncio.Event().wait()
        finally:
            is_closed = True

    began_s = asyncio.get_running_loop().time()
    options = BulkOptions(deadline_s=3) if stop == "deadline" else BulkOptions()
    prober = Prober(executor(without_bulk(*tables)))
    run = prober.run("t", stalled(), mode=Mode.CREATE, fallback=Singles(), options=options)
    task = asyncio.ensure_future(run)
    if stop == "deadline":
        result = await task
    else:
        await asyncio.sleep(3)
        task.cancel()
        with pytest.raises(asyncio.CancelledError) as caught:
            await task
        partial = BulkCancelled.found_in(caught.value)
        assert partial is not None
        result = partial
    assert (result.stopped_reason, len(result.outcomes)) == ("cancelled" if stop == "cancel" else "deadline", given)
    assert asyncio.get_running_loop().time() - began_s == pytest.approx(3, abs=0.1)
    assert is_closed


@pytest.mark.parametrize("tables", [(), ("t",)])
@pytest.mark.parametrize("is_first_bad", [False, True])
@in_virtual_time
async def test_an_async_input_is_closed_when_a_run_stops_early(tables: tuple[str, ...], is_first_bad: bool):
    is_closed = False

    async def endless() -> AsyncIterator[Any]:
        nonlocal is_closed
        try:
            n = 0
            while True:
                yield numbered(1, start=n)[0]
                n += 1
        finally:
            is_closed = True

    refused = trouble(ErrorKind.DATA)
    remote = without_bulk(*tables, bad=lambda number: refused if is_first_bad and number == 0 else None)
    records, singles = endless(), Singles(refused if is_first_bad else None)
    options = BulkOptions(continue_on_error=False, deadline_s=1)
    prober = Prober(executor(remote))
    result = await prober.run("t", records, mode=Mode.CREATE, fallback=singles, options=options)
    assert result.stopped_reason == ("stopped on error" if is_first_bad else "deadline")
    assert is_closed


@pytest.mark.parametrize("is_known", [False, True])
@in_virtual_time
async def test_the_deadline_holds_for_bulk_calls_and_fallback_together(is_known: bool):
    remote, singles = without_bulk("t", latency_s=4.0), Singles(*[trouble(ErrorKind.THROTTLED, retry_after_s=60)] * 4)
    began_s = asyncio.get_running_loop().time()
    prober = Prober(executor(remote))
    if is_known:
        prober.mark("t", Mode.CREATE, is_supported=True)
    result = await probed(prober, 5, fallback=singles, options=BulkOptions(deadline_s=5))
    assert (result.stopped_reason, result.not_run_count) == ("deadline", 5)
    assert asyncio.get_running_loop().time() - began_s == pytest.approx(5, abs=0.1)


@in_virtual_time
async def test_a_list_is_checked_whole_before_its_first_record_goes_alone():
    remote = Remote()
    with pytest.raises(ValueError, match="index 2"):
        await Prober(executor(remote)).run(
            "t", [{"n": 1}, {"n": 2}, {"name": "x"}], mode=Mode.UPDATE, fallback=Singles()
        )
    assert remote.calls == []


@pytest.mark.covers("BX-023")
@pytest.mark.parametrize("table, error", [("  ", ValueError), (None, TypeError)])
@in_virtual_time
async def test_a_table_without_a_name_is_refused(table: Any, error: type[Exception]):
    with pytest.raises(error):
        await probed(Prober(executor(Remote())), 5, table)


@in_virtual_time
async def test_a_first_record_that_fails_stops_everything_if_asked():
    remote = Remote(bad=lambda number: trouble(ErrorKind.DATA) if number == 0 else None)
    result = await probed(Prober(executor(remote)), 5, options=BulkOptions(continue_on_error=False))
    assert (result.failure_count, result.not_run_count, result.stopped_reason) == (1, 4, "stopped on error")
    assert remote.sizes == [1]


@in_virtual_time
async def test_a_policy_for_duplicates_holds_for_the_first_record_too():
    records = [{"n": 1, "name": "old"}, {"n": 2}, {"n": 1, "name": "new"}]
    for remote in (Remote(), without_bulk("t")):
        singles = Singles()
        result = await Prober(executor(remote)).run(
            "t", records, mode=Mode.CREATE, fallback=singles, options=BulkOptions(duplicates="last")
        )
        assert list(result.outcomes) == [Outcome.SKIPPED, Outcome.CREATED, Outcome.CREATED]


@in_virtual_time
async def test_a_table_that_stopped_taking_bulk_calls_is_served_and_remembered_anew():
    remote = without_bulk("t")
    prober = Prober(executor(remote))
    prober.mark("t", Mode.CREATE, is_supported=True)
    singles = Singles()
    result = await probed(prober, 5, fallback=singles)
    assert (result.is_success, sorted(singles.sent)) == (True, [0, 1, 2, 3, 4])
    assert prober.is_supported("t", Mode.CREATE) is False


@in_virtual_time
async def test_records_that_were_applied_are_never_sent_again_by_the_fallback():
    singles = Singles()
    remote = Remote(script={n: Refuse(NO_BULK) for n in range(2, 9)})
    prober = Prober(executor(remote))
    prober.mark("t", Mode.CREATE, is_supported=True)
    options = BulkOptions(batch_size=2, max_parallel_batches=1)
    result = await probed(prober, 6, fallback=singles, options=options)
    assert (singles.sent, result.success_count, result.stopped_reason) == ([], 2, "systemic")
    assert prober.is_supported("t", Mode.CREATE) is False


@in_virtual_time
async def test_the_deadline_holds_for_probe_and_rest_together():
    remote = Remote(latency_s=2.0)
    result = await probed(
        Prober(executor(remote)), 1000, options=BulkOptions(deadline_s=5, batch_size=10, max_parallel_batches=1)
    )
    assert result.stopped_reason == "deadline"
    assert len(remote.calls) <= 4


@pytest.mark.covers("BX-076")
@in_virtual_time
async def test_a_cancelled_run_gives_what_it_has_done_with_the_probe():
    remote = Remote(latency_s=1)
    task = asyncio.ensure_future(
        probed(Prober(executor(remote)), 31, options=BulkOptions(batch_size=10, max_parallel_batches=1))
    )
    await asyncio.sleep(2.5)
    task.cancel()
    with pytest.raises(asyncio.CancelledError) as caught:
        await task
    partial = BulkCancelled.found_in(caught.value)
    assert partial is not None
    assert (partial.outcome(0), partial.success_count + partial.not_run_count) == (Outcome.CREATED, 31)
    assert partial.success_count == 21, "what was in flight was given a moment"


@in_virtual_time
async def test_outcomes_are_told_by_their_place_in_the_input():
    told: dict[int, Any] = {}
    options = BulkOptions(on_outcomes=lambda batch: told.update({index: verdict.id for index, verdict in batch}))
    await probed(Prober(executor(Remote())), 5, options=options)
    assert told == {n: f"id-{n}" for n in range(5)}


faults = st.sampled_from(["ok", "throttle", "deadlock", "lose", "lose-before", "bad"])


@settings(max_examples=100)
@given(st.lists(faults, max_size=12), st.integers(1, 30), st.integers(1, 7))
def test_whatever_happens_every_record_is_counted_once_and_applied_at_most_once(
    script: list[str], count: int, size: int
):
    known = {
        "throttle": Refuse(trouble(ErrorKind.THROTTLED, retry_after_s=1)),
        "deadlock": Refuse(trouble(ErrorKind.DEADLOCK)),
        "lose": Lose(),
        "lose-before": Lose(applied=0),
        "bad": Refuse(trouble(ErrorKind.DATA)),
    }
    remote = Remote(
        capabilities=Capabilities(id_field="n"),
        script={number: known[word] for number, word in enumerate(script, 1) if word in known},
    )
    result = virtually(probed(Prober(executor(remote)), count, options=BulkOptions(batch_size=size)))
    assert len(result.outcomes) == count
    for number, outcome in enumerate(result.outcomes):
        assert remote.applied[number] <= 1
        assert outcome is Outcome.UNKNOWN or remote.applied[number] == outcome.is_success
    assert [error.index for error in result.errors] == sorted(
        n for n, outcome in enumerate(result.outcomes) if outcome in (Outcome.FAILED, Outcome.UNKNOWN)
    )


def test_the_fallback_keeps_the_pool_of_its_executor():
    async def run() -> int:
        remote = without_bulk("t", width=2)
        peak = running = 0

        async def single(table: str, record: Any, source: str) -> Any:
            nonlocal peak, running
            running += 1
            peak = max(peak, running)
            await asyncio.sleep(0.01)
            running -= 1

        await probed(Prober(executor(remote)), 20, fallback=single)
        return peak

    assert virtually(run()) == 2


def test_an_error_that_is_no_target_error_leaves_the_outcome_unknown(caplog: pytest.LogCaptureFixture):
    singles = Singles(RuntimeError("bug"))
    result = virtually(probed(Prober(executor(without_bulk("t"))), 1, fallback=singles))
    assert list(result.outcomes) == [Outcome.UNKNOWN]


def test_unsupported_is_what_the_target_says_not_a_phrase():
    error = TargetError("does not support entities of type", kind=ErrorKind.DATA)
    remote = Remote(decide=lambda batch, _: Refuse(error))
    prober = Prober(executor(remote))
    virtually(probed(prober, 1))
    assert prober.is_supported("t", Mode.CREATE) is True


@pytest.mark.covers("BX-055")
@in_virtual_time
async def test_a_progress_callback_that_raises_loses_no_result():
    def failing(_: Progress) -> None:
        raise ValueError("the callback is broken")

    remote = Remote()
    assert (await probed(Prober(executor(remote)), progress=failing)).is_success
    assert len(remote.applied) == 5


@in_virtual_time
async def test_records_of_one_key_stay_in_order_on_a_table_that_was_marked_before():
    class Described(Remote):
        """Knows what identifies a record once the table was described."""

        def identity(self, table: str, mode: Mode, record: Any) -> Any:
            return super().identity(table, mode, record) if self.described else None

    under_way, kept = list[Any](), dict[Any, int]()

    async def slower_first(table: str, record: Any, source: str) -> None:
        assert record["n"] not in under_way
        under_way.append(record["n"])
        await asyncio.sleep(1 / record["v"])
        under_way.remove(record["n"])
        kept[record["n"]] = record["v"]

    prober = Prober(executor(Described()))
    prober.mark("t", Mode.UPSERT, is_supported=False)
    records = [{"n": 1, "v": v} for v in (1, 2, 3)]
    result = await prober.run("t", records, mode=Mode.UPSERT, fallback=slower_first)
    assert result.is_success
    assert kept == {1: 3}


@pytest.mark.parametrize("kind", [ErrorKind.UNSUPPORTED, ErrorKind.OTHER, ErrorKind.CONNECTION])
@in_virtual_time
async def test_a_table_that_cannot_be_described_is_still_sent_one_by_one(kind: ErrorKind):
    remote, singles = Remote(descriptions={1: trouble(kind)}), Singles()
    prober = Prober(executor(remote))
    prober.mark("t", Mode.CREATE, is_supported=False)
    result = await probed(prober, 3, fallback=singles)
    assert result.is_success
    assert sorted(singles.sent) == [0, 1, 2]
    assert remote.described == (2 if kind is ErrorKind.CONNECTION else 1)
