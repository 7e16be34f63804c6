"""The rules of the contract: what must become of records and of unanswered calls, and how a target behaves."""

from __future__ import annotations

import asyncio

from penstock.errors import SettingsInvalid
from penstock.targets.conformance.subject import Loss, Nonconformity, Subject, check, expect, outcomes
from penstock.targets.executor import BulkExecutor
from penstock.targets.model import BulkOptions, Mode, Outcome, TargetError
from penstock.targets.results import BulkResult
from penstock.targets.rules.retry import RetryPolicy
from penstock.targets.target import Batch

SOON = RetryPolicy(wait_first_s=0.01, jitter=0.0)
CANCELLED_AFTER_TURNS = (0, 1, 2, 3, 5, 8, 13, 21, 34)
"""After how many turns of the event loop a call is cancelled."""


@check(Mode.CREATE)
async def created_records_are_there_and_their_ids_come_in_order(subject: Subject) -> None:
    records = subject.records(10)
    answer = await subject.send(Mode.CREATE, records)
    expect(outcomes(answer.verdicts) == [Outcome.CREATED] * 10, f"outcomes are {outcomes(answer.verdicts)}")
    ids = [verdict.id for verdict in answer.verdicts]
    expect(ids == [subject.id_of(record) for record in records], f"ids are {ids}")
    await subject.expect_held(records)


@check(Mode.CREATE, Mode.UPDATE)
async def an_update_changes_what_it_names(subject: Subject) -> None:
    records = subject.records(10)
    await subject.send(Mode.CREATE, records)
    changed = [subject.change(record) for record in records[::2]]
    answer = await subject.send(Mode.UPDATE, changed)
    expect(outcomes(answer.verdicts) == [Outcome.UPDATED] * 5, f"outcomes are {outcomes(answer.verdicts)}")
    await subject.expect_held([*changed, *records[1::2]])


@check(Mode.CREATE, Mode.UPSERT)
async def an_upsert_tells_created_from_updated_or_that_it_does_not_know(subject: Subject) -> None:
    records = subject.records(10)
    await subject.send(Mode.CREATE, records[::2])
    answer = await subject.send(Mode.UPSERT, [subject.change(record) for record in records])
    expect(
        outcomes(answer.verdicts) in ([Outcome.UPDATED, Outcome.CREATED] * 5, [Outcome.UPSERTED] * 10),
        f"of records of which every other one was there, outcomes are {outcomes(answer.verdicts)}",
    )
    await subject.expect_held([subject.change(record) for record in records])


@check(Mode.CREATE, Mode.DELETE)
async def a_delete_removes_records_by_their_ids(subject: Subject) -> None:
    records = subject.records(10)
    await subject.send(Mode.CREATE, records)
    answer = await subject.send(Mode.DELETE, [subject.id_of(record) for record in records[::2]])
    expect(outcomes(answer.verdicts) == [Outcome.DELETED] * 5, f"outcomes are {outcomes(answer.verdicts)}")
    await subject.expect_held(records[1::2])


@check(Mode.CREATE, Mode.UPDATE)
async def an_update_of_a_missing_record_is_an_error_of_that_record_or_of_the_batch(subject: Subject) -> None:
    records = subject.records(3)
    await subject.send(Mode.CREATE, records[:2])
    try:
        answer = await subject.send(Mode.UPDATE, [subject.change(record) for record in records])
    except TargetError:
        return
    failed = answer.verdicts[2]
    expect(failed.outcome is Outcome.FAILED and failed.error is not None, f"the missing record is {failed}")


@check(Mode.CREATE)
async def a_refused_record_fails_its_batch_or_itself_as_described(subject: Subject) -> None:
    if subject.spoil is None:
        return
    records = subject.records(5)
    sent = [*records[:3], subject.spoil(records[3]), records[4]]
    try:
        answer = await subject.send(Mode.CREATE, sent)
    except TargetError as error:
        expect((await subject.capabilities(Mode.CREATE)).is_atomic, "a batch failed as a whole that is not atomic")
        expect(all(0 <= place < 5 for place in error.suspects), f"suspects are {error.suspects}")
        await subject.expect_held([])
        return
    expect(answer.verdicts[3].outcome is Outcome.FAILED, f"the refused record is {answer.verdicts[3]}")
    expect(answer.verdicts[3].error is not None, "a failed record has no error")
    await subject.expect_held([*records[:3], records[4]])


