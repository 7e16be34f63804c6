"""In the database too a record moves exactly as its table says, and no state outside the table can be stored."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel
from sqlalchemy import insert, select, update
from sqlalchemy.exc import DBAPIError

from penstock import Context, operation
from penstock.db.database import Database
from penstock.operations.moves import move, touch
from penstock.operations.operation_ids import number_of
from penstock.operations.states import OPERATION, ROW_STEP
from penstock.operations.tables import operations, row_records
from penstock.testing import Engine, engine


class Item(BaseModel):
    id: int


@operation("pairs")
async def pairs(row: Item, ctx: Context) -> None: ...


async def created(e: Engine) -> tuple[str, int]:
    made = await e.create(pairs, [{"id": 1}])
    async with e.penstock.db.read() as tx:
        return made.id, await number_of(tx, made.id)


async def put(db: Database, number: int, state: str) -> dict[str, Any]:
    """Put an operation into a state, and give its record as it then stands."""
    finished = 1 if OPERATION.is_settled(state) else None
    async with db.write() as tx:
        values = {"state": state, "previous_state": None, "finished_at": finished}
        await tx.execute(update(operations).where(operations.c.number == number).values(values))
    return await record(db, number)


async def record(db: Database, number: int) -> dict[str, Any]:
    async with db.read() as tx:
        return dict((await tx.execute(select(operations).where(operations.c.number == number))).one()._mapping)


@pytest.mark.covers("SM-001")
async def test_a_stored_operation_moves_exactly_as_its_table_says_and_every_move_is_logged(
    database_url: str, tmp_path: Path
):
    async with engine([pairs], url=database_url, tmp_path=tmp_path) as e:
        db = e.penstock.db
        operation_id, number = await created(e)
        for state, event in product(OPERATION.states, OPERATION.events):
            before = await put(db, number, state)
            since = (await e.operations.events())[-1].sequence
            head = await db.transaction(lambda tx, event=event: move(db, tx, number, event, actor="ana", cause="test"))
            after, logged = await record(db, number), await e.operations.events(since=since)
            target = OPERATION.moves.get((state, event))
            if target is None:
                assert (head, after, logged) == (None, before, []), f"{state} took {event}"
                continue
            assert head is not None, f"{state} refused {event}"
            assert (head.state, after["state"], after["previous_state"]) == (target, target, state)
            assert after["revision"] == before["revision"] + 1
            assert (after["finished_at"] is not None) == OPERATION.is_settled(target)
            [line] = logged
            assert (line.operation_id, line.source, line.event, line.target) == (operation_id, state, event, target)
            assert (line.actor, line.cause) == ("ana", "test")


async def test_a_guard_that_does_not_hold_stops_a_move_and_leaves_no_trace(database_url: str, tmp_path: Path):
    async with engine([pairs], url=database_url, tmp_path=tmp_path) as e:
        db = e.penstock.db
        _, number = await created(e)
        before = await record(db, number)
        stale = operations.c.fence == 99
        assert await db.transaction(lambda tx: move(db, tx, number, "picked_up", stale, actor="ana")) is None
        assert await db.transaction(lambda tx: touch(tx, number, stale, open_chunks=7)) is None
        assert await record(db, number) == before
        assert len(await e.operations.events()) == 1


async def test_a_move_and_its_log_line_commit_together_or_not_at_all(database_url: str, tmp_path: Path):
    class Undo(Exception):
        """Ends the transaction."""

    async with engine([pairs], url=database_url, tmp_path=tmp_path) as e:
        db = e.penstock.db
        _, number = await created(e)

        async def move_and_fail(tx: Any) -> None:
            assert await move(db, tx, number, "picked_up", actor="ana") is not None
            raise Undo

        with pytest.raises(Undo):
            await db.transaction(move_and_fail)
        assert (await record(db, number))["state"] == "Pending"
        assert len(await e.operations.events()) == 1


@pytest.mark.parametrize("state", ["", "pending", "RUNNING", "Done", "Completed "])
async def test_the_database_refuses_a_state_no_machine_knows(database_url: str, tmp_path: Path, state: str):
    async with engine([pairs], url=database_url, tmp_path=tmp_path) as e:
        db = e.penstock.db
        _, number = await created(e)
        with pytest.raises(DBAPIError):
            await put(db, number, state)
        with pytest.raises(DBAPIError):
            await store_step(db, number, state)
        assert (await record(db, number))["state"] == "Pending"


async def test_every_state_of_a_row_step_can_be_stored(database_url: str, tmp_path: Path):
    async with engine([pairs], url=database_url, tmp_path=tmp_path) as e:
        for number, state in enumerate(ROW_STEP.states, start=1):
            await store_step(e.penstock.db, number, state)
        async with e.penstock.db.read() as tx:
            stored = set((await tx.execute(select(row_records.c.state))).scalars())
    assert stored == set(ROW_STEP.states)


async def store_step(db: Database, row: int, state: str) -> None:
    async with db.write() as tx:
        await tx.execute(insert(row_records).values(chunk=1, row=row, step=0, operation=1, state=state, at=0))
