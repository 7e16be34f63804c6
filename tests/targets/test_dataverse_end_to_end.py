"""The bulk operations document over the wire: its acceptance criteria, edge cases and examples, in its order."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from uuid import uuid4

import pytest
from dataverse import (
    Drop,
    Held,
    Problem,
    Quota,
    deadlock,
    plugin_aborted,
    race,
    sql_timeout,
    throttled,
    token_refused,
    too_large,
)
from dataverse_remote import Remote, executor, opened

from penstock.clock import ManualClock
from penstock.targets import (
    BadInput,
    BulkCancelled,
    BulkExecutor,
    BulkOptions,
    ErrorKind,
    Mode,
    Outcome,
    Pool,
    Progress,
)
from penstock.targets.dataverse import CustomLogicBypass, DataverseOptions, Lookup


@pytest.fixture
async def remote() -> AsyncIterator[Remote]:
    async with opened() as found:
        yield found


def accounts(count: int, start: int = 0) -> list[dict[str, object]]:
    return [{"name": f"n{n}", "code": f"c{n}"} for n in range(start, start + count)]


def batch_sizes(remote: Remote, action: str = "CreateMultiple") -> list[int]:
    return sorted(call.rows for call in remote.server.ledger.calls(action))


# Acceptance criteria


@pytest.mark.covers("BX-054", "BX-100")
async def test_create_multiple_creates_records_and_returns_their_ids(remote: Remote):
    result = await executor(remote).create_multiple("account", accounts(10))
    assert result.is_success
    assert result.success_count == 10
    assert result.created_ids == [row["accountid"] for row in remote.server.rows("account")]


@pytest.mark.covers("BX-101")
async def test_update_multiple_updates_existing_records(remote: Remote):
    created = await executor(remote).create_multiple("account", accounts(250))
    assert created.created_ids is not None
    changes = [{"accountid": id, "revenue": n} for n, id in enumerate(created.created_ids)]
    result = await executor(remote).update_multiple("account", changes)
    assert result.is_success
    assert [
        row["revenue"] for row in sorted(remote.server.rows("account"), key=lambda row: int(row["name"][1:]))
    ] == list(range(250))


@pytest.mark.covers("BX-028", "BX-049", "BX-102")
@pytest.mark.parametrize("is_exact", [False, True])
async def test_upsert_multiple_handles_a_mix_and_tracks_created_and_updated(remote: Remote, is_exact: bool):
    await executor(remote).create_multiple("account", accounts(5))
    options = DataverseOptions(
        alternate_key=["code"], exact_counts=is_exact, tell_created=True, suppress_duplicate_detection=True
    )
    result = await executor(remote).upsert_multiple("account", accounts(10), options)
    assert result.is_success
    assert (result.created_count, result.updated_count, result.counts_exact) == (5, 5, is_exact)
    assert len(remote.server.rows("account")) == 10


@pytest.mark.covers("BX-031", "BX-032", "BX-103")
@pytest.mark.parametrize("table", ["account", "reading"])
async def test_delete_multiple_removes_records_standard_and_elastic(remote: Remote, table: str):
    made = await executor(remote).create_multiple(table, [{"name": f"n{n}"} for n in range(250)])
    assert made.created_ids is not None
    result = await executor(remote).delete_multiple(table, made.created_ids[:200])
    assert result.is_success
    assert result.success_count == 200
    assert len(remote.server.rows(table)) == 50
    assert len(remote.server.ledger.calls("DeleteMultiple")) == (2 if table == "reading" else 0)


@pytest.mark.covers("BX-077", "BX-078", "BX-104")
@pytest.mark.parametrize("count, sizes", [(1, [1]), (100, [100]), (101, [1, 100]), (250, [50, 100, 100])])
async def test_batching_respects_the_batch_size(remote: Remote, count: int, sizes: list[int]):
    await executor(remote).create_multiple("account", accounts(count), BulkOptions(batch_size=100))
    assert batch_sizes(remote) == sizes


@pytest.mark.covers("BX-026", "BX-105")
async def test_progress_is_reported_after_each_batch_and_ends_at_100_percent(remote: Remote):
    snapshots: list[Progress] = []
    await executor(remote).create_multiple("account", accounts(250), BulkOptions(batch_size=100), snapshots.append)
    assert len(snapshots) >= 3
    assert snapshots[-1].percent_complete == 100
    assert snapshots[-1].succeeded == 250


@pytest.mark.covers("BX-019", "BX-057", "BX-106")
async def test_throttled_batches_succeed_in_the_end_however_often_they_are_refused(remote: Remote):
    remote.server.faults.add(throttled("time", retry_after_s=30), action="CreateMultiple", times=25)
    result = await executor(remote).create_multiple("account", accounts(300))
    assert result.is_success
    assert result.statistics.throttles == 25
    assert remote.server.ledger.doubled("account", "name") == {}


@pytest.mark.covers("BX-076", "BX-107")
async def test_cancellation_stops_processing_and_gives_back_what_was_done(remote: Remote):
    held = Held(is_applied=True)
    remote.server.faults.add(held, action="CreateMultiple", call=2)
    options = DataverseOptions(max_parallel_batches=1, client_made_ids=True)
    call = asyncio.ensure_future(executor(remote).create_multiple("account", accounts(1000), options))
    await held.arrived.wait()
    call.cancel()
    held.gate.set()
    with pytest.raises(asyncio.CancelledError) as caught:
        await call
    result = BulkCancelled.found_in(caught.value)
    assert result is not None
    assert result.stopped_reason == "cancelled"
    assert result.success_count >= 100
    assert result.not_run_count == 800
    assert len(remote.server.ledger.calls("CreateMultiple")) == 2


# Edge cases


@pytest.mark.covers("BX-022", "BX-072")
async def test_an_empty_collection_is_a_success_without_a_request(remote: Remote):
    result = await executor(remote).create_multiple("account", [])
    assert (result.is_success, result.success_count, result.failure_count) == (True, 0, 0)
    assert remote.server.ledger.calls() == []


@pytest.mark.covers("BX-029", "BX-039")
async def test_an_update_without_ids_is_refused_before_anything_is_sent(remote: Remote):
    with pytest.raises(BadInput, match="index 1"):
        await executor(remote).update_multiple("account", [{"accountid": str(uuid4())}, {"name": "x"}])
    assert remote.server.ledger.calls("UpdateMultiple") == []


@pytest.mark.covers("BX-045", "BX-074")
async def test_when_all_records_fail_the_failures_are_all_and_every_error_is_there(remote: Remote):
    bad = [{"name": f"n{n}", "code": "x" * 30} for n in range(20)]
    result = await executor(remote).create_multiple("account", bad)
    assert (result.success_count, result.failure_count) == (0, 20)
    assert [error.index for error in result.errors] == list(range(20))
    assert {(error.kind, error.field) for error in result.errors} == {(ErrorKind.DATA, "code")}


@pytest.mark.covers("BX-036", "BX-079")
async def test_a_partly_failed_elastic_batch_adds_up(remote: Remote):
    remote.server.faults.add(plugin_aborted("no"), table="reading", row=lambda row: int(row["name"]) % 7 == 3)
    result = await executor(remote).create_multiple("reading", [{"name": str(n)} for n in range(250)])
    assert [error.index for error in result.errors] == [n for n in range(250) if n % 7 == 3]
    assert result.success_count + result.failure_count == 250
    assert len(remote.server.ledger.calls("CreateMultiple")) == 3


@pytest.mark.covers("BX-045", "BX-075", "BX-111")
async def test_in_a_failed_standard_batch_only_the_guilty_records_fail(remote: Remote):
    records = accounts(500)
    for guilty in (3, 250, 499):
        records[guilty]["code"] = "x" * 30
    result = await executor(remote).create_multiple("account", records)
    assert [error.index for error in result.errors] == [3, 250, 499]
    assert result.success_count == len(remote.server.rows("account")) == 497
    assert remote.server.ledger.doubled("account", "name") == {}


@pytest.mark.covers("BX-068", "BX-069", "BX-070", "BX-071")
async def test_references_that_cannot_work_are_explained(remote: Remote):
    own, first, missing = str(uuid4()), str(uuid4()), str(uuid4())
    records = [
        {"accountid": own, "name": "self", "parentid": Lookup("account", own)},
        {"accountid": first, "name": "first"},
        {"name": "same", "parentid": Lookup("account", first)},
        {"name": "missing", "parentid": Lookup("account", missing)},
        {"name": "fine"},
    ]
    options = DataverseOptions(isolate=False)
    result = await executor(remote).create_multiple("account", records, options)
    found = {(error.index, diagnostic.code) for error in result.errors for diagnostic in error.diagnostics}
    assert {(0, "SELF_REFERENCE"), (2, "SAME_BATCH_REFERENCE"), (3, "MISSING_REFERENCE")} <= found
    assert all(diagnostic.suggestion for error in result.errors for diagnostic in error.diagnostics)


# Error handling


@pytest.mark.covers("BX-002", "BX-020", "BX-059", "BX-061", "BX-062")
@pytest.mark.parametrize(
    "problem, kind",
    [(token_refused(), ErrorKind.TOKEN), (deadlock(), ErrorKind.DEADLOCK), (race(2812), ErrorKind.RACE)],
)
@pytest.mark.parametrize("refusals, is_success", [(3, True), (4, False)])
async def test_passing_troubles_are_tried_four_times(
    remote: Remote, problem: Problem, kind: ErrorKind, refusals: int, is_success: bool
):
    remote.server.faults.add(problem, action="CreateMultiple", times=refusals)
    # One record: a bigger batch that deadlocks so often is split.
    result = await executor(remote).create_multiple("account", accounts(1))
    assert result.is_success is is_success
    assert {error.kind for error in result.errors} == (set() if is_success else {kind})
    assert len(remote.server.rows("account")) == (1 if is_success else 0)


async def test_a_batch_that_is_too_slow_is_split(remote: Remote):
    remote.server.faults.add(sql_timeout(), action="CreateMultiple", rows_over=30)
    result = await executor(remote).create_multiple("account", accounts(100))
    assert result.is_success
    assert batch_sizes(remote) == [25, 25, 25, 25, 50, 50, 100]


async def test_requests_are_kept_below_their_size_in_bytes(remote: Remote):
    remote.target._request_bytes_max = 10_000
    records = [{"name": f"{n}" + "x" * 900} for n in range(50)]
    assert (await executor(remote).create_multiple("account", records)).is_success
    assert max(call.bytes for call in remote.server.ledger.calls("CreateMultiple")) < 12_000


@pytest.mark.covers("BX-037")
async def test_a_missing_bypass_privilege_fails_without_retries(remote: Remote):
    remote.server.revoke("app-1", "prvBypassCustomBusinessLogic")
    options = DataverseOptions(bypass_custom_logic=CustomLogicBypass.ALL)
    result = await executor(remote).create_multiple("account", accounts(300), options)
    assert (result.success_count, result.statistics.retries) == (0, {})
    assert "prvBypassCustomBusinessLogic" in result.errors[0].message
    assert result.errors[0].kind is ErrorKind.PERMISSION


@pytest.mark.covers("BX-033")
async def test_deletes_stop_at_the_first_failure_when_told_so(remote: Remote):
    made = await executor(remote).create_multiple("account", accounts(30))
    assert made.created_ids is not None
    ids = [*made.created_ids[:12], str(uuid4()), *made.created_ids[12:]]
    options = DataverseOptions(continue_on_error=False, batch_size=10, max_parallel_batches=1)
    result = await executor(remote).delete_multiple("account", ids, options)
    assert list(result.outcomes) == [Outcome.DELETED] * 12 + [Outcome.FAILED] + [Outcome.NOT_RUN] * 18
    assert result.stopped_reason == "stopped on error"
    assert len(remote.server.rows("account")) == 18


async def test_rows_of_an_elastic_table_that_came_too_early_are_sent_again(remote: Remote):
    early = Problem(429, "0x80072322", "request rate is large")
    remote.server.faults.add(early, table="reading", times=3, row=lambda row: int(row["name"]) % 2 == 0)
    result = await executor(remote).create_multiple("reading", [{"name": str(n)} for n in range(100)])
    assert result.is_success
    assert remote.server.ledger.doubled("reading", "name") == {}


@pytest.mark.covers("BX-089")
async def test_a_table_without_bulk_calls_says_so_at_once(remote: Remote):
    result = await executor(remote).create_multiple("unlisted", [{"name": "x"}])
    assert (result.stopped_reason, result.success_count) == ("systemic", 0)
    assert "does not take CreateMultiple" in str(result.stopped_error)
    assert remote.server.ledger.calls("CreateMultiple") == []


async def test_the_same_key_twice_is_sent_in_order_and_never_in_one_batch(remote: Remote):
    records = [{"code": f"c{n % 10}", "name": f"n{n}"} for n in range(40)]
    options = DataverseOptions(alternate_key=["code"], batch_size=7)
    result = await executor(remote).upsert_multiple("account", records, options)
    assert result.is_success
    assert sorted(row["name"] for row in remote.server.rows("account")) == [f"n{n}" for n in range(30, 40)]


# Parallelism


def contacts(count: int) -> list[dict[str, object]]:
    return [{"fullname": f"n{n}"} for n in range(count)]


@pytest.mark.covers("BX-014", "BX-018", "BX-084")
async def test_calls_at_once_stay_within_the_widths_the_platform_recommends():
    async with opened(users={"app-1": Quota(dop_hint=7), "app-2": Quota(dop_hint=2)}) as remote:
        result = await executor(remote).create_multiple("contact", contacts(2000), BulkOptions(batch_size=20))
        assert result.is_success
        at_once = remote.server.ledger.concurrency_max
        assert 1 <= at_once["app-1"] <= 7
        assert 1 <= at_once["app-2"] <= remote.target.width  # which counts until the first answer


@pytest.mark.covers("BX-085")
async def test_a_throttled_user_is_left_alone_while_another_works():
    async with opened(("app-1", "app-2")) as remote:
        remote.server.faults.add(throttled("requests", retry_after_s=300), user="app-1", action="CreateMultiple")
        result = await BulkExecutor(remote.target, pool=Pool.of(remote.target, clock=ManualClock())).create_multiple(
            "contact", contacts(2000)
        )
        assert result.is_success
        refused = [call for call in remote.server.ledger.calls("CreateMultiple") if call.user == "app-1"]
        assert 1 <= len(refused) <= remote.target.width


@pytest.mark.covers("BX-060")
@pytest.mark.parametrize("mode", list(Mode))
async def test_no_lost_answer_makes_anything_happen_twice(remote: Remote, mode: Mode):
    made = await executor(remote).create_multiple("account", accounts(50, start=1000))
    assert made.created_ids is not None
    inputs: list[object] = {
        Mode.CREATE: accounts(50),
        Mode.UPDATE: [{"accountid": id, "revenue": 1} for id in made.created_ids],
        Mode.UPSERT: accounts(50),
        Mode.DELETE: made.created_ids,
    }[mode]
    for action in ("CreateMultiple", "UpdateMultiple", "UpsertMultiple", "$batch"):
        remote.server.faults.add(Drop(is_applied=True), action=action, call={1, 3})
    options = DataverseOptions(
        batch_size=20, alternate_key=["code"], tell_created=True, suppress_duplicate_detection=True
    )
    result = await executor(remote).start(mode, "account", inputs, options)
    assert result.is_success
    assert result.success_count == 50
    assert remote.server.ledger.doubled("account", "code") == {}
    assert (
        len(remote.server.rows("account"))
        == {Mode.CREATE: 100, Mode.UPDATE: 50, Mode.UPSERT: 100, Mode.DELETE: 0}[mode]
    )
    if mode is Mode.UPSERT:
        assert (result.created_count, result.counts_exact) == (50, False)


async def test_a_lost_create_that_cannot_be_traced_is_unknown_and_not_sent_again(remote: Remote):
    remote.server.faults.add(Drop(is_applied=True), action="CreateMultiple", call=2)
    result = await executor(remote).create_multiple("account", accounts(300), BulkOptions(max_parallel_batches=1))
    assert list(result.outcomes) == [Outcome.CREATED] * 100 + [Outcome.UNKNOWN] * 100 + [Outcome.CREATED] * 100
    assert len(remote.server.rows("account")) == 300


@pytest.mark.covers("BX-028")
async def test_counts_are_not_called_exact_when_an_answer_was_lost_on_the_way(remote: Remote):
    remote.server.faults.add(Drop(is_applied=True), action="$batch", call=1)
    remote.server.faults.add(too_large(), action="$batch", call=2)
    options = DataverseOptions(alternate_key=["code"], exact_counts=True)
    result = await executor(remote).upsert_multiple("account", accounts(10), options)
    assert result.is_success
    assert not result.counts_exact


async def test_a_record_that_a_lost_call_may_have_written_does_not_end_as_failed(remote: Remote):
    remote.server.faults.add(Drop(is_applied=True), action="$batch", call=1)
    remote.server.faults.add(deadlock(), action="$batch", call=range(2, 99), row=lambda row: row.get("code") == "c1")
    options = DataverseOptions(alternate_key=["code"], exact_counts=True)
    result = await executor(remote).upsert_multiple("account", accounts(3), options)
    assert list(result.outcomes) == [Outcome.UPDATED, Outcome.UNKNOWN, Outcome.UPDATED]
