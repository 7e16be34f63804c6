"""Chunks are owned, rows are not: one owner at a time, a dead one's chunks pass on, and its late writes are refused."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from approvals import (
    Calls,
    Paper,
    Wall,
    a_moment,
    approvals,
    at_wall,
    chunks_of,
    clean,
    history,
    papers,
    states,
    two_engines,
)
from sqlalchemy import delete, insert, select, update
from stored import rows_of

from penstock import Context, Penstock, Pipeline, failpoints, operation, step
from penstock.db.database import Database
from penstock.operations import control
from penstock.operations.chunk import store
from penstock.operations.chunk.owned import POISON_LOST, OwnedChunk
from penstock.operations.chunk.store import Lost
from penstock.operations.inbox import settling
from penstock.operations.moves import head_of
from penstock.operations.operation_ids import number_of
from penstock.operations.tables import chunks, workers
from penstock.operations.validating.reading import Interrupted, Reading
from penstock.operations.worker_records import host_name
from penstock.settings import Settings
from penstock.testing import Engine, engine

SMALL = Settings(chunk_rows=2)
LEASE_S = SMALL.lease_s
DONE, WAIT = "Completed", "WaitingForCompletion"


class Shop:
    """Counts who runs which row; rows of the desk 'wall' stop there when the first worker runs them."""

    def __init__(self) -> None:
        self.wall = Wall()
        self.runs: Counter[int] = Counter()
        shop = self

        @operation("shop")
        class Kind(Pipeline[Paper]):
            @step
            async def work(self, paper: Paper, ctx: Context) -> int:
                shop.runs[ctx.row_number] += 1
                if paper.desk == "wall" and shop.runs[ctx.row_number] == 1:
                    await shop.wall.stop()
                return shop.runs[ctx.row_number]

        self.kind = Kind


@pytest.mark.covers("I-13")
async def test_two_workers_share_the_chunks_of_one_operation_and_run_each_row_once(database_url, tmp_path):
    shop = Shop()
    async with two_engines(shop.kind, url=database_url, folder=tmp_path, settings=SMALL) as (one, other):
        made = await one.create(shop.kind, papers(24, desk="wall"))
        await at_wall(shop.wall, one.work_until_idle())
        shop.wall.reached.clear()
        await at_wall(shop.wall, other.work_until_idle())
        owners = {chunk.owner for chunk in await chunks_of(one, made)} - {None}
        assert owners == {one.worker.lease.id, other.worker.lease.id}
        shop.wall.gone.set()
        for e in (one, other, one):
            await e.work_until_idle()
        done = await one.operations.get(made.id)
        assert (done.status, len(shop.runs), set(shop.runs.values())) == ("Completed", 24, {1})
        assert await clean(one) == []


@pytest.mark.covers("I-18", "SG-045")
async def test_a_worker_that_starts_does_not_touch_what_a_live_one_holds(database_url, tmp_path):
    shop = Shop()
    async with two_engines(shop.kind, url=database_url, folder=tmp_path) as (one, other):
        made = await one.create(shop.kind, papers(3, desk="wall"))
        await at_wall(shop.wall, one.work_until_idle())
        before = await chunks_of(one, made)
        await one.advance(LEASE_S - 1)
        await other.advance(0)
        await one.advance(LEASE_S - 1)
        await other.work_until_idle()
        await other.worker.look_round()
        assert await chunks_of(one, made) == before
        assert max(shop.runs.values()) == 1
        shop.wall.gone.set()
        await one.work_until_idle()
        assert (await one.operations.get(made.id)).status == "Completed"


async def test_a_chunk_released_and_claimed_again_while_its_worker_looked_round_is_not_taken_for_lost(
    database_url, tmp_path, monkeypatch
):
    walls, checks, meanwhile, read = [Wall(), Wall()], [], [], Database.read

    @operation("parcel")
    class Parcel(Pipeline[Paper]):
        @step.poll(every=1, timeout=1000)
        async def ship(self, paper: Paper, ctx: Context) -> None: ...

        @ship.check
        async def has_arrived(self, paper: Paper, ctx: Context) -> bool:
            checks.append(ctx.row_number)
            await walls[len(checks) - 1].stop()
            return len(checks) == 2

    @asynccontextmanager
    async def read_and_be_slow(db: Database) -> AsyncIterator[Any]:
        async with read(db) as tx:
            yield tx
        while meanwhile:
            await meanwhile.pop()()

    async def release_and_claim() -> None:
        walls[0].gone.set()
        await one.work_until_idle()
        await one.advance(2)
        await at_wall(walls[1], one.work_until_idle())

    monkeypatch.setattr(Database, "read", read_and_be_slow)
    async with two_engines(Parcel, url=database_url, folder=tmp_path) as (one, _):
        made = await one.create(Parcel, papers(1))
        await at_wall(walls[0], one.work_until_idle())
        meanwhile.append(release_and_claim)
        await one.worker.look_round()
        walls[1].gone.set()
        await one.work_until_idle()
        assert await states(one, made) == [DONE]
        assert (len(checks), await history(one, made)) == (2, [])


@pytest.mark.covers("I-13", "I-14", "I-18", "SG-045")
async def test_a_dead_workers_chunk_is_taken_over_when_its_lease_is_over_and_its_late_result_is_refused(
    database_url, tmp_path
):
    shop = Shop()
    async with two_engines(shop.kind, url=database_url, folder=tmp_path) as (frozen, other):
        made = await frozen.create(shop.kind, papers(1, desk="wall"))
        await at_wall(shop.wall, frozen.work_until_idle())
        await other.advance(LEASE_S - 0.5)
        await other.work_until_idle()
        assert shop.runs[1] == 1, "not before the lease is over"
        await other.advance(1)
        await other.work_until_idle()
        done = await other.operations.get(made.id)
        assert (done.status, shop.runs[1]) == ("Completed", 2)
        shop.wall.gone.set()
        await a_moment()
        await frozen.work_until_idle()
        (row,) = await rows_of(other.penstock.db, made.id)
        assert row.outputs == [2]
        assert [h.event for h in await history(other, made)] == ["owner_lost", "late_result"]
        assert await clean(other) == []


@pytest.mark.covers("I-14")
async def test_no_user_code_starts_in_the_last_seconds_of_a_lease(database_url, tmp_path):
    shop = Shop()
    async with engine([shop.kind], url=database_url, tmp_path=tmp_path) as e:
        rows = papers(3)
        rows[0]["desk"] = "wall"
        made = await e.create(shop.kind, rows, options={"max_row_concurrency": 1})
        await at_wall(shop.wall, e.work_until_idle())
        e.clock.advance(LEASE_S - SMALL.lease_margin_s)
        shop.wall.gone.set()
        await a_moment()
        assert shop.runs == {1: 1}
        await e.crash()
        await e.work_until_idle()
        assert (await e.operations.get(made.id)).status == "Completed"
        assert await clean(e) == []


@pytest.mark.covers("I-16")
async def test_a_worker_without_the_code_neither_claims_nor_fails(database_url, tmp_path):
    shop = Shop()
    kind = approvals(Calls())
    async with engine([shop.kind, kind], url=database_url, tmp_path=tmp_path) as knowing:
        made = await knowing.create(shop.kind, papers(2))
        waiting = await knowing.create(kind, papers(1))
        await knowing.work_until_idle()
        fresh = await knowing.create(shop.kind, papers(2))
        shared: dict[str, Any] = {"url": database_url, "tmp_path": tmp_path, "clock": knowing.clock}
        async with engine([], **shared) as ignorant:
            await ignorant.advance(LEASE_S * 10)
            await ignorant.work_until_idle()
            await ignorant.worker.look_round()
            assert (await ignorant.operations.get(fresh.id)).status == "Pending"
            assert (await ignorant.operations.get(waiting.id)).status == "Running"
            stopped = await ignorant.operations.cancel(waiting.id)
            assert stopped.status == "Cancelled", "anyone may drain"
        assert (await knowing.operations.get(made.id)).status == "Completed"


@pytest.mark.covers("I-13")
@pytest.mark.parametrize("write", ["flush", "close", "release", "settle", "drain"])
async def test_every_write_of_a_former_owner_is_refused(database_url, tmp_path, write):
    kind = approvals(Calls())
    async with engine([kind], url=database_url, tmp_path=tmp_path) as e:
        made = await e.create(kind, papers(2))
        await e.work_until_idle()
        stale = await held_by(e, made.id, "one")
        await held_by(e, made.id, "two")
        if write == "drain":
            await stop(e, made.id)
        before = await chunks_of(e, made)
        with pytest.raises(Lost):
            await e.penstock.db.transaction(lambda tx: WRITES[write](e, tx, stale))
        assert await chunks_of(e, made) == before
        assert await states(e, made) == [WAIT, WAIT]


WRITES = {
    "flush": lambda e, tx, held: store.flush(e.penstock.db, tx, held, held.writing()),
    "close": lambda e, tx, held: store.close(e.penstock.db, tx, held, held.writing(), actor="one"),
    "release": lambda e, tx, held: store.release(tx, held, due_at=0),
    "settle": lambda e, tx, held: settling.settle(e.penstock.db, tx, held, lambda i: None, e.clock.now_us(), steps={}),
    "drain": lambda e, tx, held: settling.drain(e.penstock.db, tx, held, e.clock.now_us(), steps={}, actor="one"),
}


async def held_by(e: Engine, operation_id: str, owner: str) -> OwnedChunk:
    """The operation's only chunk, claimed by an owner that nobody has heard of."""
    db = e.penstock.db
    async with db.read() as tx:
        (held,) = await store.load(tx, await number_of(tx, operation_id), limit=1)
    assert await db.transaction(lambda tx: store.claim(db, tx, held, owner=owner, write=False))
    held.fence += 1
    return held


