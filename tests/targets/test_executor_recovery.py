"""Finding the guilty records of a batch that failed as a whole."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scripted import Refuse, Remote, executor, in_virtual_time, numbered, trouble, virtually

from penstock.targets import Batch, BulkOptions, BulkResult, Capabilities, ErrorKind, Outcome, RetryPolicy, TargetError
from penstock.targets.diagnostics.causes import Cause


def bad(*numbers: int, kind: ErrorKind = ErrorKind.DATA) -> Any:
    """Records that the remote refuses, each with a message of its own."""
    return lambda n: trouble(kind, f"{n} is wrong", code="C1") if n in numbers else None


async def create(remote: Remote, count: int, **options: Any) -> BulkResult:
    return await executor(remote).create_multiple("account", numbered(count), BulkOptions(**options))


@pytest.mark.covers("BX-075", "BX-111", "BX-035")
@in_virtual_time
async def test_one_bad_record_fails_alone_with_its_own_error():
    remote = Remote(bad=bad(37))
    result = await create(remote, 100)
    assert (result.success_count, result.failure_count) == (99, 1)
    assert [(error.index, error.message, error.id) for error in result.errors] == [(37, "37 is wrong", 37)]
    assert set(remote.applied.values()) == {1}


@pytest.mark.covers("BX-111")
@in_virtual_time
async def test_one_bad_record_of_a_thousand_costs_two_calls_for_each_halving():
    remote = Remote(bad=bad(700))
    await create(remote, 1000, batch_size=1000)
    assert len(remote.calls) <= 1 + 2 * math.ceil(math.log2(1000))


@pytest.mark.covers("BX-111")
@in_virtual_time
async def test_the_halves_of_a_failed_batch_are_sent_side_by_side():
    remote = Remote(width=2, bad=bad(0))
    await create(remote, 100)
    _, left, right = remote.calls[:3]
    assert left.at_s == right.at_s
    assert left.numbers == tuple(range(50))


@pytest.mark.covers("BX-111")
@in_virtual_time
async def test_pieces_of_a_failed_batch_go_before_new_batches():
    remote = Remote(width=1, bad=bad(0))
    await create(remote, 1000)
    assert remote.sizes[:4] == [100, 100, 50, 50], "the second batch had the slot before there were pieces"


@pytest.mark.covers("BX-111")
@settings(max_examples=80)
@given(
    st.sets(st.integers(0, 119)),
    st.integers(1, 130),
    st.booleans(),
    st.booleans(),
    st.sampled_from([ErrorKind.DATA, ErrorKind.BUSINESS]),
)
def test_exactly_the_bad_records_fail_whichever_they_are(
    guilty: set[int], batch_size: int, sends_each: bool, names_suspects: bool, kind: ErrorKind
):
    def refused(batch: Batch, _source: str) -> Refuse | None:
        found = [place for place, record in enumerate(batch.records) if record["n"] in guilty]
        error = trouble(kind, f"{found} are wrong", suspects=tuple(found[:3]) if names_suspects else ())
        return Refuse(error) if found else None

    remote = Remote(bad=bad(*guilty, kind=kind), decide=refused, sends_each=False)
    if sends_each:
        remote = Remote(bad=bad(*guilty, kind=kind), sends_each=True)
    result = virtually(create(remote, 120, batch_size=batch_size))
    assert [error.index for error in result.errors] == sorted(guilty)
    assert list(result.outcomes.positions(Outcome.FAILED)) == sorted(guilty)
    assert set(remote.applied) == set(range(120)) - guilty
    assert set(remote.applied.values()) <= {1}


@pytest.mark.covers("BX-111")
@in_virtual_time
async def test_records_that_the_remote_names_are_taken_out_first():
    def named(batch: Batch, _source: str) -> Refuse | None:
        places = [place for place, record in enumerate(batch.records) if record["n"] in (30, 60)]
        return Refuse(trouble(ErrorKind.DATA, suspects=tuple(places))) if places else None

    remote = Remote(decide=named)
    result = await create(remote, 100)
    assert [error.index for error in result.errors] == [30, 60]
    assert sorted(remote.sizes) == [1, 1, 2, 98, 100]


@in_virtual_time
async def test_a_named_record_that_is_not_guilty_succeeds_on_its_own():
    def wrongly_named(batch: Batch, _source: str) -> Refuse | None:
        guilty = 7 in [record["n"] for record in batch.records]
        return Refuse(trouble(ErrorKind.DATA, suspects=(0,))) if guilty else None

    result = await create(Remote(decide=wrongly_named), 100)
    assert [error.index for error in result.errors] == [7]


@pytest.mark.parametrize("suspects", [(500,), (-1,), tuple(range(100))])
@in_virtual_time
async def test_suspects_that_make_no_sense_are_passed_over(suspects: tuple[int, ...]):
    def refused(batch: Batch, _source: str) -> Refuse | None:
        guilty = 7 in [record["n"] for record in batch.records]
        return Refuse(trouble(ErrorKind.DATA, suspects=suspects)) if guilty else None

    result = await create(Remote(decide=refused), 100)
    assert [error.index for error in result.errors] == [7]


@pytest.mark.covers("BX-111")
@in_virtual_time
async def test_a_small_piece_is_sent_record_by_record_in_one_call():
    remote = Remote(sends_each=True, bad=bad(3, 9))
    result = await create(remote, 100)
    assert [error.index for error in result.errors] == [3, 9]
    assert [len(sent) for sent in remote.calls if sent.what == "each"] == [13]
    assert len(remote.calls) == 8


@pytest.mark.covers("BX-111")
@in_virtual_time
async def test_when_much_fails_whole_batches_are_sent_record_by_record():
    remote = Remote(width=1, sends_each=True, bad=lambda n: trouble(ErrorKind.DATA) if n % 7 == 0 else None)
    result = await create(remote, 2000)
    assert result.failure_count == math.ceil(2000 / 7)
    assert len(remote.calls) < 2.5 * 20 + 15


@in_virtual_time
async def test_a_piece_that_cannot_be_sent_record_by_record_after_all_is_halved():
    remote = Remote(sends_each=True, bad=bad(2))

    async def refuse(_: Batch) -> Refuse:
        return Refuse(trouble(ErrorKind.OTHER, "no such endpoint"))

    remote.decide = lambda batch, _source: refuse if remote.log[-1].what == "each" and len(batch) > 2 else None
    result = await create(remote, 10)
    assert [error.index for error in result.errors] == [2]


@pytest.mark.parametrize("kind", [ErrorKind.OTHER, ErrorKind.PERMISSION])
@pytest.mark.parametrize("sends_each", [True, False])
@in_virtual_time
async def test_when_everything_fails_alike_the_records_are_not_the_cause_and_the_call_stops(
    kind: ErrorKind, sends_each: bool
):
    remote = Remote(width=1, sends_each=sends_each, bad=lambda _: trouble(kind, "no such table", code="42P01"))
    result = await create(remote, 10_000)
    assert result.stopped_reason == "systemic"
    assert isinstance(result.stopped_error, TargetError)
    assert result.failure_count + result.not_run_count == 10_000
    assert 100 <= result.failure_count <= 300
    assert {error.code for error in result.errors} == {"42P01"}
    assert len(remote.calls) < 40


@pytest.mark.covers("BX-074")
@pytest.mark.parametrize("kind", [ErrorKind.DATA, ErrorKind.BUSINESS])
@in_virtual_time
async def test_bad_data_is_the_fault_of_records_even_when_all_are_bad(kind: ErrorKind):
    remote = Remote(sends_each=True, bad=lambda _: trouble(kind, code="23502"))
    result = await create(remote, 1000)
    assert (result.failure_count, result.stopped_reason) == (1000, None)


@in_virtual_time
async def test_two_bad_records_in_two_halves_with_one_code_do_not_stop_the_call():
    remote = Remote(bad=bad(10, 90, kind=ErrorKind.OTHER))
    result = await create(remote, 1000)
    assert [error.index for error in result.errors] == [10, 90]
    assert result.stopped_reason is None


@in_virtual_time
async def test_a_table_that_does_not_take_the_call_stops_it_at_once():
    remote = Remote(width=1, bad=lambda _: trouble(ErrorKind.UNSUPPORTED, "CreateMultiple is not enabled"))
    result = await create(remote, 1000)
    assert len(remote.calls) == 1
    assert (result.failure_count, result.not_run_count, result.stopped_reason) == (100, 900, "systemic")
    assert result.errors[0].kind is ErrorKind.UNSUPPORTED


@in_virtual_time
async def test_the_search_has_a_budget_after_which_what_is_left_fails_whole():
    remote = Remote(bad=lambda n: trouble(ErrorKind.DATA) if n % 2 else None)
    policy = RetryPolicy(jitter=0, extra_calls_max=20)
    result = await executor(remote, policy=policy).create_multiple("account", numbered(100))
    assert len(remote.calls) <= 1 + 22
    assert result.failure_count + result.success_count == 100
    assert set(result.outcomes.positions(Outcome.FAILED)) >= set(range(1, 100, 2))


@in_virtual_time
async def test_pieces_have_retries_of_their_own():
    """A batch that deadlocked twice and then failed for its data starts anew when it is halved."""
    script = {1: Refuse(trouble(ErrorKind.DEADLOCK)), 2: Refuse(trouble(ErrorKind.DEADLOCK))}
    script |= {n: Refuse(trouble(ErrorKind.DEADLOCK)) for n in (4, 5, 6)}
    remote = Remote(latency_s=0, width=1, script=script, bad=bad(3))
    result = await create(remote, 10)
    assert [error.index for error in result.errors] == [3]


@pytest.mark.covers("BX-012", "BX-067")
@in_virtual_time
async def test_a_failed_record_carries_what_its_batch_showed_about_it():
    def refused(n: int) -> TargetError | None:
        message = "Entity 'account' With Id = 77777777-7777-4777-8777-777777777777 Does Not Exist"
        return trouble(ErrorKind.DATA, message, code="0x80040217") if n == 5 else None

    records = numbered(10)
    records[5]["parent"] = "77777777-7777-4777-8777-777777777777"
    options = BulkOptions(references={"parent": "account"})
    result = await executor(Remote(bad=refused)).create_multiple("account", records, options)
    (error,) = result.errors
    (diagnostic,) = error.diagnostics
    assert (diagnostic.code, diagnostic.index, diagnostic.field) == ("MISSING_REFERENCE", 5, "parent")


@in_virtual_time
async def test_the_order_of_one_key_is_kept_while_its_batch_is_searched():
    """The second record of a key waits until the first one is settled, wherever the search has put it."""
    records = [*numbered(20), {"n": 3, "name": "later"}, {"n": 4, "name": "later"}]
    remote = Remote(bad=bad(3), capabilities=Capabilities(is_idempotent=True, id_field="n"))
    result = await executor(remote).upsert_multiple("account", records, BulkOptions(batch_size=20))
    assert [error.index for error in result.errors] == [3, 20]
    assert not remote.overlaps


@pytest.mark.covers("BX-114")
@in_virtual_time
async def test_the_diagnosis_of_one_failure_does_not_stick_to_the_others_of_its_batch():
    long, missing = (
        trouble(ErrorKind.DATA, "value too long for the field", code="22001"),
        trouble(ErrorKind.BUSINESS, "a rule said no"),
    )
    remote = Remote(bad={3: missing, 7: long}.get)
    result = await executor(remote).create_multiple("account", numbered(10))
    found = {error.index: [diagnostic.code for diagnostic in error.diagnostics] for error in result.errors}
    assert found == {3: [Cause.PLUGIN], 7: [Cause.TOO_LONG]}
