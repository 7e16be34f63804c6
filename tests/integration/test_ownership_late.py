"""A worker whose chunk went to another: it begins nothing more of it, and tells what it learned too late."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from approvals import Paper, Wall, a_moment, at_wall, clean, history, papers, states, two_engines
from patience import HANG_S
from sqlalchemy import update
from stored import rows_of

from penstock import Context, Pipeline, StepFailed, failpoints, operation, step
from penstock.operations.chunk.store import Lost
from penstock.operations.running.actor import ChunkActor
from penstock.operations.tables import chunks
from penstock.settings import Settings
from penstock.testing import Engine

BRISK = Settings(flush_s=0.01)
LEASE_S = BRISK.lease_s
DONE = "Completed"


class Forge:
    """Rows stop at a wall of their own the first time they run; whoever runs them again goes through."""

    def __init__(self, hands: int, *walls: int) -> None:
        self.walls = {row: Wall() for row in walls}
        self.runs: Counter[int] = Counter()
        forge = self

        @operation("forge", max_row_concurrency=hands)
        class Kind(Pipeline[Paper]):
            @step
            async def work(self, paper: Paper, ctx: Context) -> int:
                forge.runs[ctx.row_number] += 1
                if ctx.row_number in forge.walls and forge.runs[ctx.row_number] == 1:
                    await forge.walls[ctx.row_number].stop()
                if paper.desk == "broken":
                    raise StepFailed("broken")
                return forge.runs[ctx.row_number]

        self.kind = Kind


@pytest.mark.covers("I-13", "I-14")
async def test_no_row_begins_once_a_write_has_shown_that_the_chunk_is_lost(database_url, tmp_path):
    forge = Forge(2, 2, 3)
    async with two_engines(forge.kind, url=database_url, folder=tmp_path) as (frozen, other):
        made = await frozen.create(forge.kind, papers(5))
        await at_wall(forge.walls[3], frozen.work_until_idle())
        await other.advance(LEASE_S + 1)
        await other.work_until_idle()
        assert await states(other, made) == [DONE] * 5
        (actor,) = [actor for actor in frozen.worker.actors.values() if actor]
        actor.look(actor.owned.message_count + 1)
        await let_go(frozen)
        await frozen.work_until_idle()  # the lease is renewed, and all that it holds is its own
        for wall in forge.walls.values():
            wall.gone.set()
        await a_moment()
        assert forge.runs == {1: 2, 2: 2, 3: 2, 4: 1, 5: 1}
        assert await clean(other) == []


async def test_a_lost_chunk_does_not_take_the_hands_of_others_with_it(database_url, tmp_path):
    forge = Forge(1, 1)
    small = Settings(flush_s=0.01, chunk_rows=2)
    async with two_engines(forge.kind, url=database_url, folder=tmp_path, settings=small) as (one, _):
        made = await one.create(forge.kind, papers(4))
        await at_wall(forge.walls[1], one.work_until_idle())
        await one.worker.tick()
        await a_moment()
        assert len(one.worker.actors) == 2
        await take_away(one, first_row=1)
        await one.worker.look_round()
        await let_go(one)
        assert (forge.runs[3], forge.runs[4]) == (1, 1)
        assert (await states(one, made))[2:] == [DONE, DONE]


@pytest.mark.covers("I-14")
@pytest.mark.parametrize(
    "desk, words, error_type",
    [
        ("goes well", "ended Completed", None),
        ("fails", "ended Failed: no such part", "StepFailure"),
        ("stumbles", "ended Pending: OSError: try again", "StepFailure"),
    ],
)
async def test_a_result_that_comes_too_late_leaves_a_line_in_the_history_and_nothing_else(
    database_url, tmp_path, desk, words, error_type
):
    wall = Wall()

    @operation("ending")
    class Kind(Pipeline[Paper]):
        @step(retries=2)
        async def work(self, paper: Paper, ctx: Context) -> str:
            if ctx.attempt > 1:
                return "second"
            await wall.stop()
            match paper.desk:
                case "fails":
                    raise StepFailed("no such part")
                case "stumbles":
                    raise OSError("try again")
            return "first"

    async with two_engines(Kind, url=database_url, folder=tmp_path) as (frozen, other):
        made = await frozen.create(Kind, papers(1, desk=desk))
        await at_wall(wall, frozen.work_until_idle())
        await other.advance(LEASE_S + 1)
        await other.work_until_idle()
        wall.gone.set()
        await a_moment()
        await frozen.work_until_idle()
        lost, late = await history(other, made)
        assert lost.event == "owner_lost"
        assert (late.event, late.step_name, late.attempt, late.error_type) == ("late_result", "work", 1, error_type)
        assert words in (late.message or "")
        assert frozen.worker.lease.id in (late.message or "")
        (row,) = await rows_of(other.penstock.db, made.id)
        assert row.outputs == ["second"]
        assert await clean(other) == []


@pytest.mark.covers("I-14")
async def test_a_call_in_doubt_has_a_line_that_says_what_came_of_it(database_url, tmp_path):
    wall = Wall()

    @operation("payment")
    class Payment(Pipeline[Paper]):
        @step(delivery="at_most_once")
        async def pay(self, paper: Paper, ctx: Context) -> None:
            await wall.stop()

    async with two_engines(Payment, url=database_url, folder=tmp_path) as (frozen, other):
        made = await frozen.create(Payment, papers(1))
        await at_wall(wall, frozen.work_until_idle())
        await other.advance(LEASE_S + 1)
        await other.work_until_idle()
        wall.gone.set()
        await a_moment()
        await frozen.work_until_idle()
        (row,) = (await other.operations.errors(made.id)).items
        assert row.error_type == "InDoubt"
        assert [line.event for line in await history(other, made)] == ["late_result"]
        assert await clean(other) == []


@pytest.mark.parametrize("is_there, late", [(True, ["late_result"]), (False, [])])
async def test_only_a_check_that_ended_a_wait_leaves_a_line(database_url, tmp_path, is_there, late):
    wall = Wall()
    checks: Counter[int] = Counter()

    @operation("parcel")
    class Parcel(Pipeline[Paper]):
        @step.poll(every=1, timeout=1000)
        async def ship(self, paper: Paper, ctx: Context) -> None: ...

        @ship.check
        async def has_arrived(self, paper: Paper, ctx: Context) -> bool:
            checks[ctx.row_number] += 1
            if checks[ctx.row_number] > 1:
                return True
            await wall.stop()
            return is_there

    async with two_engines(Parcel, url=database_url, folder=tmp_path) as (frozen, other):
        made = await frozen.create(Parcel, papers(1))
        await at_wall(wall, frozen.work_until_idle())
        await other.advance(LEASE_S + 1)
        await other.work_until_idle()
        wall.gone.set()
        await let_go(frozen)
        assert await states(other, made) == [DONE]
        assert [line.event for line in await history(other, made)] == ["owner_lost", *late]


async def test_rows_that_did_not_end_here_or_were_written_in_time_leave_no_line(database_url, tmp_path):
    forge = Forge(3, 3)
    async with two_engines(forge.kind, url=database_url, folder=tmp_path, settings=BRISK) as (frozen, other):
        rows = papers(3)
        rows[1]["desk"] = "broken"
        made = await frozen.create(forge.kind, rows)
        async with flushed():  # the first two rows are on disk
            await at_wall(forge.walls[3], frozen.work_until_idle())
        await other.advance(LEASE_S + 1)
        await other.work_until_idle()
        await frozen.worker.look_round()
        await let_go(frozen)
        assert await states(other, made) == [DONE, "Failed", DONE]
        assert [(line.row, line.event) for line in await history(other, made)] == [(3, "owner_lost")]


async def test_a_result_that_nobody_could_refuse_leaves_no_line(database_url, tmp_path, monkeypatch):
    """The chunk is still ours on disk, so whoever claims it next finds the row in flight."""
    forge = Forge(1, 1)
    async with two_engines(forge.kind, url=database_url, folder=tmp_path) as (one, _):
        made = await one.create(forge.kind, papers(1))
        await at_wall(forge.walls[1], one.work_until_idle())

        async def lost(*_: object, **__: object) -> None:
            raise Lost("the database was away for longer than our lease")

        with monkeypatch.context() as patch:
            patch.setattr(ChunkActor, "_commit", lost)
            forge.walls[1].gone.set()
            await a_moment()
        await one.work_until_idle()
        await one.advance(LEASE_S + 1)
        await one.work_until_idle()
        assert await states(one, made) == [DONE]
        assert "late_result" not in [line.event for line in await history(one, made)]


async def let_go(e: Engine) -> None:
    """Wait until the worker holds no chunk any more."""
    async with asyncio.timeout(HANG_S):
        while e.worker.actors:
            e.worker.wake.clear()
            await e.worker.wake.wait()


@asynccontextmanager
async def flushed() -> AsyncIterator[None]:
    """Wait, at the end, until something was flushed."""
    loop, done = asyncio.get_running_loop(), asyncio.Event()

    def note(point: str) -> None:
        if point == "flush:after":
            loop.call_soon_threadsafe(done.set)

    with failpoints.armed(note):
        yield
        async with asyncio.timeout(HANG_S):
            await done.wait()


async def take_away(e: Engine, *, first_row: int) -> None:
    async with e.penstock.db.write() as tx:
        await tx.execute(
            update(chunks).where(chunks.c.first_row == first_row).values(owner="another", fence=chunks.c.fence + 1)
        )