async def stop(e: Engine, operation_id: str) -> None:
    async with e.penstock.db.read() as tx:
        number = await number_of(tx, operation_id)
    await control.cancel(e.penstock.db, number, actor="ana")


async def test_a_chunk_that_is_lost_while_it_is_drained_does_not_end_its_worker(database_url, tmp_path, monkeypatch):
    """Between hearing that the operation stops and draining, another worker may have claimed the chunk."""
    wall, drained = Wall(), []

    @operation("lost")
    class Lostlike(Pipeline[Paper]):
        @step
        async def one(self, paper: Paper, ctx: Context) -> None:
            await wall.stop()

        @step(barrier=True)
        async def two(self, paper: Paper, ctx: Context) -> None: ...

    async def taken(*_: object, **__: object) -> bool:
        drained.append(True)
        raise Lost("taken over")

    async with engine([Lostlike], url=database_url, tmp_path=tmp_path) as e:
        made = await e.create(Lostlike, papers(1))
        working = asyncio.create_task(e.work_until_idle())
        await wall.reached.wait()
        monkeypatch.setattr(settling, "drain", taken)
        await stop(e, made.id)
        wall.gone.set()
        await working
    assert drained


@pytest.mark.covers("I-14")
async def test_rows_that_find_no_time_in_the_lease_run_later_and_are_not_lost(database_url, tmp_path):
    runs = Counter[int]()

    @operation("late", max_row_concurrency=1)
    class Late(Pipeline[Paper]):
        @step
        async def work(self, paper: Paper, ctx: Context) -> None:
            runs[ctx.row_number] += 1
            if ctx.row_number == 1:
                e.worker.lease.start_limit.until_ns = 0  # the next rows come too late

    async with engine([Late], url=database_url, tmp_path=tmp_path) as e:
        made = await e.create(Late, papers(4))
        await e.work_until_idle()
        stored = await rows_of(e.penstock.db, made.id)
        assert await states(e, made) == [DONE] * 4
        assert await clean(e) == []
    assert runs == {1: 1, 2: 1, 3: 1, 4: 1}
    assert [(row.lost, row.attempts) for row in stored] == [(0, [1])] * 4


