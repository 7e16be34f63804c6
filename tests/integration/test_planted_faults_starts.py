"""Intents, leases and fences: each test plants one fault in the core, and shows that it is seen.

With `weak` False the same scenario runs on the real thing and must be clean, so that it is the fault that is caught.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from approvals import Paper, Wall, a_moment, at_wall, chunks_of, clean, papers
from planted import both, office, parked
from sqlalchemy import Integer, bindparam, update

from penstock import BatchContext, Context, Pipeline, failpoints, operation, step
from penstock.db.database import Database
from penstock.operations.chunk import owned, store
from penstock.operations.chunk.ledger import CANCELLED
from penstock.operations.chunk.store import Lost
from penstock.operations.model import Operation
from penstock.operations.operation_ids import number_of
from penstock.operations.rows import segments
from penstock.operations.rows.gates import FOREVER, StartLimit
from penstock.operations.running.actor import ChunkActor
from penstock.operations.tables import chunks
from penstock.operations.worker import lease as leasing
from penstock.operations.worker.background import BackgroundDuties
from penstock.operations.worker.lease import Lease
from penstock.settings import Settings
from penstock.testing import Engine, engine

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


Begin = Callable[[int], Awaitable[None]]


def rows(begin: Begin) -> object:
    @operation("slow", max_row_concurrency=1)
    async def slow(paper: Paper, ctx: Context) -> None:
        await begin(ctx.row_number)

    return slow


def batches(begin: Begin) -> object:
    @operation("slow", max_row_concurrency=1)
    class Slow(Pipeline[Paper]):
        @step.batch(size=1)
        async def file(self, rows: list[Paper], ctx: BatchContext) -> None:
            await begin(ctx.rows[0].row_number)

    return Slow


def polls(begin: Begin) -> object:
    @operation("slow", max_row_concurrency=1)
    class Slow(Pipeline[Paper]):
        @step.poll(every=1, timeout=3600)
        async def file(self, paper: Paper, ctx: Context) -> None: ...

        @file.check
        async def is_filed(self, paper: Paper, ctx: Context) -> bool:
            await begin(ctx.row_number)
            return True

    return Slow


@both
@pytest.mark.parametrize("kind", [rows, batches, polls])
async def test_a_start_without_a_look_at_the_lease_is_caught(tmp_path, monkeypatch, weak, kind):
    if weak:
        monkeypatch.setattr(leasing, "StartLimit", Unlimited)
    begun: list[int] = []
    wall = Wall()

    async def begin(row: int) -> None:
        begun.append(row)
        if row == 1:
            await wall.stop()

    async with engine([kind(begin)], tmp_path=tmp_path) as e:
        await e.create("slow", papers(2))
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


@both
async def test_a_chunk_given_up_without_its_fence_is_caught(tmp_path, monkeypatch, weak):
    """Between the look and the write we claim it again: it is in hand then, and its rows may run."""
    transaction = Database.transaction

    async def give_up_unfenced(background: BackgroundDuties, chunk: int, fence: int) -> None:
        mine = (chunks.c.id == chunk, chunks.c.owner == background._worker.lease.id)
        gone = update(chunks).where(*mine).values(owner=owned.GIVEN_UP, version=chunks.c.version + 1)
        await background._db.transaction(lambda tx: tx.execute(gone), "give_up")

    async def claim_again_first(db: Database, work: Any, point: str = "") -> Any:
        if point == "give_up":
            await transaction(db, claim)
        return await transaction(db, work, point)

    async def claim(tx: Any) -> None:
        await tx.execute(update(chunks).values(owner=e.worker.lease.id, fence=chunks.c.fence + 1))

    if weak:
        monkeypatch.setattr(BackgroundDuties, "_give_up_chunk", give_up_unfenced)
    async with office(tmp_path) as e:
        made = await parked(e, papers(1))
        await e.penstock.db.transaction(claim)
        monkeypatch.setattr(Database, "transaction", claim_again_first)
        await e.worker.look_round()
        (chunk,) = await chunks_of(e, made)
        assert (chunk.owner != e.worker.lease.id) is weak
