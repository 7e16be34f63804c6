"""Operations and signals inside a transaction of the user's own: they commit with it, or not at all."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from patience import HANG_S
from pydantic import BaseModel

from penstock import Context, Pipeline, operation, step
from penstock.access import audit
from penstock.db.unit import UnitOfWork
from penstock.errors import Conflict, InvalidInput, NoSuchWait
from penstock.operations import intake
from penstock.operations.inbox.signal_batching import SignalBatcher
from penstock.testing import Engine, engine, json_lines

ROWS = json_lines([{"id": 1}])


class Item(BaseModel):
    id: int


@operation("approvals")
class Approvals(Pipeline[Item]):
    @step.signal(key="item-{row.id}", timeout=3600)
    async def approved(self, item: Item, ctx: Context) -> None: ...


@pytest.fixture
async def shop(database_url: str, tmp_path: Path) -> AsyncIterator[Engine]:
    async with engine([Approvals], url=database_url, tmp_path=tmp_path) as opened:
        async with opened.penstock.db.connection() as connection:
            await connection.exec_driver_sql("CREATE TABLE notes (text VARCHAR(40) NOT NULL)")
        yield opened
        async with opened.penstock.db.connection() as connection:
            await connection.exec_driver_sql("DROP TABLE notes")


async def notes(shop: Engine) -> int:
    async with shop.penstock.db.connection() as connection:
        return (await connection.exec_driver_sql("SELECT COUNT(*) FROM notes")).scalar_one()


@pytest.mark.covers("LC-106")
async def test_an_operation_is_there_with_the_users_own_rows_or_not_at_all(shop: Engine):
    async with shop.penstock.transaction() as tx:
        await tx.execute("INSERT INTO notes VALUES ('a')")
        made = await shop.operations.create(Approvals, file=ROWS, file_name="a.jsonl", tx=tx)
        assert made.status == "Pending"
        assert (await shop.operations.list()).items == []
    assert [each.id for each in (await shop.operations.list()).items] == [made.id]

    async def fail() -> None:
        async with shop.penstock.transaction() as tx:
            await tx.execute("INSERT INTO notes VALUES ('b')")
            await shop.operations.create(Approvals, file=ROWS, file_name="a.jsonl", tx=tx)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await fail()
    assert await notes(shop) == 1
    assert len((await shop.penstock.blobs.list()).items) == 1
    await shop.work_until_idle()
    assert [each.id for each in (await shop.operations.list()).items] == [made.id]
    assert (await shop.operations.get(made.id)).status == "Running"


@pytest.mark.covers("LC-106")
async def test_a_signal_wakes_its_row_once_the_transaction_is_committed(shop: Engine):
    made = await shop.create(Approvals, [{"id": 1}])
    await shop.work_until_idle()
    signals = shop.penstock.signals

    async def fail() -> None:
        async with shop.penstock.transaction() as tx:
            await signals.fail(made.id, "item-1", "no", tx=tx)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await fail()
    await shop.work_until_idle()
    assert len(await signals.waiting(made.id)) == 1
    async with shop.penstock.transaction() as tx:
        await tx.execute("INSERT INTO notes VALUES ('a')")
        receipt = await signals.complete(made.id, "item-1", id="once", tx=tx)
        again = await signals.complete(made.id, "item-1", id="once", tx=tx)
    assert (receipt.outcome, again.outcome, again.id) == ("stored", "duplicate", receipt.id)
    await shop.work_until_idle()
    assert (await shop.operations.get(made.id)).status == "Completed"
    assert (await signals.complete(made.id, "item-1", id="once")).outcome == "duplicate"


async def test_what_is_refused_without_a_transaction_is_refused_in_one(shop: Engine):
    made = await shop.create(Approvals, [{"id": 1}])
    signals = shop.penstock.signals

    async def inside(key: str, **given) -> None:
        async with shop.penstock.transaction() as tx:
            await signals.complete(made.id, key, tx=tx, **given)

    with pytest.raises(NoSuchWait):
        await inside("other-1")
    with pytest.raises(InvalidInput):
        await inside("item-1", row=0)
    await inside("item-1", id="x")
    with pytest.raises(Conflict, match="was used for"):
        await inside("item-2", id="x")
    await shop.operations.cancel(made.id)
    with pytest.raises(NoSuchWait, match="takes no more signals") as refused:
        await inside("item-1")
    assert refused.value.is_over


async def test_a_signal_counts_as_accepted_from_the_commit_on(shop: Engine):
    made = await shop.create(Approvals, [{"id": 1}])
    await shop.work_until_idle()
    signals = shop.penstock.signals
    async with shop.penstock.transaction() as tx:
        await signals.complete(made.id, "item-1", tx=tx)
        shop.clock.advance(5)
    async with shop.penstock.db.connection() as connection:
        found = await connection.exec_driver_sql("SELECT MAX(accepted_at) FROM penstock_signal")
        assert found.scalar_one() == shop.clock.now_us()
    await shop.work_until_idle()
    assert (await shop.operations.get(made.id)).status == "Completed"


@pytest.mark.databases("postgresql", "mariadb")  # on SQLite nobody else writes while a transaction is open
async def test_an_operation_is_not_locked_while_a_transaction_with_its_signal_is_open(shop: Engine):
    made = await shop.create(Approvals, [{"id": 1}, {"id": 2}])
    await shop.work_until_idle()
    open_unit = asyncio.Event(), asyncio.Event()

    async def keep_open() -> None:
        async with shop.penstock.transaction() as tx:
            await shop.penstock.signals.complete(made.id, "item-1", tx=tx)
            open_unit[0].set()
            await open_unit[1].wait()

    async with asyncio.TaskGroup() as group, asyncio.timeout(HANG_S):
        group.create_task(keep_open())
        await open_unit[0].wait()
        await shop.operations.pause(made.id)
        await shop.operations.resume(made.id)
        open_unit[1].set()
    await shop.work_until_idle()
    assert [row.state for row in (await shop.operations.rows(made.id)).items] == ["Completed", "WaitingForCompletion"]


async def test_a_transaction_locks_the_end_of_the_audit_log_after_all_operations_like_everybody_else(
    shop: Engine, monkeypatch: pytest.MonkeyPatch
):
    one, other = [await shop.create(Approvals, [{"id": 1}]) for _ in range(2)]
    confirm, extend, locked = SignalBatcher._confirm, audit._extend, list[str]()

    async def confirmed(batcher: SignalBatcher, *given: Any) -> None:
        locked.append("operation")
        await confirm(batcher, *given)

    async def extended(*given: Any) -> None:
        locked.append("log")
        await extend(*given)

    monkeypatch.setattr(SignalBatcher, "_confirm", confirmed)
    monkeypatch.setattr(audit, "_extend", extended)
    async with shop.penstock.transaction() as tx:
        for made in (one, other):
            await shop.penstock.signals.complete(made.id, "item-1", tx=tx)
    assert locked == ["operation", "operation", "log", "log"]
    await shop.work_until_idle()
    assert [(await shop.operations.get(made.id)).status for made in (one, other)] == ["Completed"] * 2


async def test_an_operation_is_not_created_by_a_transaction_that_was_open_for_too_long(
    shop: Engine, monkeypatch: pytest.MonkeyPatch
):
    blob = await shop.penstock.blobs.upload(ROWS, file_name="a.jsonl")
    looked = intake.refuse_without_rows
    unit = UnitOfWork(shop.penstock.db)

    async def expire() -> None:
        await unit.roll_back()

    loop = asyncio.get_running_loop()

    def slow(*given: Any, **options: Any) -> Any:
        asyncio.run_coroutine_threadsafe(expire(), loop).result()
        return looked(*given, **options)

    monkeypatch.setattr(intake, "refuse_without_rows", slow)
    await unit.begin()
    with pytest.raises(Conflict, match="has ended"):
        await shop.operations.create(Approvals, blob=blob.id, tx=unit)
    assert (await shop.operations.list()).items == []
