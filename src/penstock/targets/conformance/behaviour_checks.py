"""How a target must bear itself: identities, sizes, errors, cancelling, refreshing, calls at once."""

from __future__ import annotations

import asyncio

from penstock.errors import SettingsInvalid
from penstock.targets.conformance.subject import Nonconformity, Subject, check, expect, outcomes
from penstock.targets.model import BulkOptions, Mode, Outcome, TargetError
from penstock.targets.target import Batch

CANCELLED_AFTER_TURNS = (0, 1, 2, 3, 5, 8, 13, 21, 34)
"""After how many turns of the event loop a call is cancelled."""


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
