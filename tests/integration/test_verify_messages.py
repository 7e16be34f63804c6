"""`verify` finds nothing in the signals and requests that the engine handled, and everything it would never leave."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from approvals import Calls, approvals, clean, papers
from sqlalchemy import delete, insert, select, update
from sqlalchemy.sql import Executable

from penstock import failpoints
from penstock.operations.model import Operation
from penstock.operations.tables import chunks, history, operations, requests, row_records, signals, workers
from penstock.settings import Settings
from penstock.testing import Engine, engine

SMALL = Settings(chunk_rows=2)


@pytest.fixture
async def e(database_url: str, tmp_path: Path) -> AsyncIterator[Engine]:
    async with engine([approvals(Calls())], url=database_url, tmp_path=tmp_path, settings=SMALL) as opened:
        yield opened


@pytest.fixture
async def made(e: Engine) -> Operation:
    """Row 1 approved, row 2 refused and then approved in its second generation, row 3 refused, rows 4 and 5 wait."""
    made = await e.create("approvals", papers(5))
    await e.work_until_idle()
    await e.penstock.signals.complete(made.id, "paper-p1")
    for row in (2, 3):
        await e.penstock.signals.fail(made.id, f"paper-p{row}", "no")
    await e.work_until_idle()
    await e.advance(1)
    await e.operations.retry(made.id, rows=[2])
    await e.work_until_idle()
    await e.penstock.signals.complete(made.id, "paper-p2")
    await e.work_until_idle()
    return made


async def spoil(e: Engine, *statements: Executable) -> None:
    async def write(tx: Any) -> None:
        for statement in statements:
            await tx.execute(statement)

    await e.penstock.db.transaction(write)


async def test_handled_mail_is_clean_while_rows_wait_and_when_all_is_over(e, made):
    assert await clean(e) == []
    await e.advance(60)
    await e.work_until_idle()
    assert (await e.operations.get(made.id)).is_settled
    assert await clean(e) == []


OF_ROW_1 = signals.c.consumed_row == 1
STEP = row_records.c.step == 1

FAULTS: list[tuple[Executable, str, str]] = [
    (
        delete(signals).where(OF_ROW_1),
        "ended_waits_have_signals",
        "row 1: is Completed at step 1, which a signal must have ended, but it took none",
    ),
    (
        update(signals).where(signals.c.consumed_row == 3).values(consumed_row=None, consumed_at=None),
        "ended_waits_have_signals",
        "row 3: is Failed at step 1, which a signal must have ended, but it took none",
    ),
    (
        update(signals).where(OF_ROW_1).values(outcome="failed"),
        "consumed_signals_ended_their_wait",
        "(failed) at step 1, which is Completed",
    ),
    (
        update(signals).where(OF_ROW_1).values(consumed_row=4),
        "consumed_signals_ended_their_wait",
        "row 4: took signal 1 (ok) at step 1, which is WaitingForCompletion",
    ),
    (
        update(signals).where(OF_ROW_1).values(key="paper-p9"),
        "consumed_signals_ended_their_wait",
        "waited for 'paper-p1' at step 1, but took a signal for 'paper-p9'",
    ),
    (
        update(signals).where(signals.c.consumed_generation == 1).values(accepted_at=1),
        "consumed_signals_ended_their_wait",
        "at step 1, which was there before its generation began",
    ),
    (
        update(signals).where(OF_ROW_1).values(consumed_step=0),
        "consumed_signals_ended_their_wait",
        "was taken at step 0, but there is no record of it",
    ),
    (
        update(signals).where(OF_ROW_1).values(consumed_generation=3),
        "consumed_signals_ended_their_wait",
        "was taken in generation 3, which the row has not been through",
    ),
    (
        delete(row_records).where(row_records.c.row == 1, STEP),
        "consumed_signals_ended_their_wait",
        "row 1: signal 1 was taken at step 1, but there is no record of it",
    ),
    (
        update(signals).where(OF_ROW_1).values(consumed_row=99),
        "no_stray_records",
        "row 99: signal 1 was taken by a row that does not exist",
    ),
    (
        delete(history).where(history.c.row == 2),
        "generations_have_history",
        "row 2: is in generation 1, its history tells 0 times of 0's end",
    ),
    (
        update(history).where(history.c.row == 2).values(generation=5),
        "generations_have_history",
        "row 2: is in generation 1, its history tells of the end of 5",
    ),
    (
        update(history).where(history.c.row == 2).values(row=1),
        "generations_have_history",
        "row 1: is in generation 0, its history tells of the end of 0",
    ),
    (
        update(requests).values(outcome=None),
        "requests_have_outcomes",
        "row 2: request 1 was left for a closed chunk and has no outcome",
    ),
    (
        update(requests).values(generation=1),
        "requests_have_outcomes",
        "row 2: is in generation 1 still, but request 1 was applied",
    ),
    (update(requests).values(row=5), "requests_have_outcomes", "row 5: request 1 is for a row of another chunk"),
    (update(requests).values(chunk=999_999), "no_stray_records", "request 1 is for chunk 999999"),
    (
        update(operations).values(suspect_row=3),
        "reading_fields_are_consistent",
        "its file is read, but row 3 of it is still suspected",
    ),
    (
        update(chunks).where(chunks.c.first_row == 5).values(is_raw=1),
        "reading_fields_are_consistent",
        "it is Running, but 1 chunks are not validated",
    ),
]


@pytest.mark.parametrize(
    "statement, rule, sentence", FAULTS, ids=[f"{rule}-{n}" for n, (_, rule, _) in enumerate(FAULTS)]
)
async def test_mail_that_was_tampered_with_is_noticed(e, made, statement, rule, sentence):
    first_signal, first_request = await first_ids(e)
    sentence = sentence.replace("signal 1 ", f"signal {first_signal} ").replace(
        "request 1 ", f"request {first_request} "
    )
    await spoil(e, statement)
    told = [str(d) for d in (await e.operations.verify(made.id)).differences if d.rule == rule]
    assert any(sentence in text for text in told), await clean(e)


async def first_ids(e: Engine) -> tuple[int, int]:
    async with e.penstock.db.read() as tx:
        signal = (await tx.execute(select(signals.c.id).order_by(signals.c.id).limit(1))).scalar_one()
        request = (await tx.execute(select(requests.c.id).order_by(requests.c.id).limit(1))).scalar_one()
    return signal, request


async def test_a_generation_told_of_twice_is_noticed(e, made):
    async with e.penstock.db.read() as tx:
        line = (await tx.execute(select(history).where(history.c.row == 2))).one()._mapping
    again = {name: value for name, value in line.items() if name != "id"}
    await spoil(e, insert(history).values(again))
    (found,) = await clean(e)
    assert "row 2: is in generation 1, its history tells 2 times of 0's end" in found


async def store_quietly(e: Engine, made: Operation, key: str) -> None:
    def die(point: str) -> None:
        if point == "signal:after":
            raise ConnectionError

    with failpoints.armed(die), pytest.raises(ConnectionError):
        await e.penstock.signals.complete(made.id, key)


async def test_a_signal_overlooked_for_longer_than_two_sweeps_is_noticed_and_not_before(e, made):
    await e.advance(20)
    await store_quietly(e, made, "paper-p4")
    await e.advance(10)
    assert await clean(e) == []
    await e.advance(1)
    (found,) = await clean(e)
    assert "row 4: waits at step 1 for 'paper-p4', but signal" in found
    assert "has long been there" in found


async def test_a_stored_signal_is_no_fault_while_nobody_is_there_to_find_it(e, made):
    await store_quietly(e, made, "paper-p4")
    await e.advance(20)
    await spoil(e, delete(workers))
    assert await clean(e) == []


async def test_a_stored_signal_is_no_fault_while_the_operation_is_paused(e, made):
    await e.advance(20)
    await e.operations.pause(made.id)
    await e.penstock.signals.complete(made.id, "paper-p4")
    await e.advance(20)
    assert await clean(e) == []


async def test_a_signal_of_an_earlier_generation_is_no_fault(e, made):
    await e.penstock.signals.fail(made.id, "paper-p3", "again")
    await e.advance(1)
    await e.operations.retry(made.id, rows=[3])
    await e.work_until_idle()
    await e.advance(20)
    assert await clean(e) == []


async def test_mail_of_an_operation_that_does_not_exist_is_noticed(e, made):
    await spoil(e, delete(operations), delete(chunks), delete(row_records))
    told = await clean(e)
    for what in ("signal", "request"):
        assert any(text.lstrip(": ").startswith(what) for text in told), told