@check(Mode.CREATE)
async def sent_each_a_refused_record_fails_alone(subject: Subject) -> None:
    if subject.spoil is None or not subject.target.can_send_each:
        return
    records = subject.records(5)
    await subject.capabilities(Mode.CREATE)
    sent = [*records[:3], subject.spoil(records[3]), records[4]]
    answer = await subject.target.send_each(subject.batch(Mode.CREATE, sent), subject.target.sources[0])
    expected = [Outcome.CREATED] * 3 + [Outcome.FAILED, Outcome.CREATED]
    expect(outcomes(answer.verdicts) == expected, f"outcomes are {outcomes(answer.verdicts)}")
    await subject.expect_held([*records[:3], records[4]])


@check(Mode.CREATE, Mode.UPDATE)
async def what_is_called_idempotent_can_be_sent_twice(subject: Subject) -> None:
    records = subject.records(5)
    await subject.send(Mode.CREATE, records)
    changed = [subject.change(record) for record in records]
    for mode in subject.modes - {Mode.CREATE, Mode.DELETE}:
        if (await subject.capabilities(mode)).is_idempotent:
            batch = subject.batch(mode, changed)
            first = await subject.target.send(batch, subject.target.sources[0])
            second = await subject.target.send(batch, subject.target.sources[0])
            expect(outcomes(first.verdicts) == outcomes(second.verdicts), f"a second {mode} answers otherwise")
            await subject.expect_held(changed)


@check(Mode.CREATE)
async def a_batch_that_was_never_sent_is_reconciled_as_not_applied(subject: Subject) -> None:
    if (await subject.capabilities(Mode.CREATE)).can_reconcile:
        told = await subject.target.reconcile(subject.batch(Mode.CREATE, subject.records(5)), subject.target.sources[0])
        expect(list(told) == [None] * 5, f"the remote says {outcomes(told)}")


@check(Mode.CREATE, needs_loss=True)
async def an_answer_that_is_lost_is_an_error_that_may_have_been_applied(subject: Subject) -> None:
    await subject.capabilities(Mode.CREATE)
    subject.lose_next("applied")
    try:
        await subject.target.send(subject.batch(Mode.CREATE, subject.records(5)), subject.target.sources[0])
    except TargetError as error:
        expect(error.maybe_applied, f"the call took effect, and its error says that it did not: {error}")
    else:
        expect(False, "a call that was not answered succeeded")
    await subject.expect_held(subject.records(5))


@check(Mode.CREATE, needs_loss=True)
async def what_took_effect_without_an_answer_is_not_created_twice(subject: Subject) -> None:
    result = await _created(subject, "applied")
    await subject.expect_held(subject.records(5))
    await _expect_known(subject, result)


@check(Mode.CREATE, needs_loss=True)
async def what_never_arrived_is_created_after_all_where_that_can_be_told(subject: Subject) -> None:
    result = await _created(subject, "never")
    await _expect_known(subject, result)
    await subject.expect_held(subject.records(5) if result.success_count else [])


@check(Mode.CREATE, needs_loss=True)
async def what_takes_effect_late_is_never_told_as_failed(subject: Subject) -> None:
    result = await _created(subject, "late")
    expect(not result.failure_count, f"records are reported as {result.outcomes} that were created late")
    await _expect_known(subject, result)
    if result.success_count:
        await subject.expect_held(subject.records(5))


@check(Mode.CREATE, Mode.DELETE, needs_loss=True)
async def a_delete_that_took_effect_without_an_answer_is_told_as_done(subject: Subject) -> None:
    records = subject.records(5)
    await subject.send(Mode.CREATE, records)
    capabilities = await subject.capabilities(Mode.DELETE)
    subject.lose_next("applied")
    ids = [subject.id_of(record) for record in records]
    result = await BulkExecutor(subject.target, policy=SOON).delete_multiple(subject.table, ids, subject.options)
    await subject.expect_held([])
    if capabilities.can_reconcile:
        expect(result.is_success, f"deleted records are reported as {result.outcomes}: {result.errors[:1]}")


