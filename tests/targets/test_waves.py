"""Records that refer to each other: parents first, circles in two passes, no children of failed parents."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kin import Kin
from scripted import executor, in_virtual_time, trouble, virtually

from penstock.targets import (
    Answer,
    BadInput,
    Batch,
    BulkCancelled,
    BulkOptions,
    Capabilities,
    ErrorKind,
    Mode,
    Outcome,
    Progress,
    TargetError,
)
from penstock.targets.composite.waves import WavesCancelled, in_waves, tables_in_waves
from penstock.targets.diagnostics.causes import Cause

CREATED, FAILED, NOT_RUN = Outcome.CREATED, Outcome.FAILED, Outcome.NOT_RUN


@in_virtual_time
async def test_parents_are_created_before_their_children():
    remote = Kin()
    records = [{"id": 3, "up": 2}, {"id": 2, "up": 1}, {"id": 1}, {"id": 4}]
    result = await in_waves(executor(remote), "node", records)
    assert result.is_success
    assert list(result.created_ids or ()) == [3, 2, 1, 4]
    assert remote.log == [("create", "node", (1, 4)), ("create", "node", (2,)), ("create", "node", (3,))]


class OnlyCreates(Kin):
    """A remote without updates."""

    async def describe(self, table: str, mode: Mode, options: BulkOptions, source: str) -> Capabilities:
        if mode is not Mode.CREATE:
            raise trouble(ErrorKind.UNSUPPORTED)
        return await super().describe(table, mode, options, source)


@in_virtual_time
async def test_a_target_that_only_creates_takes_waves():
    result = await in_waves(executor(OnlyCreates()), "node", [{"id": 2, "up": 1}, {"id": 1}])
    assert list(result.outcomes) == [CREATED, CREATED]


@in_virtual_time
async def test_a_table_that_cannot_be_described_stops_the_waves():
    result = await in_waves(executor(OnlyCreates()), "node", [{"id": 1}], mode=Mode.UPSERT)
    assert list(result.outcomes) == [NOT_RUN]
    assert result.stopped_reason == "systemic"
    assert isinstance(result.stopped_error, TargetError)
    assert result.stopped_error.kind is ErrorKind.UNSUPPORTED


@in_virtual_time
async def test_the_deadline_of_waves_holds_while_tables_are_described():
    class Silent(Kin):
        async def describe(self, *given: Any) -> Capabilities:
            await asyncio.Event().wait()
            raise AssertionError("never")

    result = await in_waves(executor(Silent()), "node", [{"id": 1}], options=BulkOptions(deadline_s=20))
    assert (result.stopped_reason, result.duration_s) == ("deadline", pytest.approx(20))
    assert list(result.outcomes) == [NOT_RUN]


@in_virtual_time
async def test_a_circle_is_created_first_and_closed_afterwards():
    remote = Kin()
    records = [{"id": 1, "up": 2, "name": "a"}, {"id": 2, "up": 1}, {"id": 3, "up": 3}]
    result = await in_waves(executor(remote), "node", records)
    assert result.is_success
    assert remote.rows["node", 1] == {"id": 1, "up": 2, "name": "a"}
    assert (remote.rows["node", 2]["up"], remote.rows["node", 3]["up"]) == (1, 3)
    assert remote.log == [("create", "node", (1, 2, 3)), ("update", "node", (1, 2, 3))]


@pytest.mark.covers("BX-071")
@in_virtual_time
async def test_children_of_a_failed_parent_are_not_sent_and_say_why():
    remote = Kin()
    records = [{"id": 1, "bad": 1}, {"id": 2, "up": 1}, {"id": 3, "up": 2}, {"id": 4}]
    result = await in_waves(executor(remote), "node", records)
    assert list(result.outcomes) == [FAILED, NOT_RUN, NOT_RUN, CREATED]
    orphan = result.errors[1]
    assert (orphan.index, orphan.code, orphan.field, orphan.outcome) == (1, "PARENT_FAILED", "up", NOT_RUN)
    assert "record 0 of 'node'" in orphan.message
    found = orphan.diagnostics[0]
    assert (found.code, found.record_id, found.referenced_id) == (Cause.PARENT_FAILED, 2, 1)
    assert set(remote.rows) == {("node", 4)}


@in_virtual_time
async def test_a_circle_with_a_failed_member_leaves_the_others_without_their_reference():
    remote = Kin()
    records = [{"id": 1, "up": 2, "side": 3}, {"id": 2, "up": 1, "bad": 1}, {"id": 3, "up": 1}]
    result = await in_waves(executor(remote), "node", records)
    assert list(result.outcomes) == [FAILED, FAILED, CREATED]
    assert (result.errors[0].code, result.errors[0].field) == ("REFERENCE_NOT_SET", "up")
    assert remote.rows["node", 1] == {"id": 1, "side": 3}, "what can be set is set"
    assert remote.rows["node", 3] == {"id": 3, "up": 1}


@in_virtual_time
async def test_an_update_that_fails_to_close_a_circle_names_its_cause():
    def refuse(batch: Batch) -> TargetError | None:
        return trouble(ErrorKind.BUSINESS, "no circles here") if batch.mode is Mode.UPDATE else None

    result = await in_waves(executor(Kin(refuse=refuse)), "node", [{"id": 1, "up": 1}])
    assert list(result.outcomes) == [FAILED]
    assert (result.errors[0].code, result.errors[0].id) == ("REFERENCE_NOT_SET", 1)
    assert "no circles here" in result.errors[0].message


@in_virtual_time
async def test_several_tables_are_ordered_together():
    remote = Kin()
    tables = {
        "person": [{"id": 1, "firm": 7}, {"id": 2}],
        "firm": [{"id": 7, "boss": 2}, {"id": 8, "boss": 1}],
    }
    results = await tables_in_waves(executor(remote), tables)
    assert all(result.is_success for result in results.values())
    assert [entry[1:] for entry in remote.log] == [
        ("person", (2,)),
        ("firm", (7,)),
        ("person", (1,)),
        ("firm", (8,)),
    ]


@in_virtual_time
async def test_a_failed_record_of_one_table_holds_back_those_of_another():
    tables = {"person": [{"id": 1, "firm": 7}], "firm": [{"id": 7, "bad": 1}]}
    results = await tables_in_waves(executor(Kin()), tables)
    assert (list(results["firm"].outcomes), list(results["person"].outcomes)) == ([FAILED], [NOT_RUN])
    assert results["person"].errors[0].diagnostics[0].referenced_table == "firm"


@in_virtual_time
async def test_upserts_go_in_waves_too():
    result = await in_waves(executor(Kin()), "node", [{"id": 2, "up": 1}, {"id": 1}], mode=Mode.UPSERT)
    assert (result.created_count, result.is_success) == (2, True)


@pytest.mark.parametrize("mode", [Mode.UPDATE, Mode.DELETE])
@in_virtual_time
async def test_modes_that_need_no_order_are_refused(mode: Mode):
    with pytest.raises(ValueError, match="no order"):
        await in_waves(executor(Kin()), "node", [{"id": 1}], mode=mode)


@in_virtual_time
async def test_nothing_to_send_is_a_success():
    seen: list[Progress] = []
    result = await in_waves(executor(Kin()), "node", [], progress=seen.append)
    assert (result.is_success, len(result.outcomes), seen[-1].percent_complete) == (True, 0, 100)


@in_virtual_time
async def test_the_first_failure_stops_everything_if_asked():
    remote = Kin()
    records = [{"id": 1, "bad": 1}, {"id": 2}, {"id": 3, "up": 2}, {"id": 4, "side": 4}]
    options = BulkOptions(continue_on_error=False, batch_size=1, max_parallel_batches=1)
    result = await in_waves(executor(remote), "node", records, options=options)
    assert (list(result.outcomes), result.stopped_reason) == ([FAILED, NOT_RUN, NOT_RUN, NOT_RUN], "stopped on error")
    assert remote.rows == {}


@in_virtual_time
async def test_a_circle_that_could_not_be_closed_because_the_run_stopped_is_reported():
    remote = Kin()
    records = [{"id": 1, "up": 1}, {"id": 2, "bad": 1}]
    options = BulkOptions(continue_on_error=False, batch_size=1, max_parallel_batches=1)
    result = await in_waves(executor(remote), "node", records, options=options)
    assert list(result.outcomes) == [FAILED, FAILED]
    assert "stopped before" in result.errors[0].message


@in_virtual_time
async def test_progress_runs_from_nothing_to_all_over_every_wave():
    seen: list[Progress] = []
    records = [{"id": 1}, {"id": 2, "up": 1}, {"id": 3, "up": 2}, {"id": 4, "bad": 1}, {"id": 5, "up": 4}]
    await in_waves(executor(Kin()), "node", records, progress=seen.append)
    processed = [progress.processed for progress in seen]
    assert processed == sorted(processed)
    last = seen[-1]
    assert (last.succeeded, last.failed, last.not_run, last.total) == (3, 1, 1, 5)


@in_virtual_time
async def test_skipped_duplicates_do_not_keep_progress_from_its_end():
    seen: list[Progress] = []
    records = [{"id": 1, "name": "old"}, {"id": 2, "up": 1}, {"id": 1, "name": "new"}]
    remote = Kin()
    result = await in_waves(
        executor(remote), "node", records, options=BulkOptions(duplicates="last"), progress=seen.append
    )
    assert list(result.outcomes) == [Outcome.SKIPPED, CREATED, CREATED]
    assert (result.is_success, seen[-1].percent_complete) == (True, 100)


@in_virtual_time
async def test_outcomes_are_told_by_their_place_in_the_input():
    told: dict[int, Outcome] = {}
    options = BulkOptions(on_outcomes=lambda batch: told.update({index: verdict.outcome for index, verdict in batch}))
    records = [{"id": 2, "up": 1}, {"id": 1, "side": 1}, {"id": 3, "up": 2}]
    await in_waves(executor(Kin()), "node", records, options=options)
    assert told == {0: CREATED, 1: CREATED, 2: CREATED}


@pytest.mark.covers("BX-076")
@in_virtual_time
async def test_a_deadline_holds_for_all_waves_together():
    records = [{"id": n, "up": n - 1 if n else None} for n in range(100)]
    result = await in_waves(executor(Kin()), "node", records, options=BulkOptions(deadline_s=0.105))
    assert result.stopped_reason == "deadline"
    assert 5 <= result.success_count <= 11
    assert result.duration_s < 10


@pytest.mark.covers("BX-076")
@in_virtual_time
async def test_a_cancelled_run_gives_what_it_has_done():
    records = [{"id": n, "up": n - 1 if n else None} for n in range(100)]
    remote = Kin()
    task = asyncio.ensure_future(in_waves(executor(remote), "node", records))
    await asyncio.sleep(0.055)
    task.cancel()
    with pytest.raises(asyncio.CancelledError) as caught:
        await task
    partial = BulkCancelled.found_in(caught.value)
    assert partial is not None
    assert partial.success_count == len(remote.rows) > 3
    assert partial.success_count + partial.not_run_count == 100


@pytest.mark.parametrize("during", ["the update", "a later wave"])
@in_virtual_time
async def test_records_that_lack_a_reference_when_the_run_is_cancelled_have_failed(during: str):
    class Slow(Kin):
        async def send(self, batch: Batch, source: str) -> Answer:
            if batch.mode is Mode.UPDATE or batch.records[0]["id"] == 3:
                await asyncio.Event().wait()
            return await super().send(batch, source)

    records = [{"id": 1, "up": 2}, {"id": 2, "up": 1}]
    if during == "a later wave":
        records.append({"id": 3, "up": 1})
    task = asyncio.ensure_future(in_waves(executor(Slow()), "node", records))
    await asyncio.sleep(1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError) as caught:
        await task
    partial = BulkCancelled.found_in(caught.value)
    assert partial is not None
    assert not partial.is_success
    assert [error.code for error in partial.errors if error.index < 2] == ["REFERENCE_NOT_SET"] * 2


@in_virtual_time
async def test_a_cancelled_run_over_several_tables_gives_what_each_has_done():
    tables = {"person": [{"id": 1}], "firm": [{"id": 7, "boss": 1}]}
    task = asyncio.ensure_future(tables_in_waves(executor(Kin()), tables))
    await asyncio.sleep(0.015)
    task.cancel()
    with pytest.raises(asyncio.CancelledError) as caught:
        await task
    assert isinstance(caught.value.__cause__, WavesCancelled)
    assert list(caught.value.__cause__.results["person"].outcomes) == [CREATED]


@in_virtual_time
async def test_many_tables_of_a_wave_are_not_all_sent_at_once():
    remote = Kin()
    running = peak = 0
    send = remote.send

    async def counted(batch: Batch, source: str) -> Any:
        nonlocal running, peak
        running += 1
        peak = max(peak, running)
        try:
            return await send(batch, source)
        finally:
            running -= 1

    remote.send = counted  # type: ignore[method-assign]
    remote.width = 50
    await tables_in_waves(executor(remote), {f"table{n}": [{"id": 1}] for n in range(12)})
    assert peak == 4


links = st.none() | st.integers(0, 9)
nodes = st.lists(st.tuples(links, links, st.booleans() | st.just(False)), min_size=1, max_size=9)


@pytest.mark.covers("BX-069")
@settings(max_examples=150)
@given(nodes, st.integers(1, 4))
def test_whatever_refers_to_whatever_the_result_is_what_the_remote_holds(graph: list[Any], size: int):
    records = [{"id": n, "up": up, "side": side, "bad": bad} for n, (up, side, bad) in enumerate(graph)]
    for record in records:  # references to records that are nowhere would fail, rightly
        record.update({name: None for name in ("up", "side") if (record[name] or 0) >= len(records)})
    remote = Kin()
    result = virtually(in_waves(executor(remote), "node", records, options=BulkOptions(batch_size=size)))
    for index, record in enumerate(records):
        held = remote.rows.get(("node", index))
        outcome = result.outcome(index)
        if outcome is CREATED:
            assert held is not None
            assert {name: held.get(name) for name in ("up", "side")} == {n: record[n] for n in ("up", "side")}
        elif outcome is NOT_RUN:
            assert held is None
        else:
            code = {error.index: error.code for error in result.errors}[index]
            assert (held is not None) == (code == "REFERENCE_NOT_SET")
            assert record["bad"] == (code != "REFERENCE_NOT_SET")


def failing(_: Progress) -> None:
    raise ValueError("the callback is broken")


@pytest.mark.covers("BX-055")
@in_virtual_time
async def test_a_progress_callback_that_raises_loses_no_result():
    result = await in_waves(executor(Kin()), "node", [{"id": 1}, {"id": 2, "up": 1}], progress=failing)
    assert result.is_success


@pytest.mark.covers("BX-055")
@in_virtual_time
async def test_an_error_in_a_later_wave_keeps_the_results_of_the_earlier_ones():
    remote = Kin()
    records = [{"id": 1}, {"id": 2, "up": 1}, {"id": 2, "up": 1}]
    result = await in_waves(
        executor(remote), "node", records, options=BulkOptions(duplicates="error", references={"up": "node"})
    )
    assert list(result.outcomes) == [CREATED, NOT_RUN, NOT_RUN]
    assert result.stopped_reason == "error in input"
    assert isinstance(result.input_error, BadInput)


@in_virtual_time
async def test_wrong_input_is_refused_while_nothing_was_sent():
    remote = Kin()
    with pytest.raises(BadInput, match="same key"):
        await in_waves(executor(remote), "node", [{"id": 1}, {"id": 1}], options=BulkOptions(duplicates="error"))
    assert not remote.log
