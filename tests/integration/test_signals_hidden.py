"""No signal hides another: however many lie there that no row hears, the one that a row waits for is found."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from itertools import count as counter
from pathlib import Path
from typing import Any

import pytest
from approvals import Calls, approvals, chunks_of, clean, papers, signals_of, states
from sqlalchemy import insert, update

from penstock.operations.chunk.owned import GIVEN_UP
from penstock.operations.inbox import lookup, settling
from penstock.operations.model import Operation
from penstock.operations.operation_ids import number_of
from penstock.operations.tables import chunks, signals
from penstock.settings import Settings
from penstock.testing import Engine, engine

SHARED = "desk-{row.desk}"
SMALL = Settings(chunk_rows=2)
DONE, WAIT, FAILED = "Completed", "WaitingForCompletion", "Failed"
MANY = 1100
SECOND = 1_000_000
TOKENS = counter()


@pytest.fixture
async def e(database_url: str, tmp_path: Path) -> AsyncIterator[Engine]:
    async with engine([approvals(Calls())], url=database_url, tmp_path=tmp_path, settings=SMALL) as opened:
        yield opened
        assert await clean(opened) == []


@pytest.fixture
async def shared(database_url: str, tmp_path: Path) -> AsyncIterator[Engine]:
    kind = approvals(Calls(), key=SHARED)
    async with engine([kind], url=database_url, tmp_path=tmp_path, settings=SMALL) as opened:
        yield opened
        assert await clean(opened) == []


async def parked(e: Engine, rows: int) -> Operation:
    made = await e.create("approvals", papers(rows))
    await e.work_until_idle()
    return made


async def refused_and_retried(e: Engine, made: Operation, key: str, row: int) -> None:
    """A row that a signal has failed runs again, and waits in its next generation."""
    await e.penstock.signals.fail(made.id, key, "no", row=row)
    await e.work_until_idle()
    await e.advance(1)
    await e.operations.retry(made.id, rows=[row])
    await e.work_until_idle()
    assert (await states(e, made))[row - 1] == WAIT


async def plant(e: Engine, made: Operation, keys: Iterable[str], *, at: int, **given: Any) -> None:
    """Signals that were stored at some time by callers who died before they woke anybody."""

    async def store(tx: Any) -> None:
        word = {"operation": await number_of(tx, made.id), "outcome": "ok", "actor": "ana", "accepted_at": at, **given}
        await tx.execute(insert(signals), [{**word, "key": key, "token": f"planted-{next(TOKENS)}"} for key in keys])

    await e.penstock.db.transaction(store)


async def test_repeats_of_an_earlier_generation_hide_no_later_signal(e):
    made = await parked(e, 2)
    await refused_and_retried(e, made, "paper-p1", row=1)
    await plant(e, made, ["paper-p1"] * MANY, at=e.clock.now_us() - SECOND)
    receipts = [await e.penstock.signals.complete(made.id, f"paper-p{n}") for n in (1, 2)]
    assert [(receipt.outcome, receipt.row) for receipt in receipts] == [("delivered", 1), ("delivered", 2)]
    await e.work_until_idle()
    assert await states(e, made) == [DONE, DONE]


async def test_rows_that_signals_failed_twice_can_be_approved_after_a_retry(database_url, tmp_path):
    count = MANY // 2
    keys = [f"paper-p{n}" for n in range(1, count + 1)]
    async with engine([approvals(Calls())], url=database_url, tmp_path=tmp_path) as e:
        made = await parked(e, count)
        await plant(e, made, keys * 3, at=e.clock.now_us(), outcome="failed", message="no")
        await settling.sweep(e.penstock.db)
        await e.work_until_idle()
        assert await states(e, made) == [FAILED] * count
        await e.advance(1)
        await e.operations.retry(made.id)
        await e.work_until_idle()
        await e.penstock.signals.complete(made.id, keys[-1])
        await e.work_until_idle()
        assert await states(e, made) == [WAIT] * (count - 1) + [DONE]
        assert await clean(e) == []


async def test_signals_for_rows_that_do_not_wait_hide_none_for_one_that_does(shared):
    made = await parked(shared, 2)
    await plant(shared, made, ["desk-front"] * MANY, at=shared.clock.now_us(), row=7)
    await shared.penstock.signals.complete(made.id, "desk-front", payload="for any")
    await shared.work_until_idle()
    assert await states(shared, made) == [DONE, WAIT]


async def two_generations(shared: Engine) -> Operation:
    """Row 1 hears all of many signals, row 2 only the last of them; nobody was woken."""
    made = await parked(shared, 2)
    before = shared.clock.now_us()
    await refused_and_retried(shared, made, "desk-front", row=2)
    await plant(shared, made, ["desk-front"] * MANY, at=before)
    await plant(shared, made, ["desk-front"], at=shared.clock.now_us())
    return made


async def test_an_owner_looks_past_what_only_its_other_rows_hear(shared):
    made = await two_generations(shared)
    await settling.sweep(shared.penstock.db)
    await shared.work_until_idle()
    assert await states(shared, made) == [DONE, DONE]


@pytest.mark.covers("I-22")
async def test_no_row_times_out_or_is_cancelled_beside_its_signal_however_many_lie_before_it(shared):
    late, stopped = await two_generations(shared), await two_generations(shared)
    await shared.advance(61)
    await shared.operations.cancel(stopped.id)
    await shared.work_until_idle()
    assert await states(shared, late) == [DONE, DONE]
    taken = [s.consumed_row for s in await signals_of(shared, stopped) if s.consumed_row is not None]
    assert sorted(taken) == [1, 2, 2]


async def test_signals_that_lower_rows_of_other_chunks_will_take_hide_none_for_a_higher_row(shared):
    made = await parked(shared, 6)
    await plant(shared, made, ["desk-front"] * 6, at=shared.clock.now_us())
    await shared.penstock.signals.complete(made.id, "desk-front", row=6)  # recalls the chunk of the last row
    await shared.work_until_idle()
    assert await states(shared, made) == [DONE] * 6


@pytest.mark.covers("SG-006")
async def test_a_receipt_names_a_row_behind_a_crowd_that_waits_for_the_same_key(shared):
    made = await parked(shared, 120)
    receipt = await shared.penstock.signals.complete(made.id, "desk-front", row=119)
    assert (receipt.outcome, receipt.row) == ("delivered", 119)


# --- the sweep


async def mails(e: Engine, made: Operation) -> list[int]:
    return [chunk.message_count for chunk in await chunks_of(e, made)]


async def test_a_paused_operation_gets_no_mail_from_sweeps_and_hears_its_signals_when_it_goes_on(e):
    made = await parked(e, 2)
    await e.operations.pause(made.id)
    await plant(e, made, ["paper-p1"], at=e.clock.now_us())
    before = await mails(e, made)
    assert await settling.sweep(e.penstock.db) == 0
    assert await mails(e, made) == before
    await e.operations.resume(made.id)
    await settling.sweep(e.penstock.db)
    await e.work_until_idle()
    assert await states(e, made) == [DONE, WAIT]


async def abandon(e: Engine, made: Operation, owner: str) -> None:
    """Leave the operation's chunks, due now, with an owner who is not there."""

    async def leave(tx: Any) -> None:
        mine = chunks.c.operation == await number_of(tx, made.id)
        await tx.execute(update(chunks).where(mine).values(owner=owner, due_at=e.penstock.db.now()))

    await e.penstock.db.transaction(leave)


