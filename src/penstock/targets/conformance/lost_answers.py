"""What must become of calls that are not answered: whether they took effect, did not, or do so late."""

from __future__ import annotations

from penstock.targets.conformance.subject import Loss, Subject, check, expect
from penstock.targets.executor import BulkExecutor
from penstock.targets.model import Mode, Outcome, TargetError
from penstock.targets.results import BulkResult
from penstock.targets.rules.retry import RetryPolicy

SOON = RetryPolicy(wait_first_s=0.01, jitter=0.0)


@check(Mode.CREATE)
async def an_answer_that_is_lost_is_an_error_that_may_have_been_applied(subject: Subject) -> None:
    if subject.lose is None:
        return
    await subject.capabilities(Mode.CREATE)
    subject.lose("applied")
    try:
        await subject.target.send(subject.batch(Mode.CREATE, subject.records(5)), subject.target.sources[0])
    except TargetError as error:
        expect(error.maybe_applied, f"the call took effect, and its error says that it did not: {error}")
    else:
        expect(False, "a call that was not answered succeeded")
    await subject.expect_held(subject.records(5))


@check(Mode.CREATE)
async def what_took_effect_without_an_answer_is_not_created_twice(subject: Subject) -> None:
    result = await _created(subject, "applied")
    if result is not None:
        await subject.expect_held(subject.records(5))
        await _expect_known(subject, result)


@check(Mode.CREATE)
async def what_never_arrived_is_created_after_all_where_that_can_be_told(subject: Subject) -> None:
    result = await _created(subject, "never")
    if result is not None:
        await _expect_known(subject, result)
        await subject.expect_held(subject.records(5) if result.success_count else [])


@check(Mode.CREATE)
async def what_takes_effect_late_is_never_told_as_failed(subject: Subject) -> None:
    result = await _created(subject, "late")
    if result is not None:
        expect(not result.failure_count, f"records are reported as {result.outcomes} that were created late")
        await _expect_known(subject, result)
        if result.success_count:
            await subject.expect_held(subject.records(5))


@check(Mode.CREATE, Mode.DELETE)
async def a_delete_that_took_effect_without_an_answer_is_told_as_done(subject: Subject) -> None:
    if subject.lose is None:
        return
    records = subject.records(5)
    await subject.send(Mode.CREATE, records)
    capabilities = await subject.capabilities(Mode.DELETE)
    subject.lose("applied")
    ids = [subject.id_of(record) for record in records]
    result = await _executor(subject).delete_multiple(subject.table, ids, subject.options)
    await subject.expect_held([])
    if capabilities.can_reconcile:
        expect(result.is_success, f"deleted records are reported as {result.outcomes}: {result.errors[:1]}")


async def _created(subject: Subject, loss: Loss) -> BulkResult | None:
    """Create records through the executor while the first call for them is lost; None when nothing can be lost."""
    if subject.lose is None:
        return None
    await subject.capabilities(Mode.CREATE)
    subject.lose(loss)
    return await _executor(subject).create_multiple(subject.table, subject.records(5), subject.options)


async def _expect_known(subject: Subject, result: BulkResult) -> None:
    capabilities = await subject.capabilities(Mode.CREATE)
    if capabilities.can_reconcile or capabilities.is_idempotent:
        expect(result.is_success, f"the remote can be asked, and records are reported as {result.outcomes}")
    else:
        wrong = set(result.outcomes) - {Outcome.UNKNOWN, Outcome.CREATED}
        expect(not wrong, f"nobody can tell, and records are reported as {result.outcomes}")


def _executor(subject: Subject) -> BulkExecutor:
    return BulkExecutor(subject.target, policy=SOON)
