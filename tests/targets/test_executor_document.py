"""The bulk operations document, in its order: flows, validation, results, edge cases and its own examples."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import pytest
from scripted import Remote, executor, in_virtual_time, numbered, trouble

from penstock.errors import SettingsInvalid
from penstock.targets import (
    Answer,
    BadInput,
    Batch,
    BulkOptions,
    BulkResult,
    Capabilities,
    ErrorKind,
    Mode,
    Outcome,
    Progress,
    Verdict,
)

MODES = ("create", "update", "upsert", "delete")
ELASTIC = Capabilities(is_atomic=False, id_field="n")


def inputs(mode: str, count: int) -> list[Any]:
    return list(range(count)) if mode == "delete" else numbered(count)


async def run(remote: Remote, mode: str, records: Any, *given: Any, **named: Any) -> BulkResult:
    return await getattr(executor(remote), f"{mode}_multiple")("account", records, *given, **named)


# Core requirements


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.covers("BX-001", "BX-005", "BX-006", "BX-040", "BX-041", "BX-042", "BX-054", "BX-081", "BX-092")
@in_virtual_time
async def test_records_are_sent_in_batches_of_a_hundred_unless_told(mode: str):
    remote = Remote()
    result = await run(remote, mode, inputs(mode, 250))
    assert sorted(remote.sizes) == [50, 100, 100]
    assert result.is_success
    assert result.success_count == 250


@pytest.mark.covers("BX-007", "BX-009", "BX-014", "BX-016", "BX-018", "BX-082", "BX-084")
@in_virtual_time
async def test_batches_run_side_by_side_up_to_the_width_of_the_pool():
    remote = Remote(width=3)
    await run(remote, "create", numbered(1000))
    assert remote.total_max == 3


@pytest.mark.covers("BX-043")
@pytest.mark.parametrize("wanted, seen", [(1, 1), (2, 2), (9, 4)])
@in_virtual_time
async def test_a_call_has_its_own_width_but_never_more_than_the_pool(wanted: int, seen: int):
    remote = Remote(width=4)
    await run(remote, "create", numbered(2000), BulkOptions(max_parallel_batches=wanted))
    assert remote.total_max == seen


# Primary flows


@pytest.mark.covers("BX-008", "BX-024", "BX-025", "BX-044", "BX-048", "BX-100")
@in_virtual_time
async def test_created_ids_come_back_in_the_order_of_the_input_whatever_order_batches_end_in():
    delays = iter([0.5, 0.3, 0.1])

    async def slow(batch: Batch) -> None:
        await asyncio.sleep(next(delays))

    remote = Remote(script={1: slow, 2: slow, 3: slow})
    result = await run(remote, "create", numbered(250))
    assert result.created_ids == [f"id-{n}" for n in range(250)]
    assert result.id_of(249) == "id-249"


@pytest.mark.covers("BX-027", "BX-028", "BX-049", "BX-102")
@in_virtual_time
async def test_an_upsert_counts_created_and_updated_apart():
    remote = Remote(existing=set(range(5)))
    result = await run(remote, "upsert", numbered(10))
    assert result.is_success
    assert (result.created_count, result.updated_count, result.counts_exact) == (5, 5, True)
    assert result.created_ids is None


@pytest.mark.covers("BX-028")
@in_virtual_time
async def test_counts_that_a_target_only_estimated_are_marked_so():
    assert not (await run(Remote(exact=False), "upsert", numbered(3))).counts_exact


@pytest.mark.covers("BX-030", "BX-048", "BX-049", "BX-101")
@in_virtual_time
async def test_an_update_reports_each_record_updated_and_counts_nothing_created():
    result = await run(Remote(), "update", numbered(3))
    assert result.outcomes == [Outcome.UPDATED] * 3
    assert (result.created_ids, result.created_count, result.updated_count) == (None, None, None)


@pytest.mark.covers("BX-041", "BX-103")
@in_virtual_time
async def test_a_delete_takes_ids_and_reports_each_record_deleted():
    remote = Remote()
    result = await run(remote, "delete", [7, 8, 9])
    assert result.outcomes == [Outcome.DELETED] * 3
    assert remote.calls[0].numbers == (7, 8, 9)


@pytest.mark.covers("BX-033", "BX-094")
@in_virtual_time
async def test_without_continue_on_error_the_records_after_the_failure_are_not_run():
    def stopped_at_two(batch: Batch) -> Any:
        async def answer(_: Batch) -> Answer:
            failed = Verdict(Outcome.FAILED, error=trouble(ErrorKind.DATA))
            return Answer([Verdict(Outcome.DELETED)] * 2 + [failed] + [Verdict(Outcome.NOT_RUN)] * 7)

        return answer

    remote = Remote(decide=lambda batch, _: stopped_at_two(batch) if 0 in batch.records else None)
    options = BulkOptions(batch_size=10, continue_on_error=False, max_parallel_batches=1)
    result = await run(remote, "delete", list(range(30)), options)
    assert (result.success_count, result.failure_count, result.not_run_count) == (2, 1, 27)
    assert result.stopped_reason == "stopped on error"
    assert len(remote.calls) == 1


# Constraints


@pytest.mark.covers("BX-034")
@in_virtual_time
async def test_a_table_with_a_smaller_limit_gets_smaller_batches():
    remote = Remote(capabilities=Capabilities(records_max=40, id_field="n"))
    await run(remote, "create", numbered(100))
    assert sorted(remote.sizes) == [20, 40, 40]


@pytest.mark.covers("BX-036", "BX-079")
@in_virtual_time
async def test_a_table_that_answers_record_by_record_keeps_the_good_records_of_a_batch():
    remote = Remote(capabilities=ELASTIC, bad=lambda n: trouble(ErrorKind.DATA, code="400") if n % 10 == 3 else None)
    result = await run(remote, "create", numbered(100))
    assert (result.success_count, result.failure_count) == (90, 10)
    assert [error.index for error in result.errors] == list(range(3, 100, 10))
    assert len(remote.calls) == 1


# Validation rules


@pytest.mark.covers("BX-022", "BX-039")
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("records", [None, "abc", b"abc", {"n": 1}, 5])
@in_virtual_time
async def test_records_that_are_no_list_and_no_stream_are_a_type_error(mode: str, records: Any):
    remote = Remote()
    with pytest.raises(TypeError, match="must be a list or a stream"):
        await run(remote, mode, records)
    assert not remote.described


@pytest.mark.covers("BX-023", "BX-039")
@pytest.mark.parametrize("table", ["", "  ", "\t"])
@in_virtual_time
async def test_a_blank_table_name_is_a_value_error_before_anything_is_sent(table: str):
    remote = Remote()
    with pytest.raises(ValueError, match="table is empty") as caught:
        await executor(remote).create_multiple(table, numbered(1))
    assert isinstance(caught.value, BadInput)
    assert not remote.described


@in_virtual_time
async def test_a_table_that_is_not_named_by_text_is_a_type_error():
    with pytest.raises(TypeError, match="not by int"):
        await executor(Remote()).create_multiple(7, numbered(1))  # type: ignore[arg-type]


@pytest.mark.covers("BX-038")
@pytest.mark.parametrize("size", [0, -1, -100])
@in_virtual_time
async def test_a_batch_size_below_one_becomes_a_hundred_with_a_warning(size: int, caplog: pytest.LogCaptureFixture):
    remote = Remote()
    with caplog.at_level(logging.WARNING, "penstock.targets"):
        await run(remote, "create", numbered(150), BulkOptions(batch_size=size))
    assert sorted(remote.sizes) == [50, 100]
    assert f"not {size}" in caplog.text


@pytest.mark.covers("BX-038")
@pytest.mark.parametrize("size", ["100", 10.0, True])
@in_virtual_time
async def test_a_batch_size_that_is_no_whole_number_is_a_type_error(size: Any):
    with pytest.raises(TypeError, match="batch_size"):
        await run(Remote(), "create", numbered(1), BulkOptions(batch_size=size))


@pytest.mark.covers("BX-039")
@pytest.mark.parametrize(
    "wrong",
    [
        {"batch_size_max": 0},
        {"max_parallel_batches": 0},
        {"batch_seconds_target": 0},
        {"deadline_s": 0},
        {"duplicates": "newest"},
    ],
)
@in_virtual_time
async def test_options_out_of_range_are_refused_by_name(wrong: dict[str, Any]):
    with pytest.raises(BadInput, match=next(iter(wrong))):
        await run(Remote(), "create", numbered(1), BulkOptions(**wrong))


@pytest.mark.covers("BX-029")
@pytest.mark.parametrize("missing", [None, "", "00000000-0000-0000-0000-000000000000"])
@in_virtual_time
async def test_an_update_of_a_list_names_every_record_without_an_id_and_sends_nothing(missing: Any):
    remote = Remote()
    records = numbered(10)
    records[3] = {"n": missing, "name": "?"}
    del records[7]["n"]
    with pytest.raises(BadInput, match=r"index 3, 7: the record has no 'n'") as caught:
        await run(remote, "update", records)
    assert [fault.field for fault in caught.value.faults] == ["n", "n"]
    assert not remote.calls


@pytest.mark.covers("BX-029")
@in_virtual_time
async def test_an_update_from_a_stream_fails_the_record_without_an_id_alone():
    remote = Remote()
    result = await run(remote, "update", (record if record["n"] != 3 else {"name": "?"} for record in numbered(10)))
    assert (result.success_count, result.failure_count) == (9, 1)
    (error,) = result.errors
    assert (error.index, error.code, error.kind, error.field) == (3, "MissingId", ErrorKind.DATA, "n")


@pytest.mark.covers("BX-029")
@in_virtual_time
async def test_an_id_of_zero_is_an_id():
    assert (await run(Remote(), "update", [{"n": 0}])).is_success
    assert (await run(Remote(), "delete", [0])).is_success


@pytest.mark.covers("BX-039")
@pytest.mark.parametrize("missing", [None, "", "00000000-0000-0000-0000-000000000000"])
@in_virtual_time
async def test_a_delete_without_an_id_is_refused_with_its_index(missing: Any):
    with pytest.raises(BadInput, match="index 1: the id is missing"):
        await run(Remote(), "delete", [1, missing, 3])


@pytest.mark.covers("BX-039")
@in_virtual_time
async def test_a_record_that_is_no_mapping_is_refused_with_its_index():
    with pytest.raises(BadInput, match="index 1: a record must be a mapping, not int"):
        await run(Remote(), "create", [{"n": 1}, 5])
    result = await run(Remote(), "create", iter([{"n": 1}, 5]))
    assert [(error.index, error.code) for error in result.errors] == [(1, "BadRecord")]


@pytest.mark.covers("BX-039")
@in_virtual_time
async def test_a_long_list_of_faults_is_told_in_short_and_attached_in_full():
    with pytest.raises(BadInput, match="and 80 more") as caught:
        await run(Remote(), "delete", [None] * 100)
    assert len(caught.value.faults) == 100


@pytest.mark.covers("BX-099")
@in_virtual_time
async def test_options_of_another_target_are_refused():
    class Foreign(BulkOptions):
        """Options that mean nothing here."""

    with pytest.raises(SettingsInvalid, match="not Foreign"):
        await run(Remote(), "create", numbered(1), Foreign())


# Results


@pytest.mark.covers("BX-044", "BX-045", "BX-046", "BX-047", "BX-056")
@in_virtual_time
async def test_errors_say_which_record_of_the_input_failed_and_why():
    def bad(number: int) -> Any:
        return trouble(ErrorKind.DATA, "name is too long", code="0x80044331", field="name") if number == 170 else None

    remote = Remote(capabilities=ELASTIC, bad=bad, latency_s=2)
    result = await run(remote, "create", numbered(250))
    assert not result.is_success
    (error,) = result.errors
    assert (error.index, error.message, error.code) == (170, "name is too long", "0x80044331")
    assert (error.kind, error.field, error.id, error.outcome) == (ErrorKind.DATA, "name", 170, Outcome.FAILED)
    assert result.duration_s == pytest.approx(2)
    assert result.outcome(170) is Outcome.FAILED
    assert result.outcome(171) is Outcome.CREATED


@pytest.mark.covers("BX-046")
@in_virtual_time
async def test_the_result_says_what_the_call_cost():
    result = await run(Remote(), "create", numbered(250))
    statistics = result.statistics
    assert (statistics.calls, statistics.throttles, statistics.waited_s) == (3, 0, 0)
    assert (statistics.batch_size_min, statistics.batch_size_max, statistics.batch_size_last) == (50, 100, 100)
    assert (statistics.in_flight_max, statistics.width_last) == (3, 4)


@in_virtual_time
async def test_the_sizes_told_are_those_of_batches_that_were_sent():
    statistics = (await run(Remote(), "create", numbered(30))).statistics
    assert (statistics.batch_size_min, statistics.batch_size_max) == (30, 30)


# Edge cases


@pytest.mark.covers("BX-022", "BX-072")
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("empty", [list, lambda: iter(()), tuple])
@in_virtual_time
async def test_nothing_is_a_success_without_a_request_and_with_one_report_at_a_hundred(mode: str, empty: Any):
    remote = Remote()
    reports: list[Progress] = []
    result = await run(remote, mode, empty(), progress=reports.append)
    assert result.is_success
    assert (result.success_count, result.failure_count, len(result.outcomes)) == (0, 0, 0)
    assert (remote.described, remote.log) == (0, [])
    assert [report.percent_complete for report in reports] == [100]


@pytest.mark.covers("BX-073", "BX-077", "BX-078", "BX-104")
@pytest.mark.parametrize("count, sizes", [(1, [1]), (99, [99]), (100, [100]), (101, [1, 100]), (200, [100, 100])])
@in_virtual_time
async def test_batches_end_where_the_batch_size_says(count: int, sizes: list[int]):
    remote = Remote()
    result = await run(remote, "create", numbered(count))
    assert sorted(remote.sizes) == sizes
    assert result.success_count == count


@pytest.mark.covers("BX-074")
@in_virtual_time
async def test_when_all_records_of_an_elastic_table_fail_all_errors_are_there():
    remote = Remote(capabilities=ELASTIC, bad=lambda _: trouble(ErrorKind.DATA))
    result = await run(remote, "create", numbered(250))
    assert (result.success_count, result.failure_count) == (0, 250)
    assert [error.index for error in result.errors] == list(range(250))


@pytest.mark.covers("BX-074")
@pytest.mark.parametrize("sends_each", [True, False])
@in_virtual_time
async def test_when_all_records_of_a_standard_table_fail_all_errors_are_there(sends_each: bool):
    remote = Remote(bad=lambda _: trouble(ErrorKind.DATA), sends_each=sends_each)
    result = await run(remote, "create", numbered(250))
    assert (result.success_count, result.failure_count, result.stopped_reason) == (0, 250, None)
    assert [error.index for error in result.errors] == list(range(250))


@pytest.mark.covers("BX-035", "BX-075")
@in_virtual_time
async def test_a_failed_batch_fails_as_a_whole_when_records_are_not_to_be_isolated():
    remote = Remote(bad=lambda n: trouble(ErrorKind.DATA, "42 is bad") if n == 42 else None)
    result = await run(remote, "create", numbered(250), BulkOptions(isolate=False))
    assert (result.success_count, result.failure_count) == (150, 100)
    assert {error.message for error in result.errors} == {"42 is bad"}
    assert len(remote.calls) == 3


# Examples of the document


@pytest.mark.covers("BX-003", "BX-013", "BX-021", "BX-026", "BX-050", "BX-051", "BX-055", "BX-105")
@in_virtual_time
async def test_progress_is_reported_after_each_batch_and_ends_at_a_hundred():
    reports: list[Progress] = []
    await run(Remote(), "create", numbered(250), BulkOptions(batch_size=100), reports.append)
    assert [report.processed for report in reports] == [100, 200, 250, 250]
    assert {report.total for report in reports} == {250}
    assert reports[-1].percent_complete == 100
    assert reports[-1].phase == "done"


@pytest.mark.covers("BX-051")
@in_virtual_time
async def test_the_total_of_a_stream_is_unknown_until_it_ends():
    reports: list[Progress] = []
    await run(Remote(width=1), "create", iter(numbered(2500)), BulkOptions(batch_size=100), reports.append)
    assert (reports[0].total, reports[0].percent_complete) == (None, None)
    assert (reports[-1].total, reports[-1].percent_complete) == (2500, 100)


@pytest.mark.covers("BX-055")
@in_virtual_time
async def test_a_progress_callback_that_fails_is_logged_and_does_no_harm(caplog: pytest.LogCaptureFixture):
    def broken(_: Progress) -> None:
        raise RuntimeError("no more ink")

    result = await run(Remote(), "create", numbered(250), None, broken)
    assert result.is_success
    assert caplog.text.count("RuntimeError: no more ink") == 1


@in_virtual_time
async def test_a_mode_may_be_given_by_its_name():
    call = executor(Remote()).start("create", "account", numbered(3))  # type: ignore[arg-type]
    assert (await call).mode is Mode.CREATE
