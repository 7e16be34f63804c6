"""An async validator that never answers: a cancel and a shutdown end it after the grace that steps get."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

from approvals import Paper, a_moment, clean, papers
from patience import HANG_S
from sqlalchemy import select

from penstock import Context, Pipeline, operation, step
from penstock.operations.chunk import store
from penstock.operations.operation_ids import number_of
from penstock.operations.tables import operations
from penstock.settings import Settings
from penstock.testing import Engine, engine

NO_GRACE = Settings(cancel_grace_s=0, shutdown_s=0)


class Hang:
    """A pipeline whose validator hangs at papers for the desk 'void', until it is let go."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.hanging = 0
        self.reached, self.let_go = asyncio.Event(), asyncio.Event()
        hang = self

        @operation("hang", row_key="code")
        class Kind(Pipeline[Paper]):
            async def validate_row(self, paper: Paper, meta: None) -> None:
                hang.asked.append(paper.code)
                if paper.desk == "void":
                    await hang.answer()

            @step
            async def work(self, paper: Paper, ctx: Context) -> None: ...

        self.kind = Kind

    async def answer(self) -> None:
        self.hanging += 1
        self.reached.set()
        try:
            await self.let_go.wait()
        finally:
            self.hanging -= 1


def rows(count: int, void: int) -> list[dict[str, str]]:
    made = papers(count)
    made[void - 1]["desk"] = "void"
    return made


async def ends(working: asyncio.Task[None]) -> None:
    async with asyncio.timeout(HANG_S):
        await working


async def crashes_of(e: Engine, operation_id: str) -> int:
    async with e.penstock.db.read() as tx:
        mine = operations.c.number == await number_of(tx, operation_id)
        return (await tx.execute(select(operations.c.crashes).where(mine))).scalar_one()


async def test_an_operation_whose_validator_hangs_can_be_cancelled(database_url: str, tmp_path: Path):
    hang = Hang()
    async with engine([hang.kind], url=database_url, tmp_path=tmp_path, settings=NO_GRACE) as e:
        made = await e.create(hang.kind, rows(5, 3))
        working = asyncio.create_task(e.work_until_idle())
        await hang.reached.wait()
        await e.operations.cancel(made.id)
        await e.worker.look_round()
        await ends(working)
        done = await e.operations.get(made.id)
        assert (done.status, done.rows_read, hang.asked, hang.hanging) == ("Cancelled", 0, ["p1", "p2", "p3"], 0)
        assert await clean(e) == []


async def test_a_validator_gets_the_grace_of_a_cancel(database_url: str, tmp_path: Path):
    hang = Hang()
    settings = NO_GRACE.model_copy(update={"cancel_grace_s": HANG_S})
    async with engine([hang.kind], url=database_url, tmp_path=tmp_path, settings=settings) as e:
        made = await e.create(hang.kind, rows(5, 3))
        working = asyncio.create_task(e.work_until_idle())
        await hang.reached.wait()
        await e.operations.cancel(made.id)
        await e.worker.look_round()
        await a_moment()
        assert ((await e.operations.get(made.id)).status, hang.hanging) == ("Stopping", 1)
        hang.let_go.set()
        await ends(working)
        assert ((await e.operations.get(made.id)).status, hang.asked) == ("Cancelled", ["p1", "p2", "p3"])
        assert await clean(e) == []


async def test_a_pause_waits_for_a_validator_and_a_cancel_after_it_does_not(database_url: str, tmp_path: Path):
    hang = Hang()
    async with engine([hang.kind], url=database_url, tmp_path=tmp_path, settings=NO_GRACE) as e:
        made = await e.create(hang.kind, rows(5, 3))
        working = asyncio.create_task(e.work_until_idle())
        await hang.reached.wait()
        await e.operations.pause(made.id)
        await e.worker.look_round()
        await a_moment()
        assert hang.hanging == 1
        await e.operations.cancel(made.id)
        await e.worker.look_round()
        await ends(working)
        assert (await e.operations.get(made.id)).status == "Cancelled"
        assert await clean(e) == []


async def test_a_worker_that_stops_gives_the_reading_back_and_no_crash_is_counted(database_url: str, tmp_path: Path):
    hang = Hang()
    async with engine([hang.kind], url=database_url, tmp_path=tmp_path, settings=NO_GRACE) as e:
        made = await e.create(hang.kind, rows(5, 3))
        working = asyncio.create_task(e.work_until_idle())
        await hang.reached.wait()
        await e.restart()
        await ends(working)
        assert hang.hanging == 0
        hang.let_go.set()
        await e.work_until_idle()
        assert await crashes_of(e, made.id) == 0
        done = await e.operations.get(made.id)
        assert (done.status, done.successful_rows) == ("Completed", 5)
        assert hang.asked == ["p1", "p2", "p3", "p1", "p2", "p3", "p4", "p5"]
        assert await clean(e) == []


async def test_other_files_are_read_once_operations_whose_validators_hang_are_cancelled(
    database_url: str, tmp_path: Path
):
    hang = Hang()
    async with engine([hang.kind], url=database_url, tmp_path=tmp_path, settings=NO_GRACE) as e:
        made: list[Any] = []
        working = asyncio.create_task(e.work_until_idle())
        for count in range(1, store.READINGS_MAX + 1):
            made.append(await e.create(hang.kind, rows(2, 1)))
            await e.advance(6)
            while hang.hanging < count:
                await e.worker.tick()
                await asyncio.sleep(0)
        other = await e.create(hang.kind, papers(2))
        await e.worker.tick()
        assert (await e.operations.get(other.id)).status == "Pending"
        for each in made:
            await e.operations.cancel(each.id)
        await e.worker.look_round()
        await ends(working)
        await e.work_until_idle()
        assert (await e.operations.get(other.id)).status == "Completed"
        assert {(await e.operations.get(each.id)).status for each in made} == {"Cancelled"}
        assert await clean(e) == []


async def test_operations_whose_validators_hang_leave_room_for_files_of_other_kinds(database_url: str, tmp_path: Path):
    hang = Hang()

    @operation("other")
    class Other(Pipeline[Paper]):
        @step
        async def work(self, paper: Paper, ctx: Context) -> None: ...

    async with engine([hang.kind, Other], url=database_url, tmp_path=tmp_path, settings=NO_GRACE) as e:
        working = asyncio.create_task(e.work_until_idle())
        for count in range(1, store.READINGS_MAX + 1):
            await e.create(hang.kind, rows(2, 1))
            await e.advance(6)
            while hang.hanging < count:
                await e.worker.tick()
                await asyncio.sleep(0)
        waiting = await e.create(hang.kind, papers(2))
        others = [await e.create(Other, papers(2)) for _ in range(3)]
        async with asyncio.timeout(HANG_S):
            while {(await e.operations.get(other.id)).status for other in others} != {"Completed"}:
                await e.worker.tick()
                await asyncio.sleep(0)
        assert (await e.operations.get(waiting.id)).status == "Pending"
        hang.let_go.set()
        await ends(working)
        await e.work_until_idle()
        assert (await e.operations.get(waiting.id)).status == "Completed"
        assert await clean(e) == []