READER_WRITES = {
    "append": lambda reading: reading.db.transaction(lambda tx: reading._touch(tx, rows_read=99)),
    "seal": lambda reading: reading._seal(),
    "reject": lambda reading: reading._reject("no"),
}


@pytest.mark.covers("I-13", "I-11")
@pytest.mark.parametrize("write", ["append", "seal", "reject"])
async def test_every_write_of_a_former_reader_is_refused(database_url, tmp_path, write):
    wall = Wall()

    @operation("read")
    class Read(Pipeline[Paper]):
        async def validate_row(self, paper: Paper, meta: None) -> None:
            await wall.stop()

        @step
        async def work(self, paper: Paper, ctx: Context) -> None: ...

    async with two_engines(Read, url=database_url, folder=tmp_path) as (frozen, other):
        made = await frozen.create(Read, papers(3))
        await at_wall(wall, frozen.work_until_idle())
        (reading,) = frozen.worker.readings.values()
        assert isinstance(reading, Reading)
        await other.advance(LEASE_S + 1)
        wall.reached.clear()
        await at_wall(wall, other.work_until_idle())
        async with other.penstock.db.read() as tx:
            before = await head_of(tx, reading.head.number)
        assert before.owner == other.worker.lease.id
        with pytest.raises(Interrupted):
            await READER_WRITES[write](reading)
        async with other.penstock.db.read() as tx:
            assert await head_of(tx, reading.head.number) == before
        wall.gone.set()
        await other.work_until_idle()
        done = await other.operations.get(made.id)
        assert (done.status, done.total_rows, done.successful_rows) == ("Completed", 3, 3)
        assert await clean(other) == []


