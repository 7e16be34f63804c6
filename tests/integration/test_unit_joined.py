"""Operations and signals inside a transaction of the user's own: they commit with it, or not at all."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from pydantic import BaseModel

from penstock import Context, Pipeline, operation, step
from penstock.errors import Conflict, InvalidInput, NoSuchWait
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
