"""What must become of records: verdicts, order, all or nothing, sending again."""

from __future__ import annotations

from penstock.targets.conformance.subject import Subject, check, expect, outcomes
from penstock.targets.model import Mode, Outcome, TargetError


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
