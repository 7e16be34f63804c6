"""The core with one rule taken out: each test plants one fault, and shows that it does not go unnoticed.

With `weak` False the same scenario runs on the real thing and must be clean, so that it is the fault that is caught.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from approvals import Calls, Paper, Wall, a_moment, approvals, at_wall, chunks_of, clean, papers, states, two_engines
from sqlalchemy import Column, ForeignKey, Integer, MetaData, Table, bindparam, literal, select, update
from sqlalchemy.exc import DBAPIError

from penstock import Context, Pipeline, failpoints, operation, step
from penstock.db.database import CommitUnknown
from penstock.db.schema import metadata
from penstock.errors import StepFailed
from penstock.operations import control, moves, retrying
from penstock.operations.chunk import owned, store
from penstock.operations.chunk.ledger import CANCELLED
from penstock.operations.chunk.store import Lost
from penstock.operations.inbox import applying, matching, settling, signal_batching
from penstock.operations.inbox.addressing import TAKES_NO_SIGNALS
from penstock.operations.model import Operation
from penstock.operations.operation_ids import number_of
from penstock.operations.rows import segments
from penstock.operations.rows.start_limit import FOREVER, StartLimit
from penstock.operations.running import actor as acting
from penstock.operations.running.actor import ChunkActor
from penstock.operations.running.chunk_progress import ChunkProgress
from penstock.operations.running.planning import next_due
from penstock.operations.tables import chunks, operations, signals
from penstock.operations.worker import lease as leasing
from penstock.operations.worker.lease import Lease
from penstock.settings import Settings
from penstock.testing import Engine, engine

SMALL = Settings(chunk_rows=2)
SHARED = "desk-{row.desk}"
DONE, WAIT = "Completed", "WaitingForCompletion"

both = pytest.mark.parametrize("weak", [False, True], ids=["as it is", "planted"])


@asynccontextmanager
async def office(folder: Path, *, key: str = "paper-{row.code}", url: str | None = None) -> AsyncIterator[Engine]:
    async with engine([approvals(Calls(), key=key)], tmp_path=folder, url=url, settings=SMALL) as e:
        await e.advance(20)  # somebody has been here to sweep
        yield e


async def parked(e: Engine, rows: list[dict[str, str]]) -> Operation:
    made = await e.create("approvals", rows)
    await e.work_until_idle()
    return made


async def post_quietly(e: Engine, made: Operation, key: str) -> None:
    """Store a signal as a caller that dies before it wakes anybody."""

    def die(point: str) -> None:
        if point == "signal:after":
            raise ConnectionError

    with failpoints.armed(die), pytest.raises(ConnectionError):
        await e.penstock.signals.complete(made.id, key)


async def overlooked(e: Engine) -> bool:
    """Whether `verify` finds a row that waits beside its signal, once two sweeps should have been."""
    await e.advance(11)
    return any("has long been there" in text for text in await clean(e))


# --- closing and letting go


@both
async def test_an_end_without_the_operation_row_is_caught(tmp_path, monkeypatch, weak):
    async def close(db: Any, tx: Any, chunk: Any, writing: Any, **_: Any) -> None:
        await store.flush(db, tx, chunk, writing, is_open=0, owner=None)

    if weak:
        monkeypatch.setattr(store, "close", close)
    async with office(tmp_path) as e:
        made = await parked(e, papers(1))
        await e.penstock.signals.complete(made.id, "paper-p1")
        await e.work_until_idle()
        assert ("open_chunks is 1, expected 0" in " ".join(await clean(e))) is weak


@both
async def test_letting_go_past_new_mail_is_caught(tmp_path, monkeypatch, weak):
    release, let_go = store.release, ChunkActor._release
    posted: list[str] = []

    async def careless(tx: Any, chunk: Any, *, due_at: int) -> None:
        await store._write(tx, chunk, owner=None, due_at=due_at)

    async def signal_then_release(actor: ChunkActor) -> bool:
        if not posted:
            posted.append((await e.penstock.signals.complete(made.id, "paper-p1")).outcome)
        return await let_go(actor)

    monkeypatch.setattr(store, "release", careless if weak else release)
    monkeypatch.setattr(ChunkActor, "_release", signal_then_release)
    async with office(tmp_path) as e:
        made = await e.create("approvals", papers(1))
        await e.work_until_idle()
        assert posted == ["delivered"]
        assert await states(e, made) == ([WAIT] if weak else [DONE])
        assert await overlooked(e) is weak


@both
async def test_letting_go_without_a_look_after_parking_is_caught(tmp_path, monkeypatch, weak):
    flush = ChunkActor._flush

    async def blind(actor: ChunkActor, **given: Any) -> None:
        await flush(actor, **given)
        actor._must_look = False

    if weak:
        monkeypatch.setattr(ChunkActor, "_flush", blind)
    async with office(tmp_path) as e:
        made = await e.create("approvals", papers(1))
        await e.penstock.signals.complete(made.id, "paper-p1")
        await e.work_until_idle()
        assert await overlooked(e) is weak


@both
async def test_parking_and_letting_go_in_one_commit_is_caught(tmp_path, monkeypatch, weak):
    flush = ChunkActor._flush

    async def park_and_go(actor: ChunkActor, **given: Any) -> None:
        if not actor.progress.has_parked:
            return await flush(actor, **given)
        writing, due = actor.owned.writing(), next_due(actor.owned)
        await actor.db.transaction(
            lambda tx: store.flush(actor.db, tx, actor.owned, writing, owner=None, due_at=due), "park"
        )
        raise Lost("let go in the same breath")

    if weak:
        monkeypatch.setattr(ChunkActor, "_flush", park_and_go)
    async with office(tmp_path) as e:
        made = await e.create("approvals", papers(1))
        await e.penstock.signals.complete(made.id, "paper-p1")
        await e.work_until_idle()
        assert await overlooked(e) is weak


@both
async def test_a_paused_operation_that_cannot_finish_is_caught(tmp_path, monkeypatch, weak):
    finish = moves.finish_if_over

    async def not_while_paused(db: Any, tx: Any, head: Any, **given: Any) -> Any:
        return head if head.state == "Paused" else await finish(db, tx, head, **given)

    if weak:
        monkeypatch.setattr(store, "finish_if_over", not_while_paused)
    wall = Wall()

    @operation("last")
    async def last(paper: Paper, ctx: Context) -> None:
        await wall.stop()

    async with engine([last], tmp_path=tmp_path) as e:
        made = await e.create(last, papers(1))
        await at_wall(wall, e.work_until_idle())
        await e.operations.pause(made.id)
        wall.gone.set()
        await e.work_until_idle()
        assert ("it is Paused, but nothing of it is open" in " ".join(await clean(e))) is weak


# --- stopping


@both
async def test_a_cancel_straight_to_cancelled_is_caught(tmp_path, monkeypatch, weak):
    async def at_once(db: Any, number: int, **_: Any) -> Any:
        async def stop(tx: Any) -> Any:
            await tx.execute(update(operations).where(operations.c.number == number).values(state="Cancelled"))
            return await moves.head_of(tx, number)

        return await db.transaction(stop)

    if weak:
        monkeypatch.setattr(control, "cancel", at_once)
    async with office(tmp_path) as e:
        made = await parked(e, papers(2))
        await e.operations.cancel(made.id)
        told = " ".join(await clean(e))
        assert ("it is Cancelled, but 2 rows have no verdict" in told) is weak


@both
async def test_a_drain_that_waits_for_something_to_be_due_is_caught(tmp_path, monkeypatch, weak):
    candidates = store.candidates

    async def only_due(db: Any, tx: Any, **given: Any) -> Any:
        found = await candidates(db, tx, **given)
        return [chunk for chunk in found if chunk.operation_state != "Stopping"]

    if weak:
        monkeypatch.setattr(store, "candidates", only_due)
    async with office(tmp_path) as e:
        made = await parked(e, papers(2))
        await e.operations.cancel(made.id)
        await e.work_until_idle()
        assert ((await e.operations.get(made.id)).status != "Cancelled") is weak


# --- signals


@both
async def test_signals_that_outlive_their_generation_are_caught(tmp_path, monkeypatch, weak):
    def hears(signal: matching.Message, *, key: str | None, row: int, since: int | None) -> bool:
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
    if weak:
        monkeypatch.setattr(signal_batching, "_TAKES_SIGNALS", row.where(operations.c.state.not_in(TAKES_NO_SIGNALS)))

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


def take_any(db: Any) -> Any:
    return update(signals).where(signals.c.id.in_(bindparam("ids", expanding=True))).values(consumed_at=db.now())


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


# --- intents, leases and fences


class Payments:
    """An at-most-once step behind a plain one; every call is counted, and the first one stops at a wall."""

    def __init__(self) -> None:
        self.wall, self.paid = Wall(), Counter[int]()
        mine = self

        @operation("payments", max_row_concurrency=1)
        class Kind(Pipeline[Paper]):
            @step
            async def prepare(self, paper: Paper, ctx: Context) -> None: ...

            @step(delivery="at_most_once")
            async def pay(self, paper: Paper, ctx: Context) -> None:
                mine.paid[ctx.row_number] += 1
                if sum(mine.paid.values()) == 1:
                    await mine.wall.stop()

        self.kind = Kind

    async def begin(self, e: Engine, rows: int = 1) -> Operation:
        made = await e.create(self.kind, papers(rows))
        await at_wall(self.wall, e.work_until_idle())
        return made


@both
async def test_an_at_most_once_step_inside_a_longer_span_is_caught(tmp_path, monkeypatch, weak):
    if weak:
        monkeypatch.setattr(segments, "stands_alone", lambda step: step.kind != "plain")
    payments = Payments()
    async with engine([payments.kind], tmp_path=tmp_path) as e:
        await payments.begin(e)
        await e.crash()
        await e.work_until_idle()
        assert (payments.paid[1] > 1) is weak


@both
async def test_a_begun_at_most_once_call_that_is_cancelled_is_caught(tmp_path, monkeypatch, weak):
    def cancel(chunk: Any, i: int, place: int, now: int) -> None:
        chunk.ledger.tracks[place].state[i], chunk.ledger.in_flight[i] = CANCELLED, 0

    if weak:
        monkeypatch.setattr(owned, "_leave_in_doubt", cancel)
    payments = Payments()
    async with engine([payments.kind], tmp_path=tmp_path, settings=Settings(cancel_grace_s=0)) as e:
        made = await payments.begin(e)
        await e.operations.cancel(made.id)
        await e.worker.look_round()
        await e.work_until_idle()
        if (await e.operations.can_retry(made.id)).is_eligible:
            await e.operations.retry(made.id)
            await e.work_until_idle()
        assert (payments.paid[1] > 1) is weak


@both
async def test_user_code_without_an_intent_on_disk_is_caught(tmp_path, monkeypatch, weak):
    flush = ChunkActor._flush

    async def unwritten(actor: ChunkActor, *, is_intent: bool = False) -> None:
        if not is_intent:
            await flush(actor)

    if weak:
        monkeypatch.setattr(ChunkActor, "_flush", unwritten)
    payments = Payments()
    async with engine([payments.kind], tmp_path=tmp_path) as e:
        await payments.begin(e)
        await e.crash()
        await e.work_until_idle()
        assert (payments.paid[1] > 1) is weak


class Unlimited(StartLimit):
    """User code may always start."""

    until_ns = property(lambda self: FOREVER, lambda self, until: None)


@both
async def test_a_start_without_a_look_at_the_lease_is_caught(tmp_path, monkeypatch, weak):
    if weak:
        monkeypatch.setattr(leasing, "StartLimit", Unlimited)
    begun: list[int] = []
    wall = Wall()

    @operation("slow", max_row_concurrency=1)
    async def slow(paper: Paper, ctx: Context) -> None:
        begun.append(ctx.row_number)
        if ctx.row_number == 1:
            await wall.stop()

    async with engine([slow], tmp_path=tmp_path) as e:
        await e.create(slow, papers(2))
        await at_wall(wall, e.work_until_idle())
        e.clock.advance(Settings().lease_s + 1)
        wall.gone.set()
        await a_moment()
        assert (begun == [1, 2]) is weak


@both
async def test_a_lease_counted_from_the_answer_to_its_beat_is_caught(tmp_path, monkeypatch, weak):
    beat = Lease.beat

    async def from_the_answer(lease: Lease, over: Any = None) -> bool:
        is_known = await beat(lease, over)
        lease.start_limit.until_ns = lease._clock.ticks_ns() + lease._start_ns
        return is_known

    def answer_late(point: str) -> None:
        if point == "beat:after":
            e.clock.advance(Settings().lease_s + 1)

    begun: list[int] = []
    wall = Wall()

    @operation("slow", max_row_concurrency=1)
    async def slow(paper: Paper, ctx: Context) -> None:
        begun.append(ctx.row_number)
        if ctx.row_number == 1:
            await wall.stop()

    async with engine([slow], tmp_path=tmp_path) as e:
        await e.create(slow, papers(2))
        await at_wall(wall, e.work_until_idle())
        if weak:
            monkeypatch.setattr(Lease, "beat", from_the_answer)
        with failpoints.armed(answer_late):
            await e.worker.lease.beat()
        await e.worker.look_round()  # all is still ours; but by now anybody may take it
        wall.gone.set()
        await a_moment()
        assert (begun == [1, 2]) is weak


@both
async def test_a_write_without_the_fence_is_caught(tmp_path, monkeypatch, weak):
    any_fence = (chunks.c.id == bindparam("the_chunk"), chunks.c.fence != -bindparam("the_fence", type_=Integer))
    unfenced = update(chunks).where(*any_fence).values(version=chunks.c.version + 1)

    async with office(tmp_path) as e:
        made = await parked(e, papers(1))
        async with e.penstock.db.read() as tx:
            (stale,) = await store.load(tx, await number_of(tx, made.id), limit=1)
        await e.penstock.signals.complete(made.id, "paper-p1")
        await e.work_until_idle()
        if weak:
            monkeypatch.setattr(store, "_FLUSH", unfenced)
        late = e.penstock.db.transaction(lambda tx: store.flush(e.penstock.db, tx, stale, stale.writing()), "late")
        (refused,) = await asyncio.gather(late, return_exceptions=True)
        assert isinstance(refused, Lost) is not weak
        assert bool(await clean(e)) is weak


# --- retry and schema


@both
async def test_a_retry_that_opens_chunks_outside_its_transaction_is_caught(tmp_path, monkeypatch, weak):
    async def later(*_: Any, **__: Any) -> None:
        """The caller dies before it comes to the second transaction."""

    async with office(tmp_path) as e:
        made = await parked(e, papers(1))
        await e.advance(61)
        await e.work_until_idle()
        if weak:
            monkeypatch.setattr(retrying, "_request", later)
        await e.operations.retry(made.id)
        await e.work_until_idle()
        assert ("open_chunks is 1, expected 0" in " ".join(await clean(e))) is weak


def keys_to_operation(tables: MetaData) -> list[str]:
    return [
        f"{table.name}.{key.parent.name}"
        for table in tables.sorted_tables
        for key in table.foreign_keys
        if key.column.table.name == operations.name
    ]


@both
def test_a_foreign_key_to_the_operation_is_caught(weak):
    """It would lock the operation after the chunk, and deadlock with the rule that the operation comes first."""
    tables = MetaData()
    for table in metadata.sorted_tables:
        table.to_metadata(tables)
    if weak:
        column = Column("operation", Integer, ForeignKey(f"{operations.name}.number"))
        Table("planted", tables, Column("id", Integer, primary_key=True), column)
    assert keys_to_operation(tables) == (["planted.operation"] if weak else [])


def test_the_faults_are_planted_where_the_engine_looks():
    assert acting.settling is settling
    assert acting.store is store