@pytest.mark.covers("I-14", "I-21")
async def test_a_frozen_owner_cannot_take_a_signal_that_its_successor_took(database_url, tmp_path):
    kind = approvals(Calls())
    async with engine([kind], url=database_url, tmp_path=tmp_path) as e:
        made = await e.create(kind, papers(1))
        await e.work_until_idle()
        stale = await held_by(e, made.id, "frozen")
        await e.penstock.signals.complete(made.id, "paper-p1", payload="once")
        await e.work_until_idle()
        assert await states(e, made) == [DONE]
        async with e.penstock.db.read() as tx:
            stale.records = await store.records_of(tx, stale.id)
        with pytest.raises(Lost):
            await e.penstock.db.transaction(lambda tx: WRITES["settle"](e, tx, stale))
        assert await clean(e) == []


async def test_a_claim_whose_answer_was_lost_is_given_back_by_its_own_worker(database_url, tmp_path):
    shop = Shop()
    async with engine([shop.kind], url=database_url, tmp_path=tmp_path) as e:
        made = await e.create(shop.kind, papers(2))
        assert await e.worker.tick()
        while e.worker.readings:
            await e.worker.wake.wait()
        await held_by(e, made.id, e.worker.lease.id)
        await e.work_until_idle()
        assert shop.runs == {}, "a live owner holds it, or so it seems"
        await e.worker.look_round()
        await e.work_until_idle()
        assert (await e.operations.get(made.id)).status == "Completed"


@pytest.mark.parametrize("meanwhile", ["another claims it", "we claim it again", "it was let go"])
async def test_a_chunk_is_given_up_only_as_it_was_when_we_saw_that_it_is_not_in_hand(
    database_url, tmp_path, monkeypatch, meanwhile
):
    """Between the look and the write it may change hands, also to ours."""
    shop = Shop()
    transaction = Database.transaction
    async with engine([shop.kind], url=database_url, tmp_path=tmp_path) as e:
        made = await e.create(shop.kind, papers(2))
        await e.worker.tick()
        while e.worker.readings:
            await e.worker.wake.wait()
        await held_by(e, made.id, e.worker.lease.id)
        before: list[Any] = []

        async def change_first(self: Database, work: Any, point: str = "") -> Any:
            if point == "give_up":
                monkeypatch.undo()
                await let_go(e)
                if meanwhile != "it was let go":
                    await held_by(e, made.id, "another" if meanwhile == "another claims it" else e.worker.lease.id)
                before.extend(await chunks_of(e, made))
            return await transaction(self, work, point)

        monkeypatch.setattr(Database, "transaction", change_first)
        await e.worker.look_round()
        assert before
        assert await chunks_of(e, made) == before


async def let_go(e: Engine) -> None:
    async def write(tx: Any) -> None:
        await tx.execute(update(chunks).values(owner=None))

    await e.penstock.db.transaction(write)


