"""Chunks left to others to validate, stopped on the way: counted once as validated, and no step runs before all are."""

from __future__ import annotations

from typing import Any

import pytest
from approvals import Paper, Wall, at_wall, clean, two_engines
from left_chunks import SMALL, csv_of, raw_chunks, read_for_others
from sqlalchemy import select

from penstock import Context, Pipeline, RowInvalid, operation, step
from penstock.operations.model import Operation
from penstock.operations.operation_ids import number_of
from penstock.operations.tables import operations
from penstock.testing import Engine

ROWS = 24


class Mill:
    """Validation stops at the wall at the last row of a chunk that was left; steps note the operation's state."""

    def __init__(self, *, all_invalid: bool) -> None:
        self.wall = Wall()
        self.states_at_steps: set[str] = set()
        self.engine: Engine | None = None
        mill = self

        @operation("mill")
        class Kind(Pipeline[Paper]):
            async def validate_row(self, paper: Paper, meta: None) -> None:
                if paper.desk == "wall":
                    await mill.wall.stop()
                if all_invalid:
                    raise RowInvalid("not a desk", field="desk")

            @step
            async def work(self, paper: Paper, ctx: Context) -> None:
                assert mill.engine is not None
                mill.states_at_steps.add((await mill.engine.operations.get(ctx.operation_id)).status)

        self.kind = Kind

    async def stopped_at_the_last_row(self, reader: Engine, other: Engine) -> Operation:
        """The other worker holds a chunk whose last row it validates now."""
        self.engine = other
        rows = [{"code": f"p{n}", "desk": "wall" if n % SMALL.chunk_rows == 0 else "front"} for n in range(1, ROWS + 1)]
        rows[SMALL.chunk_rows - 1]["desk"] = "front"  # the reader's own chunk
        made = await reader.create(self.kind, csv_of(rows), file_name="a.csv")
        await read_for_others(reader)
        assert await raw_chunks(reader, made) > 2
        await at_wall(self.wall, other.work_until_idle())
        return made


async def pause(e: Engine, made: Operation) -> None:
    await e.operations.pause(made.id)
    await e.worker.look_round()


async def counted(e: Engine, made: Operation) -> int:
    async with e.penstock.db.read() as tx:
        query = select(operations.c.raw_chunks).where(operations.c.id == made.id)
        return int((await tx.execute(query)).scalar_one())


@pytest.mark.parametrize("all_invalid", [True, False], ids=["all invalid", "all valid"])
@pytest.mark.parametrize("by", ["pause", "shutdown"])
async def test_a_chunk_that_is_given_back_validated_is_counted_once(
    database_url: str, tmp_path: Any, by: str, all_invalid: bool
):
    mill = Mill(all_invalid=all_invalid)
    async with two_engines(mill.kind, url=database_url, folder=tmp_path, settings=SMALL) as (reader, other):
        made = await mill.stopped_at_the_last_row(reader, other)
        if by == "pause":
            await pause(other, made)
            mill.wall.gone.set()
            await other.work_until_idle()
            assert await counted(other, made) == await raw_chunks(other, made)
            assert await clean(other) == []
            await other.operations.resume(made.id)
        else:
            other.worker.halt("shutdown")
            mill.wall.gone.set()
            await other.restart()
            assert await counted(other, made) == await raw_chunks(other, made)
            assert await clean(other) == []
        await other.work_until_idle()
        done = await other.operations.get(made.id)
        assert done.status == ("CompletedWithErrors" if all_invalid else "Completed")
        assert done.processed_rows == ROWS
        assert mill.states_at_steps == (set() if all_invalid else {"Running"})
        assert await clean(other) == []


@pytest.mark.parametrize("all_invalid", [True, False], ids=["all invalid", "all valid"])
async def test_a_chunk_that_is_cancelled_while_it_is_validated_has_its_verdicts(
    database_url: str, tmp_path: Any, all_invalid: bool
):
    mill = Mill(all_invalid=all_invalid)
    async with two_engines(mill.kind, url=database_url, folder=tmp_path, settings=SMALL) as (reader, other):
        made = await mill.stopped_at_the_last_row(reader, other)
        await other.operations.cancel(made.id)
        await other.worker.look_round()
        mill.wall.gone.set()
        await other.work_until_idle()
        done = await other.operations.get(made.id)
        assert (done.status, done.processed_rows + done.cancelled_rows) == ("Cancelled", ROWS)
        assert mill.states_at_steps == set()
        assert await clean(other) == []


@pytest.mark.parametrize("all_invalid", [True, False], ids=["all invalid", "all valid"])
async def test_a_chunk_whose_validator_died_is_validated_by_the_next(
    database_url: str, tmp_path: Any, all_invalid: bool
):
    mill = Mill(all_invalid=all_invalid)
    async with two_engines(mill.kind, url=database_url, folder=tmp_path, settings=SMALL) as (reader, other):
        made = await mill.stopped_at_the_last_row(reader, other)
        mill.wall.gone.set()
        await other.crash()
        await other.work_until_idle()
        done = await other.operations.get(made.id)
        assert done.status == ("CompletedWithErrors" if all_invalid else "Completed")
        assert mill.states_at_steps == (set() if all_invalid else {"Running"})
        assert await clean(other) == []


async def test_a_worker_that_knew_the_operation_before_its_file_was_opened_runs_its_rows(
    database_url: str, tmp_path: Any
):
    mill = Mill(all_invalid=False)
    async with two_engines(mill.kind, url=database_url, folder=tmp_path, settings=SMALL) as (reader, other):
        mill.engine = other
        rows = [{"code": f"p{n}", "desk": "front"} for n in range(1, ROWS + 1)]
        made = await reader.create(mill.kind, csv_of(rows), file_name="a.csv")
        async with other.penstock.db.read() as tx:
            number = await number_of(tx, made.id)
        await other.worker.runtimes.get(number)  # and somebody else was first to read it
        await read_for_others(reader)
        await other.work_until_idle()
        assert (await other.operations.get(made.id)).status == "Completed"
        assert await clean(other) == []
