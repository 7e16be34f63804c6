"""Interruptions: a worker stops or dies anywhere, another goes on; no row is lost, none runs again once recorded."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from approvals import a_moment
from patience import HANG_S
from pydantic import BaseModel
from sqlalchemy import delete, select
from stored import history_of, records_of, rows_of

from penstock import BatchContext, Context, Pipeline, RetryLater, operation, step
from penstock.clock import ManualClock
from penstock.operations.operation_ids import number_of
from penstock.operations.tables import chunks, operations, workers
from penstock.settings import Settings
from penstock.testing import Engine, engine

# Nothing is written and nobody looks round because a machine is slow.
SMALL = Settings(chunk_rows=5, flush_rows=5, shutdown_s=0, flush_s=3600, control_poll_s=3600)
PATIENT = Settings(chunk_rows=5, flush_rows=5)
LEASE_S = SMALL.lease_s


class Item(BaseModel):
    id: int


class Wall:
    """Where the first worker gets stuck: whoever calls `at` with this row stays there until the wall is gone."""

    def __init__(self, row: int) -> None:
        self.row, self.reached, self.gone = row, asyncio.Event(), asyncio.Event()

    async def at(self, row: int) -> None:
        if row == self.row:
            self.reached.set()
            await self.gone.wait()


def items(count: int) -> list[dict[str, int]]:
    return [{"id": n} for n in range(1, count + 1)]


async def until_stuck(e: Engine, wall: Wall) -> None:
    """Work until the worker stands at the wall."""
    work = asyncio.create_task(e.work_until_idle())
    reached = asyncio.create_task(wall.reached.wait())
    done, _ = await asyncio.wait({work, reached}, timeout=HANG_S, return_when=asyncio.FIRST_COMPLETED)
    assert reached in done, "the worker never came to the wall"
    work.cancel()
    await asyncio.gather(work, return_exceptions=True)


async def interrupt(e: Engine, wall: Wall, how: str) -> None:
    """End the worker that stands at the wall, and start another."""
    await until_stuck(e, wall)
    if how == "stopped":
        stopping = asyncio.create_task(e.restart())
        await asyncio.sleep(0)  # it has been told to stop, and what runs may end
        wall.gone.set()
        await stopping
    elif how == "cut off":
        await e.restart()
    else:
        await e.crash()
    wall.gone.set()


interruptions = pytest.mark.parametrize("how", ["stopped", "cut off", "killed"])


@pytest.mark.parametrize("how", ["stopped", "killed"])
@pytest.mark.covers("I-01")
async def test_reading_goes_on_behind_the_last_stored_row(database_url: str, tmp_path: Path, how: str):
    wall = Wall(13)
    judged: Counter[int] = Counter()

    @operation("read")
    class Read(Pipeline[Item]):
        async def validate_row(self, row: Item, meta: None) -> None:
            judged[row.id] += 1
            await wall.at(row.id)

        @step
        async def call(self, row: Item, ctx: Context) -> int:
            return row.id

    async with engine([Read], url=database_url, tmp_path=tmp_path, settings=PATIENT) as e:
        made = await e.create(Read, items(23))
        await interrupt(e, wall, how)
        before = [row.number for row in await rows_of(e.penstock.db, made.id)]
        await e.work_until_idle()
        done = await e.operations.get(made.id)
        stored = await rows_of(e.penstock.db, made.id)
    assert before == list(range(1, len(before) + 1))
    assert 5 <= len(before) <= 15
    assert (done.status, done.total_rows, done.rows_read, done.successful_rows) == ("Completed", 23, 23, 23)
    assert [(row.number, row.outputs) for row in stored] == [(n, [n]) for n in range(1, 24)]
    assert all(judged[n] == 1 for n in before)


@interruptions
@pytest.mark.covers("I-06", "I-10")
async def test_no_row_is_lost_and_none_is_run_again_once_its_completion_was_recorded(
    database_url: str, tmp_path: Path, how: str
):
    wall = Wall(13)
    calls: Counter[int] = Counter()

    @operation("run", max_row_concurrency=2)
    class Run(Pipeline[Item]):
        @step
        async def call(self, row: Item, ctx: Context) -> int:
            calls[row.id] += 1
            await wall.at(row.id)
            return row.id

    settings = PATIENT if how == "stopped" else SMALL
    async with engine([Run], url=database_url, tmp_path=tmp_path, settings=settings) as e:
        made = (await e.create(Run, items(23))).id
        await interrupt(e, wall, how)
        recorded = {row.number for row in await rows_of(e.penstock.db, made) if row.verdict == "Completed"}
        earlier = dict(calls)
        await e.work_until_idle()
        done = await e.operations.get(made)
        stored = await rows_of(e.penstock.db, made)
    assert (done.status, done.successful_rows) == ("Completed", 23)
    assert [row.outputs for row in stored] == [[n] for n in range(1, 24)]
    assert {n for n in recorded if calls[n] > 1} == set()
    assert calls[13] == (1 if how == "stopped" else 2)
    again = {n for n in calls if calls[n] > earlier.get(n, 0)}
    assert again == set(range(1, 24)) - recorded
    assert all(calls[row.number] <= row.attempts[0] for row in stored)
    assert any(row.lost for row in stored) == (how == "killed")


@pytest.mark.covers("I-10")
async def test_attempts_lost_with_their_worker_spend_no_retry(database_url: str, tmp_path: Path):
    wall = Wall(3)

    @operation("lost")
    class Lost(Pipeline[Item]):
        @step(retries=1, backoff=1)
        async def call(self, row: Item, ctx: Context) -> None:
            await wall.at(row.id)
            if row.id == 3 and ctx.attempt == 2:
                raise OSError("its first error")

    async with engine([Lost], url=database_url, tmp_path=tmp_path, settings=SMALL) as e:
        made = (await e.create(Lost, items(4))).id
        await interrupt(e, wall, "killed")
        await e.work_until_idle()
        await e.advance(2)
        await e.work_until_idle()
        done = await e.operations.get(made)
        third = (await rows_of(e.penstock.db, made))[2]
    assert (done.status, done.successful_rows) == ("Completed", 4)
    assert (third.attempts, third.lost) == ([3], 1)


@pytest.mark.parametrize("how", ["cut off", "killed"])
@pytest.mark.parametrize("manner", ["one", "batch"])
async def test_a_call_that_may_happen_once_and_was_cut_off_is_in_doubt(
    database_url: str, tmp_path: Path, how: str, manner: str
):
    wall = Wall(2)
    calls: Counter[int] = Counter()

    async def one(self: Any, row: Item, ctx: Context) -> None:
        calls[row.id] += 1
        await wall.at(row.id)

    async def batch(self: Any, rows: list[Item], ctx: BatchContext) -> None:
        calls.update(row.id for row in rows)
        await wall.at(rows[0].id)

    @operation("once", max_row_concurrency=1)
    class Once(Pipeline[Item]):
        pay = (
            step(delivery="at_most_once")(one)
            if manner == "one"
            else step.batch(size=1, delivery="at_most_once")(batch)
        )

    async with engine([Once], url=database_url, tmp_path=tmp_path, settings=SMALL) as e:
        made = (await e.create(Once, items(5))).id
        await interrupt(e, wall, how)
        await e.work_until_idle()
        done = await e.operations.get(made)
        stored = await rows_of(e.penstock.db, made)
        records = {r.row: r for r in await records_of(e.penstock.db, made)}
    assert done.status == "CompletedWithErrors"
    assert max(calls.values()) == 1
    assert stored[1].verdict == "Failed"
    assert records[2].error_type == "InDoubt"
    # Rows of the same group that had not begun may be in doubt as well, but none is run twice or lost.
    for row in stored:
        in_doubt = row.number in records and records[row.number].error_type == "InDoubt"
        assert row.verdict == "Completed" if not in_doubt else row.verdict == "Failed"
        assert in_doubt or calls[row.number] == 1


@pytest.mark.covers("I-07", "SM-062")
async def test_an_attempt_is_on_disk_before_user_code_runs(database_url: str, tmp_path: Path):
    seen: list[tuple[bool, list[int]]] = []

    @operation("ahead")
    class Ahead(Pipeline[Item]):
        @step(retries=1, backoff=1)
        async def call(self, row: Item, ctx: Context) -> None:
            stored = (await rows_of(e.penstock.db, made.id))[row.id - 1]
            seen.append((stored.in_flight, stored.attempts))
            if ctx.attempt == 1:
                raise OSError("once")

    async with engine([Ahead], url=database_url, tmp_path=tmp_path, settings=SMALL) as e:
        made = await e.create(Ahead, items(2))
        await e.work_until_idle()
        await e.advance(2)
        await e.work_until_idle()
    assert seen == [(True, [1])] * 2 + [(True, [2])] * 2


async def test_before_a_barrier_starts_everything_earlier_is_on_disk(database_url: str, tmp_path: Path):
    seen: list[tuple[list[str], list[Any]]] = []

    @operation("wall")
    class Barrier(Pipeline[Item]):
        @step
        async def one(self, row: Item, ctx: Context) -> int:
            return row.id

        @step
        def two(self, row: Item, ctx: Context) -> None: ...

        @step(barrier=True)
        async def three(self, row: Item, ctx: Context) -> None:
            stored = (await rows_of(e.penstock.db, made.id))[row.id - 1]
            seen.append((stored.states[:2], stored.outputs[:1]))

    async with engine([Barrier], url=database_url, tmp_path=tmp_path, settings=SMALL) as e:
        made = await e.create(Barrier, items(3))
        await e.work_until_idle()
    assert sorted(seen, key=lambda s: s[1]) == [(["Completed", "Completed"], [n]) for n in (1, 2, 3)]


@interruptions
async def test_a_crash_behind_a_barrier_does_not_repeat_what_came_before_it(
    database_url: str, tmp_path: Path, how: str
):
    wall = Wall(4)
    calls: Counter[str] = Counter()

    @operation("stages")
    class Stages(Pipeline[Item]):
        @step
        async def one(self, row: Item, ctx: Context) -> None:
            calls["one"] += 1

        @step(barrier=True)
        async def two(self, row: Item, ctx: Context) -> None:
            calls["two"] += 1
            await wall.at(row.id)

    settings = PATIENT if how == "stopped" else SMALL
    async with engine([Stages], url=database_url, tmp_path=tmp_path, settings=settings) as e:
        made = (await e.create(Stages, items(5))).id
        await interrupt(e, wall, how)
        await e.work_until_idle()
        done = await e.operations.get(made)
    assert (done.status, done.successful_rows, calls["one"]) == ("Completed", 5, 5)
    assert calls["two"] == 5 if how == "stopped" else calls["two"] > 5


@pytest.mark.parametrize("how", ["its lease is over", "it was declared dead"])
@pytest.mark.parametrize("rows", [5, 6], ids=["operation over", "operation goes on"])
async def test_a_worker_that_lost_its_chunk_writes_nothing_any_more(
    database_url: str, tmp_path: Path, how: str, rows: int
):
    entered, leave = asyncio.Event(), asyncio.Event()
    calls: list[tuple[int, int]] = []

    @operation("zombie", max_row_concurrency=1)
    class Zombie(Pipeline[Item]):
        @step
        async def call(self, row: Item, ctx: Context) -> str:
            calls.append((row.id, ctx.attempt))
            if row.id == 2 and ctx.attempt == 1:
                entered.set()
                await leave.wait()
            if row.id == 6:  # alone in its chunk, which stays open
                raise RetryLater(after=3600)
            return "first" if ctx.attempt == 1 else "second"

    clock = ManualClock()
    async with engine([Zombie], url=database_url, tmp_path=tmp_path, settings=SMALL, clock=clock) as first:
        made = await first.create(Zombie, items(rows))
        work = asyncio.create_task(first.work_until_idle())
        async with asyncio.timeout(HANG_S):
            await entered.wait()
            while sum(actor.owned.row_count for actor in first.worker.actors.values() if actor) < rows:
                await a_moment()
        if how == "its lease is over":
            clock.advance(LEASE_S + 1)
        else:
            async with first.penstock.db.write() as tx:
                await tx.execute(delete(workers))
        async with engine([Zombie], url=database_url, tmp_path=tmp_path, settings=SMALL, clock=clock) as second:
            await second.work_until_idle()
            before = await everything(second, made.id)
            leave.set()
            await work
            assert await everything(second, made.id) == before
            done = await second.operations.get(made.id)
            stored = await rows_of(second.penstock.db, made.id)
    assert (done.status, done.successful_rows) == ("Completed" if rows == 5 else "Running", 5)
    assert [row.outputs for row in stored[:5]] == [["second"]] * 5
    # Only the lease by its own clock can keep a zombie from starting more; the fence keeps it from recording it.
    # The chunks may run in any order.
    assert sorted(calls[2 : rows + 2]) == [(n, 2) for n in range(1, rows + 1)]
    assert sorted(calls[rows + 2 :]) == ([] if how == "its lease is over" else [(n, 1) for n in range(3, rows + 1)])


async def everything(e: Engine, operation_id: str) -> list[Any]:
    """All that is stored of an operation and its chunks."""
    async with e.penstock.db.read() as tx:
        number = await number_of(tx, operation_id)
        head = await tx.execute(select(operations).where(operations.c.number == number))
        parts = await tx.execute(select(chunks).where(chunks.c.operation == number).order_by(chunks.c.id))
        return [*head, *parts]


async def test_a_worker_leaves_operations_it_does_not_know_alone(database_url: str, tmp_path: Path):
    @operation("mine")
    async def mine(row: Item, ctx: Context) -> None: ...

    @operation("yours")
    async def yours(row: Item, ctx: Context) -> None: ...

    clock = ManualClock()
    async with engine([mine], url=database_url, tmp_path=tmp_path, clock=clock) as e:
        made = await e.create(mine, items(1))
    async with engine([yours], url=database_url, tmp_path=tmp_path, clock=clock) as e:
        await e.work_until_idle()
        assert (await e.operations.get(made.id)).status == "Pending"


async def test_history_of_a_row_survives_a_change_of_workers(database_url: str, tmp_path: Path):
    @operation("long")
    class Long(Pipeline[Item]):
        @step(retries=3, backoff=1)
        async def call(self, row: Item, ctx: Context) -> None:
            if ctx.attempt < 4:
                raise OSError(f"no {ctx.attempt}")

    clock = ManualClock()
    made = None
    for _ in range(4):
        async with engine([Long], url=database_url, tmp_path=tmp_path, clock=clock) as e:
            made = made or await e.create(Long, items(1))
            await e.work_until_idle()
            lines = await history_of(e.penstock.db, made.id)
            done = await e.operations.get(made.id)
        clock.advance(60)
    assert done.status == "Completed"
    assert [line.message for line in lines if line.event == "postponed"] == [f"OSError: no {n}" for n in (1, 2, 3)]
