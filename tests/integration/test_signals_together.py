"""Signals that come at once are taken in together, and each gets its own answer."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from approvals import Calls, approvals, clean, papers, signals_of, states

from penstock import failpoints
from penstock.db.database import CommitUnknown
from penstock.errors import NoSuchWait
from penstock.operations.model import Operation
from penstock.operations.posting import Receipt
from penstock.settings import Settings
from penstock.testing import Engine, engine

SMALL = Settings(chunk_rows=2)
WAIT, DONE = "WaitingForCompletion", "Completed"


@pytest.fixture
async def e(database_url: str, tmp_path: Path) -> AsyncIterator[Engine]:
    async with engine([approvals(Calls())], url=database_url, tmp_path=tmp_path, settings=SMALL) as opened:
        yield opened
        assert await clean(opened) == []


async def parked(e: Engine, rows: int) -> Operation:
    made = await e.create("approvals", papers(rows))
    await e.work_until_idle()
    return made


async def test_signals_for_many_chunks_wake_them_all(e):
    made = await parked(e, 9)
    post = e.penstock.signals.complete
    receipts = await asyncio.gather(*(post(made.id, f"paper-p{n}") for n in range(1, 10)))
    assert [(receipt.outcome, receipt.row) for receipt in receipts] == [("delivered", n) for n in range(1, 10)]
    await e.work_until_idle()
    assert await states(e, made) == [DONE] * 9


async def test_each_signal_gets_its_own_answer(e):
    made, over = await parked(e, 3), await parked(e, 1)
    await e.operations.cancel(over.id)
    post = e.penstock.signals.complete
    answers = await asyncio.gather(
        post(made.id, "paper-p1"),
        post(made.id, "nonsense"),
        post(made.id, "paper-p9"),
        post("no such operation", "paper-p1"),
        post(made.id, "paper-p2", id="twice"),
        post(over.id, "paper-p1"),
        post(made.id, "paper-p2", id="twice"),
        return_exceptions=True,
    )
    kinds = [answer.outcome if isinstance(answer, Receipt) else type(answer) for answer in answers]
    assert kinds == ["delivered", NoSuchWait, "stored", NoSuchWait, "delivered", NoSuchWait, "duplicate"]
    await e.work_until_idle()
    assert await states(e, made) == [DONE, DONE, WAIT]


async def test_signals_whose_commit_was_not_answered_are_stored_once(e):
    made = await parked(e, 4)
    lost: list[str] = []

    def lose_the_answer(point: str) -> None:
        if point == "signal:after" and not lost:
            lost.append(point)
            raise CommitUnknown("the connection died at COMMIT")

    post = e.penstock.signals.complete
    with failpoints.armed(lose_the_answer):
        await asyncio.gather(*(post(made.id, f"paper-p{n}") for n in range(1, 5)))
    assert lost
    assert len(await signals_of(e, made)) == 4
    await e.work_until_idle()
    assert await states(e, made) == [DONE] * 4


async def test_a_caller_that_is_cancelled_leaves_nobody_waiting(e):
    made = await parked(e, 6)
    calls = [asyncio.create_task(e.penstock.signals.complete(made.id, f"paper-p{n}")) for n in range(1, 7)]
    await asyncio.sleep(0)
    calls[0].cancel()
    answers = await asyncio.gather(*calls, return_exceptions=True)
    assert isinstance(answers[0], asyncio.CancelledError)
    assert [answer.outcome for answer in answers[1:] if isinstance(answer, Receipt)] == ["delivered"] * 5
    await e.work_until_idle()
    assert (await states(e, made))[1:] == [DONE] * 5
