"""A suspect row that is to run alone: while it waits for others, it is not lost, and holds up nobody for long."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from approvals import Paper, Wall, a_moment, at_wall, clean, papers, states
from patience import HANG_S
from stored import rows_of
from test_hanging_validators import crashes_of

from penstock import Context, Pipeline, operation, step
from penstock.operations.model import Operation
from penstock.operations.worker import tasks
from penstock.settings import Settings
from penstock.testing import Engine, engine

SHORT = 0.01  # a part of a second


class Three:
    """An operation whose row stops at a wall, one whose row kills its worker twice, and a quick one."""

    def __init__(self) -> None:
        self.slow_wall, self.mine_wall, self.quick_wall = Wall(), Wall(), Wall()
        self.runs: Counter[str] = Counter()
        three = self

        @operation("slow")
        class Slow(Pipeline[Paper]):
            @step
            async def wait(self, paper: Paper, ctx: Context) -> None:
                await three.slow_wall.stop()

        @operation("mine")
        class Mine(Pipeline[Paper]):
            @step
            async def dig(self, paper: Paper, ctx: Context) -> None:
                three.runs["mine"] += 1
                await three.mine_wall.stop()

        @operation("quick")
        class Quick(Pipeline[Paper]):
            @step
            async def only(self, paper: Paper, ctx: Context) -> None:
                three.runs["quick"] += 1
                three.quick_wall.reached.set()

        self.slow, self.mine, self.quick = Slow, Mine, Quick
        self.kinds = (Slow, Mine, Quick)

    async def suspect(self, e: Engine) -> Operation:
        """A row that was lost twice waits until the row of another operation, which is at the wall, has ended."""
        made = await e.create(self.mine, papers(1))
        for _ in range(2):
            self.mine_wall.reached.clear()
            await at_wall(self.mine_wall, e.work_until_idle())
            await e.crash()
        await e.operations.pause(made.id)
        await e.create(self.slow, papers(1))
        await at_wall(self.slow_wall, e.work_until_idle())
        self.mine_wall.reached.clear()
        await e.operations.resume(made.id)
        await at_wall(waits_alone(e), e.work_until_idle())
        return made


def waits_alone(e: Engine) -> Wall:
    """A wall that is reached when somebody wants to be alone."""
    wall, lock = Wall(), e.worker.shared_lock
    turn = lock.turn

    def watched(is_alone: bool = False):
        if is_alone:
            wall.reached.set()
        return turn(is_alone)

    lock.turn = watched  # type: ignore[method-assign]
    return wall


async def test_a_worker_that_dies_while_a_suspect_waits_to_be_alone_has_not_lost_it(database_url: str, tmp_path: Path):
    three = Three()
    async with engine(three.kinds, url=database_url, tmp_path=tmp_path) as e:
        made = await three.suspect(e)
        [row] = await rows_of(e.penstock.db, made.id)
        assert not row.in_flight
        await e.crash()
        three.slow_wall.gone.set()
        three.mine_wall.gone.set()
        await e.work_until_idle()
        [row] = await rows_of(e.penstock.db, made.id)
        assert (three.runs["mine"], await states(e, made)) == (3, ["Completed"])
        assert await clean(e) == []


async def test_a_reader_that_dies_while_its_suspects_wait_to_be_alone_has_not_crashed_over_them(
    database_url: str, tmp_path: Path
):
    three, wall = Three(), Wall()

    @operation("checked")
    class Checked(Pipeline[Paper]):
        async def validate_row(self, paper: Paper, meta: None) -> None:
            await wall.stop()

        @step
        async def only(self, paper: Paper, ctx: Context) -> None: ...

    async with engine([*three.kinds, Checked], url=database_url, tmp_path=tmp_path) as e:
        made = await e.create(Checked, papers(1))
        await at_wall(wall, e.work_until_idle())
        await e.crash()
        await e.operations.pause(made.id)
        await e.create(three.slow, papers(1))
        await at_wall(three.slow_wall, e.work_until_idle())
        await e.operations.resume(made.id)
        await at_wall(waits_alone(e), e.work_until_idle())
        await a_moment()
        await e.crash()
        three.slow_wall.gone.set()
        wall.reached.clear()
        await at_wall(wall, e.work_until_idle())
        assert await crashes_of(e, made.id) == 1
        wall.gone.set()
        await e.work_until_idle()
        assert await states(e, made) == ["Completed"]
        assert await clean(e) == []


async def test_a_suspect_that_waits_to_be_alone_does_not_hold_up_other_operations(
    database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(tasks, "PATIENCE_S", SHORT, raising=False)
    three = Three()
    async with engine(three.kinds, url=database_url, tmp_path=tmp_path) as e:
        suspect = await three.suspect(e)
        await e.create(three.quick, papers(1))
        await at_wall(three.quick_wall, e.work_until_idle())
        assert not three.mine_wall.reached.is_set()
        three.mine_wall.gone.set()
        three.slow_wall.gone.set()
        await e.work_until_idle()
        assert await states(e, suspect) == ["Completed"]
        assert await clean(e) == []


async def test_a_pause_ends_the_wait_of_a_suspect(database_url: str, tmp_path: Path):
    three = Three()
    async with engine(three.kinds, url=database_url, tmp_path=tmp_path) as e:
        suspect = await three.suspect(e)
        busy = len(e.worker.actors)
        await e.operations.pause(suspect.id)
        await e.worker.look_round()
        async with asyncio.timeout(HANG_S):
            while len(e.worker.actors) == busy:
                e.worker.wake.clear()
                await e.worker.wake.wait()
        three.slow_wall.gone.set()
        three.mine_wall.gone.set()
        await e.operations.resume(suspect.id)
        await e.work_until_idle()
        assert await states(e, suspect) == ["Completed"]
        assert await clean(e) == []


async def test_fresh_rows_that_wait_until_a_suspect_has_ended_are_not_lost_with_their_worker(
    database_url: str, tmp_path: Path
):
    runs: Counter[int] = Counter()
    turns: list[bool] = []

    @operation("once")
    class Once(Pipeline[Paper]):
        @step(delivery="at_most_once")
        async def only(self, paper: Paper, ctx: Context) -> None:
            runs[ctx.row_number] += 1

    async with engine([Once], url=database_url, tmp_path=tmp_path) as e:
        wall, turn = Wall(), e.worker.shared_lock.turn

        @asynccontextmanager
        async def taken(is_alone: bool = False) -> AsyncIterator[None]:
            """As if a suspect were alone as soon as the file is read."""
            turns.append(is_alone)
            if len(turns) > 1:
                await wall.stop()
            async with turn(is_alone):
                yield

        e.worker.shared_lock.turn = taken  # type: ignore[method-assign]
        made = await e.create(Once, papers(3))
        await at_wall(wall, e.work_until_idle())
        async with asyncio.timeout(HANG_S):
            while any(row.in_flight for row in await rows_of(e.penstock.db, made.id)):
                await a_moment()
        await e.crash()
        await e.work_until_idle()
        assert await states(e, made) == ["Completed"] * 3
        assert set(runs.values()) == {1}
        assert await clean(e) == []


async def test_a_shutdown_does_not_wait_for_a_suspect_that_waits(database_url: str, tmp_path: Path):
    three = Three()
    settings = Settings(shutdown_s=0)
    async with engine(three.kinds, url=database_url, tmp_path=tmp_path, settings=settings) as e:
        suspect = await three.suspect(e)
        async with asyncio.timeout(HANG_S):
            await e.restart()
        three.slow_wall.gone.set()
        three.mine_wall.gone.set()
        await e.work_until_idle()
        assert (three.runs["mine"], await states(e, suspect)) == (3, ["Completed"])
        assert await clean(e) == []
