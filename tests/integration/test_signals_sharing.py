"""Rows that share a key are served in row order, one signal each, wherever their chunks are."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from approvals import Calls, Paper, approvals, clean, papers, requests_of, signals_of, states, two_engines
from sqlalchemy import insert
from stored import rows_of

from penstock import Context, Pipeline, failpoints, operation, step
from penstock.errors import DeclarationError
from penstock.operations.model import Operation
from penstock.operations.queries import number_of
from penstock.operations.running import mailroom
from penstock.operations.tables import signals
from penstock.settings import Settings
from penstock.testing import Engine, engine

SHARED = "desk-{row.desk}"
SMALL = Settings(chunk_rows=2)
DONE, WAIT = "Completed", "WaitingForCompletion"


@pytest.fixture
def calls() -> Calls:
    return Calls()


@pytest.fixture
async def e(database_url: str, tmp_path: Path, calls: Calls) -> AsyncIterator[Engine]:
    kind = approvals(calls, key=SHARED)
    async with engine([kind], url=database_url, tmp_path=tmp_path, settings=SMALL) as opened:
        yield opened
        assert await clean(opened) == []


async def parked(e: Engine, rows: int) -> Operation:
    made = await e.create("approvals", papers(rows))
    await e.work_until_idle()
    return made


@pytest.mark.covers("SG-008", "SG-013", "I-23")
async def test_each_signal_serves_the_next_row_across_chunks(e):
    made = await parked(e, 5)
    for served in range(1, 6):
        receipt = await e.penstock.signals.complete(made.id, "desk-front", payload=served)
        assert (receipt.outcome, receipt.row) == ("delivered", served)
        await e.work_until_idle()
        assert await states(e, made) == [DONE] * served + [WAIT] * (5 - served)
    assert [row.outputs[1] for row in await rows_of(e.penstock.db, made.id)] == [1, 2, 3, 4, 5]


@pytest.mark.covers("SG-013")
async def test_signals_sent_together_serve_as_many_rows_oldest_first(e):
    made = await parked(e, 5)
    for n in (1, 2, 3):
        await e.penstock.signals.complete(made.id, "desk-front", payload=n)
    await e.work_until_idle()
    assert await states(e, made) == [DONE] * 3 + [WAIT] * 2
    assert [row.outputs[1] for row in (await rows_of(e.penstock.db, made.id))[:3]] == [1, 2, 3]


@pytest.mark.covers("SG-004")
async def test_receipts_of_signals_sent_together_name_the_rows_that_take_them(e):
    made = await parked(e, 3)
    receipts = [await e.penstock.signals.complete(made.id, "desk-front", payload=n) for n in (1, 2)]
    await e.work_until_idle()
    taken = {s.token: s.consumed_row for s in await signals_of(e, made)}
    assert [receipt.row for receipt in receipts] == [taken[receipt.id] for receipt in receipts] == [1, 2]


@pytest.mark.covers("SG-013", "I-20")
async def test_early_signals_lie_ready_for_rows_that_wait_later(e):
    made = await e.create("approvals", papers(5))
    for n in (1, 2, 3):
        await e.penstock.signals.complete(made.id, "desk-front", payload=n)
    await e.work_until_idle()
    assert sorted(await states(e, made)) == sorted([DONE] * 3 + [WAIT] * 2)
    assert await e.penstock.signals.unclaimed(made.id) == []


@pytest.mark.covers("SG-006")
async def test_a_signal_for_one_row_passes_by_the_rows_before_it(e):
    made = await parked(e, 5)
    receipt = await e.penstock.signals.complete(made.id, "desk-front", row=4, payload="for four")
    assert (receipt.outcome, receipt.row) == ("delivered", 4)
    await e.work_until_idle()
    assert await states(e, made) == [WAIT] * 3 + [DONE, WAIT]
    await e.penstock.signals.complete(made.id, f"{made.id}:desk-front:2")
    await e.work_until_idle()
    assert await states(e, made) == [WAIT, DONE, WAIT, DONE, WAIT]


async def test_a_signal_for_a_row_that_does_not_wait_is_stored_and_says_so(e):
    made = await parked(e, 2)
    await e.penstock.signals.complete(made.id, "desk-front", row=1)
    await e.work_until_idle()
    receipt = await e.penstock.signals.complete(made.id, "desk-front", row=1)
    await e.work_until_idle()
    assert (receipt.outcome, receipt.row) == ("stored", None)
    assert await states(e, made) == [DONE, WAIT]


@pytest.mark.covers("SG-013")
async def test_a_failure_signal_serves_one_row_like_any_other(e):
    made = await parked(e, 3)
    await e.penstock.signals.fail(made.id, "desk-front", "no")
    await e.penstock.signals.complete(made.id, "desk-front")
    await e.work_until_idle()
    assert await states(e, made) == ["Failed", DONE, WAIT]


@pytest.mark.covers("SG-013", "I-21")
async def test_a_signal_left_over_by_a_row_that_timed_out_goes_to_the_next_row(e):
    made = await parked(e, 2)
    await e.advance(61)
    await e.work_until_idle()
    assert (await e.operations.get(made.id)).timed_out_rows == 2
    retry = await e.operations.retry(made.id)
    assert retry.submitted == 2
    await e.advance(1)
    await e.penstock.signals.complete(made.id, "desk-front")
    await e.work_until_idle()
    assert await states(e, made) == [DONE, WAIT]


@pytest.mark.covers("SG-013", "SG-026")
async def test_two_workers_serve_rows_of_one_key_in_row_order(database_url, tmp_path):
    kind = approvals(Calls(), key=SHARED)
    async with two_engines(kind, url=database_url, folder=tmp_path, settings=SMALL) as (one, other):
        made = await one.create(kind, papers(6))
        for e in (one, other, one, other):
            await e.worker.tick()
        for _ in range(3):
            await one.work_until_idle()
            await other.work_until_idle()
        for served in range(1, 7):
            await (one if served % 2 else other).penstock.signals.complete(made.id, "desk-front")
            await (other if served % 2 else one).work_until_idle()
            assert await states(one, made) == [DONE] * served + [WAIT] * (6 - served)
        assert (await one.operations.get(made.id)).status == "Completed"
        assert await clean(one) == []


async def test_row_order_holds_beside_a_crowd_that_waits_on_another_key(database_url, tmp_path):
    kind = approvals(Calls(), key=SHARED)
    crowd = [{"code": f"c{n}", "desk": "crowd"} for n in range(1, 151)]
    rows = [*crowd, {"code": "low", "desk": "rare"}, {"code": "filler", "desk": "none"}]
    rows += [{"code": "high", "desk": "rare"}, {"code": "also", "desk": "crowd"}]
    async with engine([kind], url=database_url, tmp_path=tmp_path, settings=SMALL) as e:
        made = await e.create(kind, rows)
        await e.work_until_idle()
        await e.penstock.signals.complete(made.id, "desk-crowd", row=154)  # recalls the chunk of the high row
        await _store_quietly(e, made, "desk-rare")
        await e.work_until_idle()
        await mailroom.sweep(e.penstock.db)
        await e.work_until_idle()
        by_code = {row.row_key: row.state for row in (await e.operations.rows(made.id, limit=1000)).items}
        assert (by_code["low"], by_code["high"]) == (DONE, WAIT)
        assert await clean(e) == []


async def _store_quietly(e: Engine, made: Operation, key: str) -> None:
    """Store a signal as a caller that dies before waking anybody."""

    def die(point: str) -> None:
        if point == "signal:after":
            raise ConnectionError

    with failpoints.armed(die), pytest.raises(ConnectionError):
        await e.penstock.signals.complete(made.id, key)


@pytest.mark.covers("I-19", "I-47")
async def test_a_signal_is_heard_however_many_others_lie_unclaimed(database_url, tmp_path):
    @operation("many")
    class Many(Pipeline[Paper]):
        @step.signal(key="{row.code}", timeout=60)
        async def ask(self, paper: Paper, ctx: Context) -> None: ...

    async with engine([Many], url=database_url, tmp_path=tmp_path) as e:
        made = await e.create(Many, papers(150))
        await e.work_until_idle()
        await _plant_unclaimed(e, made, 1100)
        await e.penstock.signals.complete(made.id, "p7", payload="heard")
        await e.work_until_idle()
        assert (await e.operations.row(made.id, 7)).state == DONE


async def _plant_unclaimed(e: Engine, made: Operation, count: int) -> None:
    async def plant(tx: Any) -> None:
        number = await number_of(tx, made.id)
        now = e.clock.now_us()
        await tx.execute(
            insert(signals),
            [
                {"token": f"t{n}", "operation": number, "key": f"nobody-{n}", "outcome": "ok",
                 "actor": "ana", "accepted_at": now}
                for n in range(count)
            ],
        )  # fmt: skip

    await e.penstock.db.transaction(plant)


async def test_a_settlement_that_was_overtaken_is_made_again_before_the_chunk_is_let_go(e, monkeypatch):
    """Another owner takes our signal between our look and our write: all of it is rolled back, requests too."""
    made = await parked(e, 4)
    await e.penstock.signals.fail(made.id, "desk-front", "no")
    await e.work_until_idle()
    await e.advance(1)
    await e.operations.retry(made.id, rows=[1])
    await e.penstock.signals.complete(made.id, "desk-front", row=2)
    consume, times = mailroom._consume, []

    async def overtaken_once(*args: Any) -> None:
        times.append(len(times))
        if len(times) == 1:
            raise mailroom.Overtaken
        await consume(*args)

    monkeypatch.setattr(mailroom, "_consume", overtaken_once)
    await e.work_until_idle()
    assert [request.outcome for request in await requests_of(e, made)] == ["applied to 1 rows"]
    assert (await states(e, made))[:2] == [WAIT, DONE]


@pytest.mark.covers("SG-009")
def test_two_signalled_steps_with_the_same_key_are_refused_when_declared():
    class Twice(Pipeline[Paper]):
        @step.signal(key="{row.code}", timeout=1)
        async def one(self, paper: Paper, ctx: Context) -> None: ...

        @step.signal(key="{row.code}", timeout=1)
        async def two(self, paper: Paper, ctx: Context) -> None: ...

    with pytest.raises(DeclarationError, match="two: has the same signal key as 'one'"):
        operation("twice")(Twice)


@pytest.mark.covers("SG-009")
async def test_a_key_may_be_computed_by_a_method(database_url, tmp_path):
    @operation("computed")
    class Computed(Pipeline[Paper]):
        @step.signal(timeout=60)
        async def ask(self, paper: Paper, ctx: Context) -> None: ...

        @ask.key
        def ask_key(self, paper: Paper, ctx: Context) -> str:
            return f"{paper.desk}/{ctx.row_number}"

    async with engine([Computed], url=database_url, tmp_path=tmp_path) as e:
        made = await e.create(Computed, papers(2))
        await e.work_until_idle()
        assert [w.key for w in await e.penstock.signals.waiting(made.id)] == ["front/1", "front/2"]
        await e.penstock.signals.complete(made.id, "front/2")
        await e.work_until_idle()
        assert await states(e, made) == [WAIT, DONE]
        assert await clean(e) == []


async def test_a_key_that_looks_like_a_scoped_one_is_still_a_key(database_url, tmp_path):
    @operation("own-scope")
    class OwnScope(Pipeline[Paper]):
        @step.signal(key="{operation_id}:{row.code}:{row_number}", timeout=60)
        async def ask(self, paper: Paper, ctx: Context) -> None: ...

    async with engine([OwnScope], url=database_url, tmp_path=tmp_path) as e:
        made = await e.create(OwnScope, papers(1))
        await e.work_until_idle()
        (wait,) = await e.penstock.signals.waiting(made.id)
        await e.penstock.signals.complete(made.id, wait.key)
        await e.work_until_idle()
        assert await states(e, made) == [DONE]
