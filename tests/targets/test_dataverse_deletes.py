"""Deletes on standard tables: single requests inside one `$batch`."""

from __future__ import annotations

from collections.abc import AsyncIterator
from uuid import uuid4

import pytest
from dataverse import MissingParts, Problem, deadlock, throttled
from dataverse_remote import Remote, opened, outcomes

from penstock.targets.dataverse import CustomLogicBypass
from penstock.targets.model import BulkOptions, ErrorKind, Limit, Mode, TargetError


@pytest.fixture
async def remote() -> AsyncIterator[Remote]:
    async with opened() as found:
        yield found


async def three(remote: Remote) -> list[str]:
    return await remote.create({"name": "a"}, {"name": "b"}, {"name": "c"})


@pytest.mark.covers("BX-031", "BX-041", "BX-103")
async def test_a_batch_of_deletes_is_one_call_with_a_part_for_each_id(remote: Remote):
    ids = await three(remote)
    answer = await remote.send(Mode.DELETE, ids)
    assert outcomes(answer) == ["deleted"] * 3
    assert [verdict.id for verdict in answer.verdicts] == ids
    assert remote.server.rows("account") == []
    (call,) = remote.server.ledger.calls("$batch")
    assert len(call.parts) == 3


async def test_a_table_deleted_from_answers_record_by_record(remote: Remote):
    capabilities = await remote.target.describe("account", Mode.DELETE, BulkOptions(), "app-1")
    assert (capabilities.is_atomic, capabilities.records_max, capabilities.can_reconcile) == (False, 1000, True)
    assert not capabilities.is_idempotent  # a second delete answers that nothing is there


@pytest.mark.covers("BX-033", "BX-094")
async def test_a_failed_delete_does_not_stop_the_others(remote: Remote):
    one, two, three_ = await three(remote)
    answer = await remote.send(Mode.DELETE, [one, str(uuid4()), two, three_])
    assert outcomes(answer) == ["deleted", "failed", "deleted", "deleted"]
    error = answer.verdicts[1].error
    assert error is not None
    assert (error.kind, error.code) == (ErrorKind.DATA, "0x80040217")


@pytest.mark.covers("BX-033")
async def test_without_continue_on_error_the_rest_is_not_run_and_not_counted_as_done(remote: Remote):
    one, two, three_ = await three(remote)
    answer = await remote.send(Mode.DELETE, [one, str(uuid4()), two, three_], continue_on_error=False)
    assert outcomes(answer) == ["deleted", "failed", "not run", "not run"]
    assert sorted(remote.named()) == ["b", "c"]


async def test_a_stop_for_a_passing_reason_leaves_the_rest_to_be_tried_again(remote: Remote):
    ids = await three(remote)
    remote.server.faults.add(deadlock(), action="$batch", row=lambda row: row["accountid"] == ids[1])
    answer = await remote.send(Mode.DELETE, ids, continue_on_error=False)
    assert outcomes(answer) == ["deleted", "failed", "failed"]
    kinds = [verdict.error and verdict.error.kind for verdict in answer.verdicts]
    assert kinds == [None, ErrorKind.DEADLOCK, ErrorKind.DEADLOCK]


@pytest.mark.covers("BX-057")
async def test_a_throttled_part_says_how_long_to_wait(remote: Remote):
    ids = await three(remote)
    remote.server.faults.add(
        throttled("time", retry_after_s=9), action="$batch", row=lambda row: row["accountid"] == ids[2]
    )
    error = (await remote.send(Mode.DELETE, ids)).verdicts[2].error
    assert error is not None
    assert (error.kind, error.limit, error.retry_after_s) == (ErrorKind.THROTTLED, Limit.TIME, 9)


async def test_a_batch_refused_as_a_whole_is_an_error_of_the_whole(remote: Remote):
    ids = await three(remote)
    remote.server.faults.add(throttled("requests", retry_after_s=3), action="$batch", times=1)
    with pytest.raises(TargetError) as caught:
        await remote.send(Mode.DELETE, ids)
    assert (caught.value.kind, caught.value.retry_after_s) == (ErrorKind.THROTTLED, 3)
    assert outcomes(await remote.send(Mode.DELETE, ids)) == ["deleted"] * 3


@pytest.mark.parametrize("goes_on", [True, False])
async def test_an_answer_with_too_few_parts_is_not_believed(remote: Remote, goes_on: bool):
    ids = await three(remote)
    remote.server.faults.add(MissingParts(1), action="$batch", times=1)
    with pytest.raises(TargetError, match="told of 2 records where 3 were sent") as caught:
        await remote.send(Mode.DELETE, ids, continue_on_error=goes_on)
    assert (caught.value.kind, caught.value.maybe_applied) == (ErrorKind.CONNECTION, True)


async def test_an_answer_without_any_part_is_not_believed_either(remote: Remote):
    ids = await three(remote)
    remote.server.faults.add(MissingParts(3), action="$batch", times=1)
    with pytest.raises(TargetError, match="told of 0 records where 3 were sent"):
        await remote.send(Mode.DELETE, ids)


async def test_records_can_be_deleted_by_an_alternate_key(remote: Remote):
    await remote.create({"name": "a", "code": "it's / 1"})
    answer = await remote.send(Mode.DELETE, [{"code": "it's / 1"}])
    assert outcomes(answer) == ["deleted"]
    assert remote.server.rows("account") == []


@pytest.mark.covers("BX-095", "BX-098")
async def test_optional_behaviour_is_asked_for_on_every_part(remote: Remote):
    ids = await three(remote)
    await remote.send(Mode.DELETE, ids, bypass_custom_logic=CustomLogicBypass.SYNCHRONOUS, tag="nightly load")
    (call,) = remote.server.ledger.calls("$batch")
    assert "mscrm.bypassbusinesslogicexecution" not in call.headers
    for part in call.parts:
        assert part.headers["mscrm.bypassbusinesslogicexecution"] == "CustomSync"
        assert part.query["tag"] == "nightly load"


async def test_a_part_that_is_refused_for_a_missing_right_names_it(remote: Remote):
    (one,) = await remote.create({"name": "a"})
    remote.server.faults.add(Problem(403, "0x80040220", "privilege missing"), row=lambda row: True)
    answer = await remote.send(Mode.DELETE, [one], bypass_custom_logic=CustomLogicBypass.ALL)
    assert "prvBypassCustomBusinessLogic" in str(answer.verdicts[0].error)
