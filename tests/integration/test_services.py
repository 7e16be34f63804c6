"""Background services: each is done again and again, and one that fails harms nothing else."""

from __future__ import annotations

import asyncio
import threading
from functools import partial
from pathlib import Path

import pytest
from patience import HANG_S
from pydantic import BaseModel

from penstock import Context, Penstock, Pipeline, operation, step
from penstock.db.connection import Connection
from penstock.errors import Unavailable
from penstock.services import Service
from penstock.settings import Settings
from penstock.testing import json_lines


class Item(BaseModel):
    name: str


async def test_a_service_that_fails_is_done_again_and_rows_go_on(database_url, tmp_path, monkeypatch, caplog):
    again = asyncio.Event()
    passes = 0

    @operation("patient")
    class Patient(Pipeline[Item]):
        @step
        async def wait_for_the_second_pass(self, row: Item, ctx: Context) -> None:
            await again.wait()

    async def fail() -> None:
        nonlocal passes
        passes += 1
        if passes > 1:
            again.set()
        raise ZeroDivisionError

    settings = Settings(database_url=database_url, storage_url=str(tmp_path / "files"), control_poll_s=0.01)
    async with Penstock.open(operations=[Patient], settings=settings) as penstock:
        monkeypatch.setattr(penstock, "_services", lambda: (Service("broken", 0.0, fail),))
        made = await penstock.operations.create(Patient, file=json_lines([{"name": "a"}]), file_name="a.jsonl")
        done = await penstock.run_until_done(made.id)
    assert (done.status, done.successful_rows) == ("Completed", 1)
    assert "the background service 'broken' failed" in caplog.text


async def test_a_worker_leaves_though_a_driver_lost_the_cancel_of_a_service(
    database_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    begun = asyncio.Event()

    async def lose_the_cancel() -> None:
        begun.set()
        try:
            await asyncio.sleep(HANG_S)
        except asyncio.CancelledError:
            raise Unavailable("the connection broke meanwhile") from None

    async def work_for_a_moment() -> None:
        settings = Settings(database_url=database_url, storage_url=str(tmp_path / "files"), control_poll_s=0.01)
        async with Penstock.open(settings=settings) as penstock:
            monkeypatch.setattr(penstock, "_services", lambda: (Service("away", 0.0, lose_the_cancel),))
            async with penstock.working():
                await begun.wait()

    await asyncio.wait_for(work_for_a_moment(), HANG_S / 2)


@pytest.mark.databases("sqlite")
async def test_a_worker_leaves_though_a_service_is_in_the_middle_of_a_look(database_url: str, tmp_path: Path):
    loop, begun, gate = asyncio.get_running_loop(), asyncio.Event(), threading.Event()

    async def look(penstock: Penstock) -> None:
        async def slowly(tx: Connection) -> None:  # on the connection's thread
            loop.call_soon_threadsafe(begun.set)
            gate.wait(HANG_S)

        await penstock.db.look(slowly)

    async def work_for_a_moment() -> None:
        settings = Settings(database_url=database_url, storage_url=str(tmp_path / "files"), control_poll_s=0.01)
        async with Penstock.open(settings=settings) as penstock:
            service = Service("slow", 0.0, partial(look, penstock))
            penstock._services = lambda: (service,)  # type: ignore[method-assign]
            async with penstock.working():
                await begun.wait()
                loop.call_soon(gate.set)  # after the worker was told to leave

    await asyncio.wait_for(work_for_a_moment(), HANG_S / 2)
