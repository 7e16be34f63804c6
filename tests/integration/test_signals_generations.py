"""A wait hears only its own generation: an old word never ends a later wait, and is never lost sight of."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from approvals import Calls, approvals, clean, history, papers, signals_of, states

from penstock.operations.model import Operation
from penstock.settings import Settings
from penstock.testing import Engine, engine

DONE, WAIT, FAILED = "Completed", "WaitingForCompletion", "Failed"


@pytest.fixture
def calls() -> Calls:
    return Calls()


@pytest.fixture
async def e(database_url: str, tmp_path: Path, calls: Calls) -> AsyncIterator[Engine]:
    small = Settings(chunk_rows=2)
    async with engine([approvals(calls)], url=database_url, tmp_path=tmp_path, settings=small) as opened:
        yield opened
        assert await clean(opened) == []


async def refused_once(e: Engine, repeats: int = 0) -> Operation:
    """One row that was refused by a signal, with repeats of it left over, and is being run again."""
    made = await e.create("approvals", papers(3))
    await e.work_until_idle()
    for _ in range(1 + repeats):
        await e.penstock.signals.fail(made.id, "paper-p1", "no")
    await e.work_until_idle()
    await e.advance(1)
    await e.operations.retry(made.id, rows=[1])
    await e.work_until_idle()
    return made


async def test_a_repeated_failure_does_not_kill_the_retry(e, calls):
    made = await refused_once(e, repeats=2)
    assert await states(e, made) == [WAIT] * 3
    assert calls["approval", 1] == 2
    assert calls["submit", 1] == 1
    assert [(s.key, s.outcome) for s in await e.penstock.signals.unclaimed(made.id)] == [("paper-p1", "failed")] * 2


async def test_a_new_signal_ends_the_new_wait_and_the_old_ones_stay_listed(e):
    made = await refused_once(e, repeats=1)
    receipt = await e.penstock.signals.complete(made.id, "paper-p1")
    assert (receipt.outcome, receipt.row) == ("delivered", 1)
    await e.work_until_idle()
    assert (await states(e, made))[0] == DONE
    assert [s.outcome for s in await e.penstock.signals.unclaimed(made.id)] == ["failed"]
    consumed = [(s.outcome, s.consumed_generation) for s in await signals_of(e, made) if s.consumed_at is not None]
    assert consumed == [("failed", 0), ("ok", 1)]


async def test_an_approval_from_before_an_edit_does_not_approve_the_edited_row(e):
    made = await e.create("approvals", papers(2))
    await e.work_until_idle()
    await e.penstock.signals.fail(made.id, "paper-p1", "wrong desk")
    await e.work_until_idle()
    await e.penstock.signals.complete(made.id, "paper-p1")
    await e.advance(1)
    await e.operations.edit_row(made.id, 1, {"desk": "back"})
    await e.work_until_idle()
    assert (await states(e, made))[0] == WAIT
    await e.penstock.signals.complete(made.id, "paper-p1")
    await e.work_until_idle()
    assert (await states(e, made))[0] == DONE


async def test_an_early_signal_sent_after_the_retry_was_accepted_is_heard(e):
    made = await e.create("approvals", papers(2))
    await e.work_until_idle()
    await e.penstock.signals.fail(made.id, "paper-p1", "no")
    await e.work_until_idle()
    await e.advance(1)
    await e.operations.retry(made.id, rows=[1])
    assert (await e.penstock.signals.complete(made.id, "paper-p1")).outcome == "stored"
    await e.work_until_idle()
    assert (await states(e, made))[0] == DONE


async def test_other_rows_of_the_operation_still_hear_what_came_before_the_retry(e):
    made = await e.create("approvals", papers(4))
    await e.penstock.signals.fail(made.id, "paper-p1", "no")
    await e.penstock.signals.complete(made.id, "paper-p3")
    await e.work_until_idle()
    assert await states(e, made) == [FAILED, WAIT, DONE, WAIT]
    await e.advance(1)
    await e.operations.retry(made.id, rows=[1])
    await e.penstock.signals.complete(made.id, "paper-p2")
    await e.work_until_idle()
    assert await states(e, made) == [WAIT, DONE, DONE, WAIT]


@pytest.mark.covers("SM-075")
async def test_the_history_tells_of_each_generation_by_what_it_was_ended(e):
    made = await refused_once(e)
    await e.penstock.signals.fail(made.id, "paper-p1", "still no")
    await e.work_until_idle()
    await e.advance(1)
    await e.operations.retry(made.id, rows=[1])
    await e.work_until_idle()
    lines = [(h.generation, h.event, h.error_type, h.message) for h in await history(e, made, row=1)]
    assert lines == [(0, "retried", "SignalFailure", "no"), (1, "retried", "SignalFailure", "still no")]