async def _created(subject: Subject, loss: Loss) -> BulkResult:
    """Create records through the executor while the first call for them is lost."""
    await subject.capabilities(Mode.CREATE)
    subject.lose_next(loss)
    return await BulkExecutor(subject.target, policy=SOON).create_multiple(
        subject.table, subject.records(5), subject.options
    )


async def _expect_known(subject: Subject, result: BulkResult) -> None:
    capabilities = await subject.capabilities(Mode.CREATE)
    if capabilities.can_reconcile or capabilities.is_idempotent:
        expect(result.is_success, f"the remote can be asked, and records are reported as {result.outcomes}")
    else:
        wrong = set(result.outcomes) - {Outcome.UNKNOWN, Outcome.CREATED}
        expect(not wrong, f"nobody can tell, and records are reported as {result.outcomes}")


@check(Mode.UPDATE)
async def records_of_one_key_have_one_identity(subject: Subject) -> None:
    await subject.capabilities(Mode.UPDATE)
    identity = subject.target.identifier(subject.table, Mode.UPDATE, BulkOptions()) or (lambda record: None)
    first, second = subject.make_record(1), subject.make_record(2)
    own = identity(first)
    hash(own)
    expect(own == identity(subject.change(first)), "a changed record has another identity")
    expect(own is None or own != identity(second), "two records have the same identity")
    expect(identity({}) is None, "a record without a key has an identity")


@check()
async def the_size_of_a_record_is_a_number_of_bytes(subject: Subject) -> None:
    size = subject.target.size(subject.make_record(1))
    expect(type(size) is int and size >= 0, f"the size is {size!r}")


@check()
async def a_table_that_is_not_there_is_a_target_error(subject: Subject) -> None:
    try:
        await subject.target.describe("no_such_table", Mode.CREATE, subject.options, subject.target.sources[0])
        batch = Batch("no_such_table", Mode.CREATE, [subject.make_record(1)], subject.options, "no-such-table")
        answer = await subject.target.send(batch, subject.target.sources[0])
    except TargetError:
        return
    expect(outcomes(answer.verdicts) == [Outcome.FAILED], f"outcomes are {outcomes(answer.verdicts)}")


@check()
async def options_of_another_target_are_refused(subject: Subject) -> None:
    class Foreign(BulkOptions):
        """Options that no target knows."""

    subject.target.check_options(subject.options)
    try:
        subject.target.check_options(Foreign())
    except SettingsInvalid:
        return
    raise Nonconformity("options of an unknown class were taken")


@check(Mode.CREATE)
async def a_cancelled_call_leaves_all_or_nothing_and_the_target_usable(subject: Subject) -> None:
    capabilities = await subject.capabilities(Mode.CREATE)
    expected = 0
    for turn, turns in enumerate(CANCELLED_AFTER_TURNS):
        records = [subject.make_record(turn * 100 + n) for n in range(20)]
        task = asyncio.ensure_future(
            subject.target.send(subject.batch(Mode.CREATE, records), subject.target.sources[0])
        )
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        if not task.cancelled():
            task.result()
        landed = {subject.id_of(record) for record in records} & set(await subject.read_back())
        expect(len(landed) in (0, 20) or not capabilities.is_atomic, f"{len(landed)} of 20 records were written")
        expected += len(landed)
    await subject.send(Mode.CREATE, [subject.make_record(9999)])
    expect(len(await subject.read_back()) == expected + 1, "a call that was cancelled wrote records later")


@check(Mode.CREATE)
async def a_refreshed_source_goes_on(subject: Subject) -> None:
    await subject.send(Mode.CREATE, [subject.make_record(1)])
    await subject.target.refresh(subject.target.sources[0])
    await subject.send(Mode.CREATE, [subject.make_record(2)])
    await subject.expect_held([subject.make_record(1), subject.make_record(2)])


@check(Mode.CREATE)
async def calls_at_once_do_not_disturb_each_other(subject: Subject) -> None:
    batches = [[subject.make_record(b * 100 + n) for n in range(20)] for b in range(subject.target.width)]
    await asyncio.gather(*(subject.send(Mode.CREATE, records) for records in batches))
    await subject.expect_held([record for records in batches for record in records])


@check()
async def a_target_can_be_closed_twice(subject: Subject) -> None:
    await subject.target.aclose()
    await subject.target.aclose()
