"""What workers log: operations by name and id, rows and steps by field, and a database that is away once."""

from __future__ import annotations

import logging
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Self

import pytest
from pydantic import BaseModel

from penstock import Context, Pipeline, operation, step
from penstock.errors import Unavailable
from penstock.testing import Engine, engine


class Item(BaseModel):
    id: int


@operation("count-items", row_key="id")
class CountItems(Pipeline[Item]):
    @step(retries=1)
    async def count(self, row: Item, ctx: Context) -> None:
        ctx.logger.info("counting")
        if row.id == 2:
            raise OSError("down")


def items(count: int) -> list[dict[str, int]]:
    return [{"id": n} for n in range(1, count + 1)]


def lines(caplog: pytest.LogCaptureFixture, name: str, level: int = logging.DEBUG) -> list[logging.LogRecord]:
    return [record for record in caplog.records if record.name == name and record.levelno >= level]


def place(record: logging.LogRecord) -> tuple[Any, ...]:
    names = ("operation_id", "operation_name", "row_number", "step_name", "attempt")
    return tuple(vars(record).get(name) for name in names)


async def test_what_a_step_logs_carries_its_place(database_url, tmp_path, caplog):
    caplog.set_level(logging.DEBUG, "penstock.operations")
    async with engine([CountItems], url=database_url, tmp_path=tmp_path) as e:
        done = await e.run(CountItems, items(2))
    found = lines(caplog, "penstock.operations.count-items")
    assert [place(record) for record in found if record.getMessage() == "counting"] == [
        (done.id, "count-items", row, "count", attempt) for row, attempt in ((1, 1), (2, 1), (2, 2))
    ]


async def test_at_debug_each_error_of_a_step_is_logged_with_its_traceback_and_place(database_url, tmp_path, caplog):
    caplog.set_level(logging.DEBUG, "penstock.operations")
    async with engine([CountItems], url=database_url, tmp_path=tmp_path) as e:
        done = await e.run(CountItems, items(3))
    errors = [record for record in lines(caplog, "penstock.operations.count-items") if record.exc_info]
    assert [place(record) for record in errors] == [(done.id, "count-items", 2, "count", n) for n in (1, 2)]
    assert all(record.exc_info is not None and isinstance(record.exc_info[1], OSError) for record in errors)


async def test_an_operation_that_is_set_aside_is_named_once_and_again_when_it_goes_on(database_url, tmp_path, caplog):
    caplog.set_level(logging.INFO, "penstock.worker")
    is_down = False

    @operation("weak")
    class Weak(Pipeline[Item]):
        @classmethod
        @asynccontextmanager
        async def lifespan(cls) -> AsyncGenerator[Self]:
            if is_down:
                raise OSError("down")
            yield cls()

        @step
        async def count(self, row: Item, ctx: Context) -> None: ...

    async with engine([Weak], url=database_url, tmp_path=tmp_path) as other:
        made = await other.create(Weak, items(1))
    is_down = True
    async with engine([Weak], url=database_url, tmp_path=tmp_path) as e:
        for _ in range(3):
            await e.work_until_idle()
            await e.advance(5)
        is_down = False
        await e.advance(60)
        await e.work_until_idle()
        assert (await e.operations.get(made.id)).status == "Completed"
    aside, again = lines(caplog, "penstock.worker")
    assert aside.levelno == logging.ERROR
    assert aside.getMessage().startswith(f"operation weak ({made.id}) is set aside for 1 s: ")
    assert again.getMessage() == f"operation weak ({made.id}) goes on"
    for record in (aside, again):
        assert place(record)[:2] == (made.id, "weak")


class Flaky:
    """The database of an engine, which can be away."""

    def __init__(self, e: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
        self.is_away = False
        for name in ("transaction", "single", "look", "glance"):
            monkeypatch.setattr(e.penstock.db, name, self._watched(getattr(e.penstock.db, name)))

    def _watched(self, call: Any) -> Any:
        async def called(*args: Any, **given: Any) -> Any:
            if self.is_away:
                raise Unavailable("nobody answers")
            return await call(*args, **given)

        return called


async def test_a_database_that_is_away_is_said_once_and_its_return_too(
    database_url: str, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
):
    caplog.set_level(logging.INFO, "penstock.worker")
    async with engine([CountItems], url=database_url, tmp_path=tmp_path) as e:
        flaky = Flaky(e, monkeypatch)
        for _ in range(2):
            flaky.is_away = True
            for _ in range(5):
                await e.worker.tick()
                e.clock.advance(0.5)
            flaky.is_away = False
            await e.worker.tick()
            await e.worker.tick()
    assert [record.getMessage() for record in lines(caplog, "penstock.worker", logging.WARNING)] == [
        "the database is away: nobody answers; this is tried again until it is back",
        "the database is back after 2.5 s",
    ] * 2
