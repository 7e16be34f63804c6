"""What the harness has found, each made small enough to happen every time."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from patience import HANG_S
from pydantic import BaseModel

from penstock import Context, Pipeline, operation, step
from penstock.clock import ManualClock
from penstock.operations.chunk import store
from penstock.settings import Settings
from penstock.testing import Engine, engine

LEASE_S = 10.0
SETTINGS = Settings(lease_s=LEASE_S, lease_margin_s=2, chunk_rows=3, flush_rows=3, shutdown_s=1)


class Item(BaseModel):
    id: int


def items(count: int) -> list[dict[str, Any]]:
    return [{"id": number} for number in range(1, count + 1)]


class Gate:
    """Holds the first call of one row until it is opened."""

    def __init__(self, row: int) -> None:
        self.row, self.is_used = row, False
        self.entered, self.opened = asyncio.Event(), asyncio.Event()

    async def pass_through(self, row: int) -> None:
        if row == self.row and not self.is_used:
            self.is_used = True
            self.entered.set()
            await self.opened.wait()


def be_deaf(e: Engine) -> None:
    """The heart of this worker beats no more, and it does not notice."""

    async def beat(over: Any = None) -> bool:
        return True

    e.worker.lease.beat = beat  # type: ignore[method-assign]


async def held_up(e: Engine, gate: Gate) -> asyncio.Task[None]:
    """Work until a row stands at the gate."""
    work = asyncio.create_task(e.work_until_idle())
    async with asyncio.timeout(HANG_S):
        await gate.entered.wait()
    return work


@pytest.mark.covers("I-14")
async def test_a_beat_after_the_lease_ran_out_does_not_bring_back_the_right_to_start(database_url: str, tmp_path: Path):
    gate = Gate(1)
    calls: list[tuple[int, int]] = []

    @operation("thawed", max_row_concurrency=1)
    class Thawed(Pipeline[Item]):
        @step
        async def call(self, row: Item, ctx: Context) -> None:
            calls.append((row.id, ctx.attempt))
            await gate.pass_through(row.id)

    clock = ManualClock()
    async with engine([Thawed], url=database_url, tmp_path=tmp_path, settings=SETTINGS, clock=clock) as frozen:
        made = await frozen.create(Thawed, items(3))
        work = await held_up(frozen, gate)
        clock.advance(LEASE_S + 1)
        async with engine([Thawed], url=database_url, tmp_path=tmp_path, settings=SETTINGS, clock=clock) as second:
            await second.work_until_idle()
            assert (await second.operations.get(made.id)).status == "Completed"
            await frozen.worker.lease.beat()
            gate.opened.set()
            await asyncio.gather(work, return_exceptions=True)
    assert calls == [(1, 1), (1, 2), (2, 2), (3, 2)]


@pytest.mark.covers("I-14", "I-18")
async def test_a_worker_whose_lease_ran_out_claims_nothing_not_even_its_own_reading(database_url: str, tmp_path: Path):
    gate = Gate(2)

    @operation("deaf reader")
    class Deaf(Pipeline[Item]):
        async def validate_row(self, row: Item, meta: None, /) -> None:
            await gate.pass_through(row.id)

        @step
        async def call(self, row: Item, ctx: Context) -> None: ...

    async with engine([Deaf], url=database_url, tmp_path=tmp_path, settings=SETTINGS) as e:
        made = await e.create(Deaf, items(3))
        work = await held_up(e, gate)
        be_deaf(e)
        e.clock.advance(LEASE_S + 1)
        assert not await e.worker.tick()
        assert (await e.operations.get(made.id)).status == "Validating"
        gate.opened.set()
        await asyncio.gather(work, return_exceptions=True)


@pytest.mark.covers("I-14")
async def test_a_reader_that_was_overtaken_leaves_though_its_chunk_is_there_already(database_url: str, tmp_path: Path):
    gate = Gate(2)

    @operation("overtaken reader")
    class Overtaken(Pipeline[Item]):
        async def validate_row(self, row: Item, meta: None, /) -> None:
            await gate.pass_through(row.id)

        @step
        async def call(self, row: Item, ctx: Context) -> None: ...

    clock = ManualClock()
    async with engine([Overtaken], url=database_url, tmp_path=tmp_path, settings=SETTINGS, clock=clock) as frozen:
        made = await frozen.create(Overtaken, items(3))
        work = await held_up(frozen, gate)
        be_deaf(frozen)
        clock.advance(LEASE_S + 1)
        async with engine([Overtaken], url=database_url, tmp_path=tmp_path, settings=SETTINGS, clock=clock) as second:
            await second.work_until_idle()
            gate.opened.set()
            await work
            done = await second.operations.get(made.id)
    assert (done.status, done.total_rows, done.successful_rows) == ("Completed", 3, 3)


@pytest.mark.covers("I-10")
async def test_a_worker_whose_lease_ran_out_does_not_poison_rows_that_never_began(database_url: str, tmp_path: Path):
    @operation("deaf worker")
    class Deaf(Pipeline[Item]):
        @step
        async def call(self, row: Item, ctx: Context) -> None: ...

    clock = ManualClock()
    async with engine([Deaf], url=database_url, tmp_path=tmp_path, settings=SETTINGS, clock=clock) as deaf:
        be_deaf(deaf)
        async with engine([Deaf], url=database_url, tmp_path=tmp_path, settings=SETTINGS, clock=clock) as second:
            made = await second.create(Deaf, items(3))
            await second.worker.tick()
            while second.worker.is_busy:
                await second.worker.wake.wait()
                second.worker.wake.clear()
        clock.advance(LEASE_S + 1)
        for _ in range(10):
            await deaf.worker.tick()
            while deaf.worker.is_busy:
                await deaf.worker.wake.wait()
        rows = (await deaf.operations.rows(made.id)).items
    assert [row.state for row in rows] == ["Pending"] * 3


@pytest.mark.covers("I-13")
async def test_a_claim_is_refused_when_the_last_owner_has_written_since_the_candidate_was_read(
    database_url: str, tmp_path: Path
):
    gate = Gate(2)

    @operation("overwritten", max_row_concurrency=1)
    class Overwritten(Pipeline[Item]):
        @step
        async def call(self, row: Item, ctx: Context) -> int:
            await gate.pass_through(row.id)
            return row.id

    settings = SETTINGS.model_copy(update={"flush_s": 0.01})
    clock = ManualClock()
    async with engine([Overwritten], url=database_url, tmp_path=tmp_path, settings=settings, clock=clock) as e:
        await e.create(Overwritten, items(3))
        work = await held_up(e, gate)
        clock.advance(LEASE_S + 1)
        db = e.penstock.db
        async with db.read() as tx:
            (seen,) = await store.candidates(db, tx, names=["overwritten"], limit=1)
        (owner,) = e.worker.actors.values()
        assert owner is not None
        await owner._flush()
        is_ours = await db.transaction(lambda tx: store.claim(db, tx, seen, owner="another", write=False))
        assert not is_ours
        gate.opened.set()
        await asyncio.gather(work, return_exceptions=True)
