"""Background services: each is done again and again, and one that fails harms nothing else."""

from __future__ import annotations

import asyncio

from pydantic import BaseModel

from penstock import Context, Penstock, Pipeline, operation, step
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
