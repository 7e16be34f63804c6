"""A row that kills its worker: suspects run in small groups, then alone, and the guilty one fails by itself."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from approvals import Paper, Wall, a_moment, at_wall, clean, history, papers, states, work_or_wall
from patience import HANG_S
from stored import rows_of

from penstock import Context, Pipeline, operation, step
from penstock.operations.model import Operation
from penstock.settings import Settings
from penstock.testing import Engine, engine

DONE, FAILED = "Completed", "Failed"


class Mine:
    """Rows of the desk 'mine' kill whoever runs them: they stop at a wall, and the test kills the worker there."""

    def __init__(self, *, delivery: Any = "at_least_once", concurrency: int = 1000) -> None:
        self.wall = Wall()
        self.together: list[set[int]] = []
        self.running: set[int] = set()
        self.runs: Counter[int] = Counter()
        mine = self

        @operation("mine", row_key="code", max_row_concurrency=concurrency)
        class Kind(Pipeline[Paper]):
            @step(delivery=delivery)
            async def dig(self, paper: Paper, ctx: Context) -> None:
                mine.runs[ctx.row_number] += 1
                mine.running.add(ctx.row_number)
                if paper.desk == "mine":
                    mine.together.append(set(mine.running))
                    mine.wall.reached.set()
                await mine.wall.gone.wait() if paper.desk == "mine" else await asyncio.sleep(0)
                mine.running.discard(ctx.row_number)

        self.kind = Kind

    async def explode(self, e: Engine) -> None:
        """Work until somebody steps on the mine, and kill the worker."""
        self.wall.reached.clear()
        self.running.clear()
        await at_wall(self.wall, e.work_until_idle())
        await e.crash()


async def dig(e: Engine, mine: Mine, rows: list[dict[str, str]], deaths: int) -> Operation:
    made = await e.create(mine.kind, rows)
    for _ in range(deaths):
        await mine.explode(e)
    await e.work_until_idle()
    return await e.operations.get(made.id)


async def until_over(e: Engine, wall: Wall) -> int:
    """Kill the worker whenever it stands at the wall, until it gets through; says how many died."""
    for deaths in range(20):
        if not await work_or_wall(wall, e.work_until_idle()):
            return deaths
        await e.crash()
        wall.reached.clear()
    raise AssertionError("workers go on dying")


def mined(count: int, *bad: int) -> list[dict[str, str]]:
    rows = papers(count)
    for row in bad:
        rows[row - 1]["desk"] = "mine"
    return rows


@pytest.mark.covers("I-10")
async def test_a_row_that_kills_its_worker_four_times_is_poison_and_its_neighbours_complete(database_url, tmp_path):
    mine = Mine()
    async with engine([mine.kind], url=database_url, tmp_path=tmp_path) as e:
        done = await dig(e, mine, mined(100, 40), deaths=4)
        assert (done.status, done.successful_rows, done.failed_rows) == ("CompletedWithErrors", 99, 1)
        (error,) = (await e.operations.errors(done.id)).items
        assert (error.row, error.error_type, error.state) == (40, "Poison", FAILED)
        assert [h.event for h in await history(e, done, row=40)] == ["owner_lost"] * 3
        assert [row.lost for row in await rows_of(e.penstock.db, done.id)][39] == 4
        assert await clean(e) == []
    assert mine.runs[40] == 4
    assert max(runs for row, runs in mine.runs.items() if row != 40) <= 3


@pytest.mark.covers("I-10")
async def test_groups_shrink_around_suspects_to_32_and_then_to_one(database_url, tmp_path):
    mine = Mine()
    in_flight: list[list[int]] = []
    async with engine([mine.kind], url=database_url, tmp_path=tmp_path) as e:
        made = await e.create(mine.kind, mined(100, 40))
        for _ in range(4):
            mine.wall.reached.clear()
            mine.running.clear()
            await at_wall(mine.wall, e.work_until_idle())
            in_flight.append([row.number for row in await rows_of(e.penstock.db, made.id) if row.in_flight])
            await e.crash()
        await e.work_until_idle()
        assert await clean(e) == []
    assert len(in_flight[0]) == 100
    assert len(in_flight[1]) <= 32
    assert in_flight[2:] == [[40], [40]]


@pytest.mark.covers("I-10")
async def test_two_poison_rows_in_one_chunk_fail_both_and_no_other(database_url, tmp_path):
    mine = Mine()
    async with engine([mine.kind], url=database_url, tmp_path=tmp_path) as e:
        made = await e.create(mine.kind, mined(50, 10, 11))
        await until_over(e, mine.wall)
        done = await e.operations.get(made.id)
        assert (done.status, done.successful_rows, done.failed_rows) == ("CompletedWithErrors", 48, 2)
        assert [error.row for error in (await e.operations.errors(made.id)).items] == [10, 11]
        assert await clean(e) == []


@pytest.mark.covers("I-10", "SM-044")
async def test_a_poison_row_can_be_retried_and_starts_with_a_clean_slate(database_url, tmp_path):
    mine = Mine()
    async with engine([mine.kind], url=database_url, tmp_path=tmp_path) as e:
        done = await dig(e, mine, mined(3, 2), deaths=4)
        mine.wall.gone.set()
        assert (await e.operations.retry(done.id)).submitted == 1
        await e.work_until_idle()
        assert await states(e, done) == [DONE] * 3
        assert [row.lost for row in await rows_of(e.penstock.db, done.id)][1] == 0
        assert await clean(e) == []


async def test_at_most_once_rows_in_flight_are_in_doubt_and_never_run_again(database_url, tmp_path):
    mine = Mine(delivery="at_most_once", concurrency=2)
    async with engine([mine.kind], url=database_url, tmp_path=tmp_path) as e:
        done = await dig(e, mine, mined(6, 3), deaths=1)
        errors = (await e.operations.errors(done.id)).items
        assert {error.error_type for error in errors} == {"InDoubt"}
        assert 3 in [error.row for error in errors]
        assert max(mine.runs.values()) == 1
        assert done.successful_rows + done.failed_rows == 6
        assert await clean(e) == []


@pytest.mark.covers("I-10")
async def test_deaths_at_steps_that_the_row_then_gets_through_do_not_add_up(database_url, tmp_path):
    """Four workers die, each for a reason of its own, while the row is at another step: it is not to blame."""
    wall, seen = Wall(), set()

    @operation("unlucky")
    class Unlucky(Pipeline[Paper]):
        @step
        async def one(self, paper: Paper, ctx: Context) -> None:
            await self.go(ctx)

        @step(barrier=True)
        async def two(self, paper: Paper, ctx: Context) -> None:
            await self.go(ctx)

        @step(barrier=True)
        async def three(self, paper: Paper, ctx: Context) -> None:
            await self.go(ctx)

        @step(barrier=True)
        async def four(self, paper: Paper, ctx: Context) -> None:
            await self.go(ctx)

        async def go(self, ctx: Context) -> None:
            if ctx.step_name not in seen:
                seen.add(ctx.step_name)
                await wall.stop()

    async with engine([Unlucky], url=database_url, tmp_path=tmp_path) as e:
        made = await e.create(Unlucky, papers(1))
        for _ in range(4):
            wall.reached.clear()
            await at_wall(wall, e.work_until_idle())
            await e.crash()
        await e.work_until_idle()
        assert await states(e, made) == [DONE]
        assert await clean(e) == []


async def test_a_row_that_is_poison_behind_a_step_that_was_tried_again_has_one_error(database_url, tmp_path):
    wall = Wall()

    @operation("twice")
    class Twice(Pipeline[Paper]):
        @step(retries=1, backoff=0)
        async def first(self, paper: Paper, ctx: Context) -> None:
            if ctx.attempt == 1:
                raise OSError("not now")

        @step
        async def second(self, paper: Paper, ctx: Context) -> None:
            await wall.stop()

    async with engine([Twice], url=database_url, tmp_path=tmp_path, settings=Settings(flush_s=0.01)) as e:
        made = await e.create(Twice, papers(1))
        for _ in range(4):
            working = asyncio.create_task(e.work_until_idle())
            async with asyncio.timeout(HANG_S):
                await wall.reached.wait()
                while [row.steps[0].state for row in await rows_of(e.penstock.db, made.id)] != [DONE]:
                    await a_moment()  # until it is written that the first step is done
            working.cancel()
            await asyncio.gather(working, return_exceptions=True)
            await e.crash()
            wall.reached.clear()
        await e.work_until_idle()
        (error,) = (await e.operations.errors(made.id)).items
        assert (error.step_name, error.error_type) == ("second", "Poison")
        assert await clean(e) == []


async def test_too_many_poison_rows_break_the_operation(database_url, tmp_path):
    mine = Mine()
    few = Settings(poison_rows_max=0)
    async with engine([mine.kind], url=database_url, tmp_path=tmp_path, settings=few) as e:
        done = await dig(e, mine, mined(2, 1), deaths=4)
        assert done.status == "Failed"
        assert done.error is not None
        assert "poison" in done.error.lower()
        assert await clean(e) == []


async def test_a_poll_that_kills_its_worker_is_poison_too(database_url, tmp_path):
    wall, bodies = Wall(), []

    @operation("polled")
    class Polled(Pipeline[Paper]):
        @step.poll(every=1, timeout=10_000)
        async def ask(self, paper: Paper, ctx: Context) -> None:
            bodies.append(ctx.row_number)

        @ask.check
        async def is_done(self, paper: Paper, ctx: Context) -> bool:
            if paper.desk == "mine":
                await wall.stop()
            return True

    async with engine([Polled], url=database_url, tmp_path=tmp_path) as e:
        made = await e.create(Polled, mined(3, 2))
        for _ in range(4):
            wall.reached.clear()
            await at_wall(wall, e.work_until_idle())
            await e.crash()
        await e.work_until_idle()
        assert await states(e, made) == [DONE, FAILED, DONE]
        assert [error.error_type for error in (await e.operations.errors(made.id)).items] == ["Poison"]
        assert sorted(bodies) == [1, 2, 3]
        assert await clean(e) == []


@pytest.mark.covers("I-10", "I-11")
async def test_a_row_that_kills_its_validator_is_invalid_and_its_neighbours_run(database_url, tmp_path: Path):
    wall, batches = Wall(), []

    @operation("fatal", row_key="code")
    class Fatal(Pipeline[Paper]):
        async def validate_row(self, paper: Paper, meta: None) -> None:
            if paper.desk == "mine":
                await wall.stop()

        @step
        async def work(self, paper: Paper, ctx: Context) -> None:
            batches.append(ctx.row_number)

    async with engine([Fatal], url=database_url, tmp_path=tmp_path, settings=Settings(chunk_rows=100)) as e:
        made = await e.create(Fatal, mined(90, 40))
        deaths = await until_over(e, wall)
        done = await e.operations.get(made.id)
        assert (done.status, done.successful_rows, done.invalid_rows) == ("CompletedWithErrors", 89, 1)
        (error,) = (await e.operations.errors(made.id)).items
        assert (error.row, error.error_type) == (40, "Poison")
        assert "killed its validator" in error.message
        assert deaths <= 6, "one bad row costs few deaths"
        assert 40 not in batches
        assert await clean(e) == []
