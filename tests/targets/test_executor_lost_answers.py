"""Answers that never come: nothing is sent twice blindly, and what nobody knows is called unknown."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from scripted import Lose, Refuse, Remote, executor, in_virtual_time, numbered, trouble

from penstock.targets import (
    Answer,
    Batch,
    BulkOptions,
    Capabilities,
    ErrorKind,
    Outcome,
    RateLimit,
    RetryPolicy,
    Verdict,
)

IDEMPOTENT = Capabilities(is_idempotent=True, id_field="n")
RECONCILABLE = Capabilities(can_reconcile=True, id_field="n")
IMPATIENT = RetryPolicy(jitter=0, outage_s=0)
NEITHER = Capabilities(id_field="n")


@pytest.mark.covers("BX-060")
@pytest.mark.parametrize("applied", [None, 0], ids=["applied", "not applied"])
@in_virtual_time
async def test_a_lost_answer_that_nobody_can_explain_leaves_the_records_unknown(applied: int | None):
    remote = Remote(capabilities=NEITHER, script={1: Lose(applied)})
    result = await executor(remote).create_multiple("account", numbered(10))
    assert len(remote.calls) == 1
    assert result.outcomes == [Outcome.UNKNOWN] * 10
    assert (result.success_count, result.failure_count, result.unknown_count) == (0, 0, 10)
    assert {(error.outcome, error.kind) for error in result.errors} == {(Outcome.UNKNOWN, ErrorKind.CONNECTION)}
    assert not result.is_success


@in_virtual_time
async def test_a_connection_that_was_never_made_is_tried_again_whatever_the_table_is_like():
    remote = Remote(capabilities=NEITHER, script={1: Refuse(trouble(ErrorKind.CONNECTION))})
    assert (await executor(remote).create_multiple("account", numbered(10))).is_success


@pytest.mark.covers("BX-060")
@in_virtual_time
async def test_an_idempotent_batch_is_simply_sent_again_with_the_same_key():
    remote = Remote(capabilities=IDEMPOTENT, script={1: Lose()})
    result = await executor(remote).upsert_multiple("account", numbered(10))
    assert result.is_success
    first, second = remote.calls
    assert (first.key, first.numbers) == (second.key, second.numbers)
    assert remote.asked == 0


@pytest.mark.covers("BX-060")
@in_virtual_time
async def test_a_batch_that_turns_out_to_be_applied_is_not_sent_again():
    remote = Remote(capabilities=RECONCILABLE, script={1: Lose()})
    result = await executor(remote).create_multiple("account", numbered(10))
    assert result.is_success
    assert result.created_ids == [f"id-{n}" for n in range(10)]
    assert (len(remote.calls), remote.asked) == (1, 1)


@pytest.mark.covers("BX-060")
@in_virtual_time
async def test_a_batch_that_turns_out_not_to_be_applied_is_sent_again():
    remote = Remote(capabilities=RECONCILABLE, script={1: Lose(applied=0)})
    result = await executor(remote).create_multiple("account", numbered(10))
    assert result.is_success
    assert set(remote.applied.values()) == {1}
    assert len(remote.calls) == 2


@pytest.mark.covers("BX-060")
@in_virtual_time
async def test_of_a_batch_that_was_applied_in_part_only_the_rest_is_sent_again():
    remote = Remote(capabilities=RECONCILABLE, script={1: Lose(applied=4)})
    result = await executor(remote).create_multiple("account", numbered(10))
    assert result.is_success
    assert result.created_ids == [f"id-{n}" for n in range(10)]
    assert remote.calls[1].numbers == (4, 5, 6, 7, 8, 9)
    assert set(remote.applied.values()) == {1}


@in_virtual_time
async def test_the_question_what_became_of_a_batch_is_retried_on_its_own_count():
    questions = {n: trouble(ErrorKind.CONNECTION) for n in (1, 2, 3)} | {
        4: trouble(ErrorKind.THROTTLED, retry_after_s=9)
    }
    remote = Remote(capabilities=RECONCILABLE, script={1: Lose()}, questions=questions)
    result = await executor(remote).create_multiple("account", numbered(10))
    assert result.is_success
    assert (len(remote.calls), remote.asked) == (1, 5)


@pytest.mark.parametrize("kind", [ErrorKind.CONNECTION, ErrorKind.PERMISSION, ErrorKind.OTHER])
@in_virtual_time
async def test_a_question_that_is_never_answered_leaves_the_records_unknown(kind: ErrorKind):
    remote = Remote(capabilities=RECONCILABLE, script={1: Lose()}, questions={n: trouble(kind) for n in range(1, 9)})
    result = await executor(remote, policy=IMPATIENT).create_multiple("account", numbered(10))
    assert result.unknown_count == 10
    assert remote.asked == (4 if kind is ErrorKind.CONNECTION else 1)
    assert len(remote.calls) == 1


@in_virtual_time
async def test_a_batch_whose_answer_is_lost_every_time_without_effect_fails_after_the_fourth_try():
    remote = Remote(capabilities=RECONCILABLE, decide=lambda _batch, _source: Lose(applied=0), latency_s=0)
    result = await executor(remote).create_multiple("account", numbered(10))
    assert (result.failure_count, result.unknown_count) == (10, 0)
    assert (len(remote.calls), remote.asked) == (4, 4)
    assert not remote.applied


@in_virtual_time
async def test_an_idempotent_batch_that_may_have_been_applied_is_unknown_when_retries_run_out():
    script = {1: Lose()} | {n: Refuse(trouble(ErrorKind.CONNECTION)) for n in (2, 3, 4)}
    remote = Remote(capabilities=IDEMPOTENT, script=script, latency_s=0)
    result = await executor(remote, policy=IMPATIENT).upsert_multiple("account", numbered(10))
    assert (result.failure_count, result.unknown_count) == (0, 10)
    assert set(remote.applied.values()) == {1}


@in_virtual_time
async def test_the_pieces_of_a_batch_that_may_have_been_applied_are_in_the_same_doubt():
    script = {1: Lose(), 2: Refuse(trouble(ErrorKind.TOO_BIG))}
    remote = Remote(capabilities=IDEMPOTENT, script=script, latency_s=0)
    remote.decide = lambda _batch, _source: Refuse(trouble(ErrorKind.DEADLOCK))
    result = await executor(remote).upsert_multiple("account", numbered(10))
    assert (result.failure_count, result.unknown_count) == (0, 10)


@in_virtual_time
async def test_the_answer_to_a_resend_settles_what_was_in_doubt():
    remote = Remote(
        capabilities=IDEMPOTENT, script={1: Lose()}, bad=lambda n: trouble(ErrorKind.DATA) if n == 3 else None
    )
    result = await executor(remote).upsert_multiple("account", numbered(10))
    assert (result.success_count, result.failure_count, result.unknown_count) == (9, 1, 0)


@in_virtual_time
async def test_an_answer_to_a_resend_that_judges_no_record_settles_nothing_that_was_in_doubt():
    async def says_little(batch: Batch) -> Answer:
        errors = (trouble(ErrorKind.DATA), trouble(ErrorKind.OTHER), trouble(ErrorKind.PERMISSION), None)
        return Answer([Verdict(Outcome.FAILED if error else Outcome.NOT_RUN, error=error) for error in errors])

    remote = Remote(capabilities=IDEMPOTENT, script={1: Lose(), 2: says_little})
    result = await executor(remote).upsert_multiple("account", numbered(4))
    assert result.outcomes == [Outcome.FAILED, *[Outcome.UNKNOWN] * 3]
    assert [error.kind for error in result.errors] == [ErrorKind.DATA, *[ErrorKind.CONNECTION] * 3]


@in_virtual_time
async def test_records_that_no_answer_to_a_resend_was_about_stay_in_doubt():
    async def stopped(batch: Batch) -> Answer:
        return Answer([Verdict(Outcome.UPDATED), Verdict(Outcome.NOT_RUN)])

    remote = Remote(capabilities=IDEMPOTENT, script={1: Lose(), 2: stopped})
    result = await executor(remote).upsert_multiple("account", numbered(2))
    assert result.outcomes == [Outcome.UPDATED, Outcome.UNKNOWN]


@in_virtual_time
async def test_the_refusal_of_a_batch_says_nothing_of_records_that_may_have_been_taken_one_by_one():
    remote = Remote(
        width=1,
        capabilities=Capabilities(is_atomic=True, is_idempotent=True, id_field="n"),
        bad=lambda n: trouble(ErrorKind.DATA) if n == 3 else None,
        sends_each=True,
        script={2: Lose(kind=ErrorKind.OTHER), 5: Refuse(trouble(ErrorKind.UNSUPPORTED))},
    )
    result = await executor(remote).update_multiple("account", numbered(10))
    assert [call.what for call in remote.calls] == ["send", "each", "send", "send", "each"]
    assert result.outcomes == [*[Outcome.UNKNOWN] * 5, *[Outcome.UPDATED] * 5]


@in_virtual_time
async def test_a_timeout_of_a_big_batch_is_explained_first_and_split_then():
    def slow(batch, _source):
        return Lose(applied=0, kind=ErrorKind.TOO_BIG) if len(batch) > 30 else None

    remote = Remote(capabilities=RECONCILABLE, decide=slow)
    result = await executor(remote).create_multiple("account", numbered(100))
    assert result.is_success
    assert set(remote.applied.values()) == {1}


@in_virtual_time
async def test_a_lost_answer_while_isolating_is_explained_like_any_other():
    remote = Remote(
        capabilities=RECONCILABLE,
        script={2: Lose(), 3: Lose(applied=0)},
        bad=lambda n: trouble(ErrorKind.DATA) if n == 3 else None,
    )
    result = await executor(remote).create_multiple("account", numbered(20))
    assert (result.success_count, result.failure_count) == (19, 1)
    assert set(remote.applied.values()) == {1}


@in_virtual_time
async def test_a_lost_answer_to_records_sent_one_by_one_is_explained_like_any_other():
    remote = Remote(
        capabilities=RECONCILABLE,
        sends_each=True,
        script={2: Lose(applied=7)},
        bad=lambda n: trouble(ErrorKind.DATA) if n in (3, 9) else None,
    )
    result = await executor(remote).create_multiple("account", numbered(12))
    assert (result.success_count, [error.index for error in result.errors]) == (10, [3, 9])
    assert set(remote.applied.values()) == {1}


@in_virtual_time
async def test_unknown_records_stop_a_call_that_does_not_continue_on_error():
    remote = Remote(capabilities=NEITHER, script={1: Lose()})
    options = BulkOptions(continue_on_error=False, max_parallel_batches=1)
    result = await executor(remote).create_multiple("account", numbered(300), options)
    assert (result.unknown_count, result.not_run_count) == (100, 200)
    assert result.stopped_reason == "stopped on error"


@in_virtual_time
async def test_an_answer_that_says_nothing_of_some_records_is_a_lost_question():
    class Forgetful(Remote):
        async def reconcile(self, batch, source):
            return (await super().reconcile(batch, source))[:-1]

    remote = Forgetful(capabilities=RECONCILABLE, script={1: Lose()})
    result = await executor(remote).create_multiple("account", numbered(10))
    assert result.unknown_count == 10


@in_virtual_time
async def test_a_remote_that_is_asked_and_does_not_know_is_not_asked_again():
    class Unsure(Remote):
        async def reconcile(self, batch: Batch, source: str) -> Sequence[Verdict | None]:
            await super().reconcile(batch, source)
            return [Verdict(Outcome.UNKNOWN, error=trouble(ErrorKind.CONNECTION, maybe_applied=True))] * len(batch)

    remote = Unsure(capabilities=RECONCILABLE, script={1: Lose()})
    result = await executor(remote).create_multiple("account", numbered(10))
    assert (result.unknown_count, remote.asked, len(remote.calls)) == (10, 1, 1)


@pytest.mark.covers("BX-019")
@in_virtual_time
async def test_what_a_remote_says_when_asked_may_be_to_come_again():
    class Busy(Remote):
        async def reconcile(self, batch: Batch, source: str) -> Sequence[Verdict | None]:
            known = await super().reconcile(batch, source)
            later = trouble(ErrorKind.THROTTLED, retry_after_s=3)
            return [one or Verdict(Outcome.FAILED, error=later) for one in known]

    remote = Busy(capabilities=RECONCILABLE, script={1: Lose(applied=4)})
    result = await executor(remote).create_multiple("account", numbered(10))
    assert result.is_success
    assert set(remote.applied.values()) == {1}


ONE_BY_ONE = Capabilities(can_reconcile=True, id_field="n", asked_records_max=1)


@pytest.mark.covers("BX-060")
@in_virtual_time
async def test_questions_about_single_records_keep_to_the_rate():
    remote = Remote(capabilities=ONE_BY_ONE, script={1: Lose(applied=6)})
    remote.rate_limit = RateLimit(2)
    result = await executor(remote).create_multiple("account", numbered(10))
    assert (result.is_success, set(remote.applied.values())) == (True, {1})
    questions = [sent for sent in remote.log if sent.what == "ask"]
    assert [sent.numbers for sent in questions] == [(n,) for n in range(10)]
    assert questions[-1].at_s - questions[0].at_s == pytest.approx(9 / 2, abs=0.1)
    assert remote.sizes == [10, 4]


@in_virtual_time
async def test_a_throttled_question_does_not_begin_with_the_first_record_again():
    busy = trouble(ErrorKind.THROTTLED, retry_after_s=1)
    remote = Remote(capabilities=ONE_BY_ONE, script={1: Lose()}, questions={5: busy, 9: busy})
    result = await executor(remote).create_multiple("account", numbered(10))
    assert (result.is_success, remote.asked) == (True, 12)


@in_virtual_time
async def test_questions_that_got_no_answer_are_counted_from_the_last_one_that_did():
    lost = {number: trouble(ErrorKind.CONNECTION) for number in range(1, 20, 2)}
    remote = Remote(capabilities=ONE_BY_ONE, script={1: Lose()}, questions=lost)
    assert (await executor(remote).create_multiple("account", numbered(10))).is_success