async def test_giving_a_chunk_up_is_a_write_of_its_owner(database_url, tmp_path):
    """Whoever looked at the chunk before must look again before it claims it."""
    shop = Shop()
    async with engine([shop.kind], url=database_url, tmp_path=tmp_path) as e:
        made = await e.create(shop.kind, papers(2))
        await e.worker.tick()
        while e.worker.readings:
            await e.worker.wake.wait()
        held = await held_by(e, made.id, e.worker.lease.id)
        await e.worker.look_round()
        (chunk,) = await chunks_of(e, made)
        assert (chunk.owner, chunk.fence, chunk.version) == ("nobody", held.fence, held.version + 1)
        await e.work_until_idle()
        assert (await e.operations.get(made.id)).status == "Completed"


async def test_rows_in_flight_in_a_chunk_that_is_given_up_run_again_and_are_no_poison(database_url, tmp_path):
    shop = Shop()
    async with engine([shop.kind], url=database_url, tmp_path=tmp_path) as e:
        made = await e.create(shop.kind, papers(2))
        await e.worker.tick()
        while e.worker.readings:
            await e.worker.wake.wait()
        held = await held_by(e, made.id, e.worker.lease.id)
        held.ledger.start([0])
        held.ledger.lost[0] = POISON_LOST - 1

        async def write(tx: Any) -> None:
            await tx.execute(update(chunks).values(ledger=held.ledger.encode()))

        await e.penstock.db.transaction(write)
        await e.worker.look_round()
        assert (await e.operations.verify(made.id)).is_clean
        await e.work_until_idle()
        assert (await e.operations.get(made.id)).status == "Completed", "its worker did not die of it"
        assert [line.event for line in (await e.operations.history(made.id)).items] == ["owner_lost"]


@pytest.mark.covers("I-17")
async def test_a_lease_that_the_database_renewed_too_late_counts_when_it_is_seen_what_is_still_ours(
    database_url, tmp_path
):
    """The beat was sent in time, but the database was slow: others may have taken what we hold."""
    shop = Shop()
    async with engine([shop.kind], url=database_url, tmp_path=tmp_path) as e:

        def slowly(point: str) -> None:
            if point == "beat:before":
                e.clock.advance(LEASE_S)

        with failpoints.armed(slowly):
            await e.worker.lease.beat()
        assert e.worker.lease.has_lapsed
        assert not e.worker.lease.may_start()
        await e.worker.lease.beat()
        await e.worker.look_round()
        assert e.worker.lease.may_start()


@pytest.mark.covers("I-17")
async def test_a_worker_whose_record_is_gone_owns_nothing(database_url, tmp_path):
    shop = Shop()
    async with two_engines(shop.kind, url=database_url, folder=tmp_path) as (one, other):
        made = await one.create(shop.kind, papers(1, desk="wall"))
        await at_wall(shop.wall, one.work_until_idle())

        async def remove(tx: Any) -> None:
            await tx.execute(delete(workers).where(workers.c.id == one.worker.lease.id))

        await one.penstock.db.transaction(remove)
        await other.work_until_idle()
        assert ((await other.operations.get(made.id)).status, shop.runs[1]) == ("Completed", 2)
        assert await one.worker.lease.beat() is False
        shop.wall.gone.set()


async def test_a_worker_that_starts_takes_over_at_once_from_a_process_of_its_host_that_is_gone(database_url, tmp_path):
    process = await asyncio.create_subprocess_exec("true")
    await process.wait()
    settings = Settings(database_url=database_url, storage_url=str(tmp_path))
    async with Penstock.open(settings=settings) as penstock:

        async def leave(tx: Any) -> None:
            for worker, host in (("here", host_name()), ("elsewhere", "elsewhere")):
                values = {"id": worker, "host": host, "process": process.pid, "lease_until": 2**62, "started_at": 0}
                await tx.execute(insert(workers).values(**values))

        await penstock.db.transaction(leave)
        async with penstock.worker() as worker, penstock.db.read() as tx:
            living = set((await tx.execute(select(workers.c.id))).scalars())
        assert living == {"elsewhere", worker.lease.id}