@pytest.mark.parametrize("owner", ["a-worker-without-a-record", GIVEN_UP])
async def test_the_chunk_of_a_dead_owner_gets_no_mail_from_sweeps_and_hears_its_signals_when_it_is_claimed(e, owner):
    made = await parked(e, 2)
    await abandon(e, made, owner)
    await plant(e, made, ["paper-p1"], at=e.clock.now_us())
    before = await mails(e, made)
    for _ in range(3):
        assert await settling.sweep(e.penstock.db) == 1
    assert await mails(e, made) == before
    await e.work_until_idle()
    assert await states(e, made) == [DONE, WAIT]


async def test_a_signal_leaves_mail_for_an_owner_who_seems_dead_because_it_may_come_back(e):
    made = await parked(e, 2)
    await abandon(e, made, "a-worker-without-a-record")
    [before] = await mails(e, made)
    await e.penstock.signals.complete(made.id, "paper-p1")
    assert await mails(e, made) == [before + 1]
    await e.work_until_idle()
    assert await states(e, made) == [DONE, WAIT]


async def test_a_sweep_finds_every_key_however_many_there_are(e, monkeypatch):
    monkeypatch.setattr(lookup, "KEYS_MAX", 3)
    one, other = await parked(e, 7), await parked(e, 2)
    await plant(e, one, [f"paper-q{n}" for n in range(4)], at=e.clock.now_us())  # nobody waits for these
    for made, rows in ((one, 7), (other, 2)):
        await plant(e, made, [f"paper-p{n}" for n in range(1, rows + 1)], at=e.clock.now_us())
    await settling.sweep(e.penstock.db)
    await e.work_until_idle()
    assert (await states(e, one), await states(e, other)) == ([DONE] * 7, [DONE] * 2)


async def test_a_chunk_that_is_due_and_free_is_left_alone_and_looked_at_when_it_is_claimed(e):
    made = await parked(e, 2)
    first = await e.penstock.signals.complete(made.id, "paper-p1")
    before = await mails(e, made)
    second = await e.penstock.signals.complete(made.id, "paper-p2")
    assert (first.outcome, second.outcome, await mails(e, made)) == ("delivered", "delivered", before)
    await e.work_until_idle()
    assert await states(e, made) == [DONE, DONE]
