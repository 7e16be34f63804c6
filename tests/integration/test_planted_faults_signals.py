"""Signals: each test plants one fault in the core, and shows that it is seen.

With `weak` False the same scenario runs on the real thing and must be clean, so that it is the fault that is caught.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import pytest
from approvals import Paper, Wall, at_wall, chunks_of, clean, papers, states, two_engines
from planted import DONE, SHARED, SMALL, WAIT, both, office, overlooked, parked, post_quietly
from sqlalchemy import bindparam, literal, select, update
from sqlalchemy.exc import DBAPIError

from penstock import Context, Pipeline, failpoints, operation, step
from penstock.db.database import CommitUnknown
from penstock.errors import StepFailed
from penstock.operations.inbox import applying, matching, settling, signal_batching
from penstock.operations.inbox.addressing import TAKES_NO_SIGNALS
from penstock.operations.operation_ids import number_of
from penstock.operations.running.actor import ChunkActor
from penstock.operations.running.chunk_progress import ChunkProgress
from penstock.operations.tables import operations, signals
from penstock.testing import engine

# --- signals


@both
async def test_signals_that_outlive_their_generation_are_caught(tmp_path, monkeypatch, weak):
    def hears(signal: matching.Signal, *, key: str | None, row: int, since: int | None) -> bool:
        return signal.key == key and signal.row in (None, row)

    if weak:
        monkeypatch.setattr(matching, "accepts", hears)
        monkeypatch.setattr(matching, "since", lambda: literal(0))
    async with office(tmp_path) as e:
        made = await parked(e, papers(2))
        for _ in range(2):
            await e.penstock.signals.fail(made.id, "paper-p1", "no")
        await e.work_until_idle()
        await e.advance(1)
        await e.operations.retry(made.id, rows=[1])
        await e.work_until_idle()
        assert ("was there before its generation began" in " ".join(await clean(e))) is weak


@both
async def test_shared_keys_without_a_pass_on_are_caught(tmp_path, monkeypatch, weak):
    async def nobody(*_: Any) -> int:
        return 0

    if weak:
        monkeypatch.setattr(settling, "wake", nobody)
    async with office(tmp_path, key=SHARED) as e:
        made = await parked(e, papers(4))
        for _ in range(3):
            await e.penstock.signals.complete(made.id, "desk-front")
        await e.work_until_idle()
        assert (await states(e, made) == [DONE] * 3 + [WAIT]) is not weak
        assert await overlooked(e) is weak


@both
async def test_a_higher_row_that_takes_the_signal_first_is_caught(tmp_path, monkeypatch, weak):
    async def nobody_else(*_: Any, **__: Any) -> list[Any]:
        return []

    if weak:
        monkeypatch.setattr(settling, "waiters", nobody_else)
    rows = papers(4)
    rows[3]["desk"] = "back"
    async with office(tmp_path, key=SHARED) as e:
        made = await parked(e, rows)
        await post_quietly(e, made, "desk-front")
        await e.penstock.signals.complete(made.id, "desk-back")
        await e.work_until_idle()
        assert (await states(e, made) == [WAIT, WAIT, DONE, DONE]) is weak


@both
async def test_a_timeout_before_the_look_is_caught(tmp_path, monkeypatch, weak):
    matches = settling._matches

    async def time_first(db: Any, tx: Any, chunk: Any) -> Any:
        applying.apply_deadlines(chunk, e.clock.now_us())
        return await matches(db, tx, chunk)

    if weak:
        monkeypatch.setattr(settling, "_matches", time_first)
    async with office(tmp_path) as e:
        made = await parked(e, papers(1))
        await e.advance(61)
        await e.penstock.signals.complete(made.id, "paper-p1")
        await e.work_until_idle()
        assert (await states(e, made) == ["TimedOut"]) is weak


@both
async def test_a_claim_that_does_not_look_first_is_caught(tmp_path, monkeypatch, weak):
    begin = ChunkActor.__init__

    def begin_blind(actor: ChunkActor, *args: Any, **given: Any) -> None:
        begin(actor, *args, **given)
        actor._must_look = False

    async with office(tmp_path) as e:
        made = await parked(e, papers(2))
        if weak:
            monkeypatch.setattr(ChunkActor, "__init__", begin_blind)
        await e.penstock.signals.complete(made.id, "paper-p1")
        await e.penstock.signals.complete(made.id, "paper-p2")  # its chunk is due, so there is nothing to tell it
        await e.work_until_idle()
        assert await overlooked(e) is weak


@both
async def test_a_wait_behind_a_retried_step_that_hears_old_signals_is_caught(tmp_path, monkeypatch, weak):
    park = ChunkProgress.park

    def park_by_itself(desk: ChunkProgress, i: int, place: int, *given: Any) -> None:
        before = desk.owned.record_of(i, place)
        since = before.since if before else None
        park(desk, i, place, *given)
        story = desk.owned.record_of(i, place)
        assert story is not None
        story.since = since

    if weak:
        monkeypatch.setattr(ChunkProgress, "park", park_by_itself)

    @operation("retried")
    class Retried(Pipeline[Paper]):
        @step
        async def submit(self, paper: Paper, ctx: Context) -> None:
            if ctx.generation == 0:
                raise StepFailed("wrong desk")

        @step.signal(key="{row.code}", timeout=60)
        async def approval(self, paper: Paper, ctx: Context) -> None: ...

    async with engine([Retried], tmp_path=tmp_path) as e:
        made = await e.create(Retried, papers(1))
        await e.penstock.signals.complete(made.id, "p1")  # of what was submitted to the wrong desk
        await e.work_until_idle()
        await e.advance(1)
        await e.operations.retry(made.id)
        await e.work_until_idle()
        assert (await states(e, made) == [DONE]) is weak


@both
async def test_a_lost_answer_after_which_nobody_is_woken_is_caught(tmp_path, monkeypatch, weak):
    lost: list[str] = []

    def lose(point: str) -> None:
        if point == "signal:after" and not lost:
            lost.append(point)
            raise CommitUnknown("the connection died at COMMIT")

    async def known(
        slot: signal_batching.SignalBatcher, subject: Any, mine: signal_batching.PendingSignal, refusal: Exception
    ) -> Any:
        mine.answer = signal_batching.Receipt("duplicate", mine.token)
        return ()

    if weak:
        monkeypatch.setattr(signal_batching.SignalBatcher, "_stored_before", known)
    async with office(tmp_path) as e:
        made = await parked(e, papers(1))
        with failpoints.armed(lose):
            await e.penstock.signals.complete(made.id, "paper-p1")
        await e.work_until_idle()
        assert await overlooked(e) is weak


@both
@pytest.mark.databases("postgresql", "mariadb")  # SQLite has one writer
async def test_a_signal_stored_without_the_operations_lock_is_caught(database_url, tmp_path, monkeypatch, weak):
    row = select(operations.c.number).where(operations.c.number == bindparam("number"))
    monkeypatch.setattr(signal_batching, "record", unrecorded)  # the audit log, whose lock a stop needs too
    if weak:
        takes_signals = row.where(*(operations.c.state != state for state in TAKES_NO_SIGNALS))
        monkeypatch.setattr(signal_batching, "_TAKES_SIGNALS", takes_signals)

    async def is_locked(number: int) -> bool:
        try:
            async with e.penstock.db.connection() as other:
                await other.execute(row.with_for_update(nowait=True), {"number": number})
        except DBAPIError:
            return True
        return False

    async with office(tmp_path, url=database_url) as e:
        made = await parked(e, papers(1))
        transaction = e.penstock.db.transaction

        async def with_a_stop_in_between(work: Any, point: str) -> Any:
            async def store(tx: Any) -> Any:
                answer = await work(tx)
                if not await is_locked(await number_of(tx, made.id)):
                    await e.operations.cancel(made.id)
                return answer

            return await transaction(store if point == "signal" else work, point)

        monkeypatch.setattr(e.penstock.db, "transaction", with_a_stop_in_between)
        await e.penstock.signals.complete(made.id, "paper-p1")
        await e.operations.cancel(made.id)
        assert (await e.operations.get(made.id)).status == "Cancelled"
        assert bool(await e.penstock.signals.unclaimed(made.id)) is weak


async def unrecorded(*_: Any) -> None:
    """Nothing is written to the audit log."""


def take_any(db: Any) -> Any:
    return update(signals).where(db.dialect.among(signals.c.id, "ids")).values(consumed_at=db.now())


async def consume_uncounted(*given: Any, consume: Any = settling._consume) -> None:
    with suppress(settling.Overtaken):
        await consume(*given)


@pytest.mark.parametrize(
    "fault",
    [{}, {"_take": take_any}, {"_consume": consume_uncounted}],
    ids=["as it is", "planted: taken or not", "planted: not counted"],
)
@pytest.mark.databases("postgresql", "mariadb")  # SQLite has one writer
async def test_a_signal_that_is_taken_twice_is_caught(database_url, tmp_path, monkeypatch, fault):
    for name, plant in fault.items():
        monkeypatch.setattr(settling, name, plant)
    matches, late, between = settling._matches, Wall(), Wall()

    async def with_a_pause(*given: Any) -> Any:
        found = await matches(*given)
        if found and not between.reached.is_set():
            await between.stop()
        return found

    @operation("shared")
    class Shared(Pipeline[Paper]):
        @step
        async def submit(self, paper: Paper, ctx: Context) -> None:
            if ctx.row_number == 1:
                await late.stop()

        @step.signal(key="desk", timeout=60)
        async def approval(self, paper: Paper, ctx: Context) -> None: ...

    async with two_engines(Shared, url=database_url, folder=tmp_path, settings=SMALL) as (one, other):
        made = await one.create(Shared, papers(4))
        await at_wall(late, one.work_until_idle())  # nobody waits in the first chunk yet
        while (second := (await chunks_of(other, made))[1]).waiting < 2 or second.owner is not None:
            await other.work_until_idle()
        monkeypatch.setattr(settling, "_matches", with_a_pause)
        await other.penstock.signals.complete(made.id, "desk")
        await at_wall(between, other.work_until_idle())  # row 3 is about to take it
        late.gone.set()
        await one.work_until_idle()  # row 1 takes it
        between.gone.set()
        await other.work_until_idle()
        assert (await states(one, made) == [DONE, WAIT, WAIT, WAIT]) is not bool(fault)
        assert ("which a signal must have ended, but it took none" in " ".join(await clean(one))) is bool(fault)


@both
async def test_a_callers_death_without_a_sweep_is_caught(tmp_path, weak):
    async with office(tmp_path) as e:
        made = await parked(e, papers(1))
        await post_quietly(e, made, "paper-p1")
        if not weak:
            await settling.sweep(e.penstock.db)
        await e.work_until_idle()
        assert await overlooked(e) is weak
